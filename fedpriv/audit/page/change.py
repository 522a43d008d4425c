"""What would change a run's answer: a defence that was audited beside it, or a command that searches for one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.audit.answer import CLASSES, CONTRADICTED, MEMBERS, NOT_KNOWN, NOTHING, SINGLES, WORDS_OF_TEXTS
from fedpriv.audit.conditions import MEASURES, Condition, conditions
from fedpriv.audit.evidence.statistics import OF_MODEL, RUNNING
from fedpriv.audit.formats import percent
from fedpriv.audit.membership.verdict import best_attack, reversed_attack
from fedpriv.audit.verdict import gives_away

Found = Mapping[str, Any]
_NO_STATISTICS, _NO_RUNNING = 'mask:names=["statistic.*"]', 'mask:names=["*.running_*"]'
_REMOVABLE = {"centers", "counts"}
"""Statistics that a method can do without; others, such as control variates, it needs."""


def changes(run: Found, like: Sequence[Found]) -> dict[str, str | None]:
    """What would change a run's answer: a ``sentence``, and the ``command`` that looks for it where it was not measured.

    Args:
        like: audited runs that differ from it in the defence alone.
    """
    level = run["answer"]["level"]
    if level == CONTRADICTED:
        return _said("Noise and clipping as the privacy accountant assumes; until then its epsilon means nothing.")
    if level == NOTHING:
        return _said("Nothing, by these attacks. A stronger attack may find more; only an epsilon bounds what all of them can.")
    if level == NOT_KNOWN:
        return _said("An audit that can mount these attacks; why this one could not is said below.")
    better = [one for one in like if one["answer"]["level"] > level and one["answer"]["level"] != NOT_KNOWN]
    if useful := [one for one in better if not one["cost"]["at_chance"]]:
        best = max(useful, key=lambda one: (one["cost"]["accuracy"] or 0.0, -one["cost"]["bytes_up"]))
        return _said(f"{_defended(best)}: “{best['answer']['words']}”{_cost(best, run)}.")
    if better:
        return _said(f"{_defended(better[0])}: “{better[0]['answer']['words']}”, but its model is no better than guessing.")
    tried = f"None of the other defences that were audited here ({len(like)})." if like else "Not measured."
    if (target := _target(run)) is None:
        return _said(f"{tried} `fedpriv frontier` has no target that measures this, so no command is suggested.")
    return _said(f"{tried} This command searches for the most accurate defence that meets `{target}`:", _command(run, target))


def _said(sentence: str, command: str | None = None) -> dict[str, str | None]:
    return {"sentence": sentence, "command": command}


def _target(run: Found) -> Condition | None:
    """A target that the run misses by what was found in it; ``None``: no measure of a target shows that."""
    level, attacks = run["answer"]["level"], run["membership"]
    best = best_attack(attacks)
    if level == MEMBERS and (best is None or best["together"]["low"] <= 0.5) and reversed_attack(attacks) is None:
        return None  # found at a low false-positive rate, which the area need not show
    halfway = math.floor(50 * (0.5 + (MEASURES["membership_auc"](run) or 0.0))) / 100  # between guessing and what was found
    wanted = {
        WORDS_OF_TEXTS: "words<=0",
        MEMBERS: f"membership_auc<={min(0.6, halfway)}",
        SINGLES: "recovered<=0,words<=0",
        CLASSES: "labels<=0.5",
    }
    asked = conditions(wanted.get(level, "recovered<=0"), "--target")
    return next((one for one in asked if (value := one.value(run)) is not None and not one.allows(value)), None)


def _command(run: Found, target: Condition) -> str:
    """The search for a defence that meets the target.

    A strength is searched by replay of single uploads, without training; for other measures, and for sums, values are listed.
    """
    summed = "secure aggregation" in run["defence"]
    searched = target.measure in ("recovered", "labels") and not summed
    noise = ["gaussian:variance=1e-10..1e-4"] if searched else ["gaussian:variance=1e-6", "gaussian:variance=1e-4"]
    pruned = [] if summed else ["prune:fraction=0.01"]  # what is pruned has no sum
    listed_too = {one["what"] for one in (run.get("statistics") or {}).get("listed", [])}
    statistics = listed_too - OF_MODEL
    removable = bool(statistics) and statistics <= _REMOVABLE
    # What an attack on samples does not use may stay beside a defence of the model; members and classes show in it.
    in_them = removable and (target.measure != "recovered" or any(map(gives_away, run.get("centers") or [])))
    without = [_NO_STATISTICS] if in_them else []
    if RUNNING in listed_too and target.measure == "membership_auc":
        without.append(_NO_RUNNING)
    defences = ["+".join([one, *without]) for one in (*_masks(run), *pruned, *noise)]
    if run["epsilon"] is None and (removable or not statistics) and not any(map(_is_of_batch_norm, run["conditions"])):
        defences.append("dp-sample:target_epsilon=8" + (f"+{_NO_STATISTICS}" if removable else ""))
    listed = " ".join(["+".join(without), *defences] if without else defences)
    config = shlex.quote(f"{run['run_dir']}/config.yaml")
    return f"fedpriv frontier --config {config} --defenses '{listed}' --target '{target}'"


def _masks(run: Found) -> list[str]:
    """The mask of the last linear layer that was sent; none where nothing would be left."""
    model = [one for one in run["wire"]["tensors"] if one["role"] != "statistic"]
    linear = [one["up"] for one in model if one["name"].endswith(".weight") and len(one["shape"]) == 2]
    if not any(linear) or sum(one["up"] for one in model if one["name"].endswith(".weight")) < 2:
        return []
    return [f"mask:last={linear[::-1].index(True) + 1}"]


def _is_of_batch_norm(condition: str) -> bool:
    return condition.startswith("BatchNorm")


def _defended(run: Found) -> str:
    return f"Measured with {', '.join(run['defence']) or 'no defence'} ({run['name']})"


def _cost(run: Found, other: Found) -> str:
    mine, theirs = run["cost"], other["cost"]
    if mine["accuracy"] is None or theirs["accuracy"] is None:
        return ""
    return f", at an accuracy of {percent(mine['accuracy'])} in place of {percent(theirs['accuracy'])}"
