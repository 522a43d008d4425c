"""What would change a run's answer: a defence that was audited beside it, or a command that searches for one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from fedpriv.audit.answer import CLASSES, CONTRADICTED, MEMBERS, NOT_KNOWN, NOTHING, SINGLES, WORDS_OF_TEXTS
from fedpriv.audit.conditions import Condition, conditions
from fedpriv.audit.formats import percent
from fedpriv.audit.judge import members
from fedpriv.audit.judge.images import gives_away
from fedpriv.audit.judge.measures import membership_auc
from fedpriv.audit.record.statistics import OF_MODEL, RUNNING
from fedpriv.audit.results import AuditedRun

_NO_STATISTICS, _NO_RUNNING = 'mask:names=["statistic.*"]', 'mask:names=["*.running_*"]'
_REMOVABLE = {"centers", "counts"}
"""Statistics that a method can do without; others, such as control variates, it needs."""


def changes(run: AuditedRun, like: Sequence[AuditedRun]) -> tuple[str, str | None]:
    """What would change a run's answer: a sentence, and the command that looks for it where it was not measured.

    Args:
        like: audited runs that differ from it in the defence alone.
    """
    level = run.concluded.level
    if level == CONTRADICTED:
        return "Noise and clipping as the privacy accountant assumes; until then its epsilon means nothing.", None
    if level == NOTHING:
        return "Nothing, by these attacks. A stronger attack may find more; only an epsilon bounds what all of them can.", None
    if level == NOT_KNOWN:
        return "An audit that can mount these attacks; why this one could not is said below.", None
    better = [one for one in like if one.concluded.level > level and one.concluded.level != NOT_KNOWN]
    if useful := [one for one in better if not one.cost.at_chance]:
        best = max(useful, key=lambda one: (one.cost.accuracy or 0.0, -one.cost.bytes_up))
        return f"{_defended(best)}: “{best.concluded.words}”{_cost(best, run)}.", None
    if better:
        return f"{_defended(better[0])}: “{better[0].concluded.words}”, but its model is no better than guessing.", None
    tried = f"None of the other defences that were audited here ({len(like)})." if like else "Not measured."
    if (target := _target(run)) is None:
        return f"{tried} `fedpriv frontier` has no target that measures this, so no command is suggested.", None
    return f"{tried} This command searches for the most accurate defence that meets `{target}`:", _command(run, target)


def _target(run: AuditedRun) -> Condition | None:
    """A target that the run misses by what was found in it; ``None``: no measure of a target shows that."""
    level, best = run.concluded.level, members.best(run.membership)
    if level == MEMBERS and (best is None or best.together.low <= 0.5) and members.reversed_attack(run.membership) is None:
        return None  # found at a low false-positive rate, which the area need not show
    halfway = math.floor(50 * (0.5 + (membership_auc(run) or 0.0))) / 100  # between guessing and what was found
    wanted = {
        WORDS_OF_TEXTS: "words<=0",
        MEMBERS: f"membership_auc<={min(0.6, halfway)}",
        SINGLES: "recovered<=0,words<=0",
        CLASSES: "labels<=0.5",
    }
    asked = conditions(wanted.get(level, "recovered<=0"), "--target")
    return next((one for one in asked if (value := one.value(run)) is not None and not one.allows(value)), None)


def _command(run: AuditedRun, target: Condition) -> str:
    """The search for a defence that meets the target.

    A strength is searched by replay of single uploads, without training; for other measures, and for sums, values are listed.
    """
    searched = target.measure in ("recovered", "labels") and not run.summed
    noise = ["gaussian:variance=1e-10..1e-4"] if searched else ["gaussian:variance=1e-6", "gaussian:variance=1e-4"]
    pruned = [] if run.summed else ["prune:fraction=0.01"]  # what is pruned has no sum
    sent = {one.what for one in run.statistics}
    statistics = sent - OF_MODEL
    removable = bool(statistics) and statistics <= _REMOVABLE
    # What an attack on samples does not use may stay beside a defence of the model; members and classes show in it.
    in_them = removable and (target.measure != "recovered" or any(map(gives_away, run.centers)))
    without = [_NO_STATISTICS] if in_them else []
    if RUNNING in sent and target.measure == "membership_auc":
        without.append(_NO_RUNNING)
    defences = ["+".join([one, *without]) for one in (*_masks(run), *pruned, *noise)]
    if run.epsilon is None and (removable or not statistics) and not run.batch_norm:
        defences.append("dp-sample:target_epsilon=8" + (f"+{_NO_STATISTICS}" if removable else ""))
    listed = " ".join(["+".join(without), *defences] if without else defences)
    config = shlex.quote(f"{run.run_dir}/config.yaml")
    return f"fedpriv frontier --config {config} --defenses '{listed}' --target '{target}'"


def _masks(run: AuditedRun) -> list[str]:
    """The mask of the last linear layer that was sent; none where nothing would be left."""
    weights = [one for one in run.wire.tensors if one.role != "statistic" and one.name.endswith(".weight")]
    linear = [one.up for one in weights if len(one.shape) == 2]
    if not any(linear) or sum(one.up for one in weights) < 2:
        return []
    return [f"mask:last={linear[::-1].index(True) + 1}"]


def _defended(run: AuditedRun) -> str:
    return f"Measured with {', '.join(run.defence) or 'no defence'} ({run.name})"


def _cost(run: AuditedRun, other: AuditedRun) -> str:
    if run.cost.accuracy is None or other.cost.accuracy is None:
        return ""
    return f", at an accuracy of {percent(run.cost.accuracy)} in place of {percent(other.cost.accuracy)}"
