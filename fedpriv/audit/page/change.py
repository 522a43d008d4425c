"""What to do about a run's answer: take a defence that was audited beside it, or search for one with a command."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence

from fedpriv.audit.answer import CLASSES, CONTRADICTED, MEMBERS, NOT_KNOWN, NOTHING, SINGLES, WORDS_OF_TEXTS
from fedpriv.audit.conditions import Condition, conditions
from fedpriv.audit.foreign.nets import GivenNet
from fedpriv.audit.formats import percent, ranked
from fedpriv.audit.judge import members
from fedpriv.audit.judge.images import gives_away
from fedpriv.audit.judge.known import was_cut
from fedpriv.audit.judge.measures import membership_auc
from fedpriv.audit.membership.label_leaks import BEFORE_TRAINING
from fedpriv.audit.record.statistics import OF_MODEL, RUNNING
from fedpriv.audit.results.audit import AuditedRun

_NO_STATISTICS, _NO_RUNNING = 'mask:names=["statistic.*"]', 'mask:names=["*.running_*"]'
_EPSILON = 8
_REMOVABLE = {"centers", "counts"}
"""Statistics that a method can do without; others, such as control variates, it needs."""


def changes(run: AuditedRun, alike: Sequence[AuditedRun], model: GivenNet = None) -> tuple[str, str | None]:
    """What to do about a run's answer: a sentence, and a command that searches for a defence where none was measured.

    Args:
        alike: audited runs that differ from it in the defence alone.
        model: the net that the user gave for records; see :func:`fedpriv.audit`.
    """
    level = run.concluded.level
    if level == CONTRADICTED:
        return "Noise and clipping as the privacy accountant assumes; until then its epsilon means nothing.", None
    bounded = "Only an epsilon bounds what all attacks can find"
    trained = None if run.epsilon is not None or not _may_be_private(run) else _with_epsilon(run)
    if level == NOTHING:
        first = "Nothing, by these attacks; a stronger one may find more."
        return (first, None) if run.epsilon is not None else (f"{first} {bounded}{_by(trained)}", trained)
    if level == NOT_KNOWN:
        first = "Treat its messages as unsafe."
        covered = run.concluded.coverage
        if run.source != "update" and covered is not None and any(map(was_cut, covered.not_run.values())):
            first += " The budget left attacks out;"
            if run.source == "run" or model is None:
                return f"{first} this command runs them, too:", f"fedpriv audit {shlex.quote(run.run_dir)}"
            if isinstance(model, str | os.PathLike):
                net = shlex.quote(os.fspath(model))
                return f"{first} this command runs them, too:", f"fedpriv audit {shlex.quote(run.run_dir)} --model {net}"
            return f"{first} fedpriv.audit with the same net (model=) and no budget runs them, too.", None
        first += " Why attacks could not be mounted is said below."
        return (first, None) if run.epsilon is not None else (f"{first} {bounded}{_by(trained)}", trained)
    if run.source == "update":
        return "Treat the message as unsafe. Add a defence, and audit a message with it.", None
    better = [other for other in alike if other.concluded.level > level and other.concluded.level != NOT_KNOWN]
    if useful := [other for other in better if not other.cost.at_chance]:
        best = max(useful, key=lambda other: (other.cost.merit, -other.cost.bytes_up))
        return f"{_defended(best)}: “{best.concluded.words}”{_cost(best, run)}.", None
    if better:
        return f"{_defended(better[0])}: “{better[0].concluded.words}”, but its model is no better than guessing.", None
    if (before := _before_training(run)) is not None:
        return before, None
    if run.source == "record":
        return "Treat its messages as unsafe. Record the federation with a defence, and audit both together.", None
    unknown = [other for other in alike if other.concluded.level == NOT_KNOWN]
    tried, known = "Treat its messages as unsafe.", len(alike) - len(unknown)
    tried += f" None of the other defences that were audited here ({known}) changes that." if known else ""
    tried += f" Of {', '.join(map(_with_defence, unknown))} it is not known." if unknown else ""
    if (target := _target(run)) is None:
        return f"{tried} No target of fedpriv frontier measures this.", None
    return f"{tried} This command searches for the most accurate defence that meets {target}:", _command(run, target)


def _before_training(run: AuditedRun) -> str | None:
    """What to do about a finding in what clients told before round 1, which no defence alters; ``None``: it is another."""
    unsafe = "Treat its messages as unsafe. With --secure-aggregation the server learns sums over all clients alone"
    if run.concluded.before_training:
        return f"{unsafe}; with differential privacy, declared bounds and levels (data.bounds, data.levels) they have noise."
    if run.concluded.level == CLASSES and any(result.rule == BEFORE_TRAINING for result in run.labels):
        return f"{unsafe}; without class weights, and with a score that eval.metric names, clients send no counts of classes."
    return None


def _by(command: str | None) -> str:
    return "." if command is None else "; this command trains the same with one:"


def _with_epsilon(run: AuditedRun) -> str:
    without = f" --defense {shlex.quote(_NO_STATISTICS)}" if {statistic.what for statistic in run.statistics} - OF_MODEL else ""
    return f"fedpriv train --config {_config(run)} --dp sample --target-epsilon {_EPSILON} --executor auto{without}{_data(run)}"


def _config(run: AuditedRun) -> str:
    return shlex.quote(f"{run.run_dir}/config.yaml")


def _data(run: AuditedRun) -> str:
    """The folder of the data, which the config does not name."""
    return "" if run.data_dir is None else f" --set {shlex.quote(f'data.dir={run.data_dir}')}"


def _may_be_private(run: AuditedRun) -> bool:
    """Whether sample-level differential privacy could cover all that the run sends, if need be with its statistics left out."""
    statistics = {statistic.what for statistic in run.statistics} - OF_MODEL
    return run.source == "run" and not run.batch_norm and not run.no_dp and statistics <= _REMOVABLE


def _target(run: AuditedRun) -> Condition | None:
    """A target that the run misses because of its finding; ``None``: no measure shows the finding."""
    level, best, tells_members = run.concluded.level, members.best(run.membership), members.tells(run.membership)
    separates = (best is not None and best.together.low > 0.5) or members.reversed_attack(run.membership) is not None
    if level == MEMBERS and tells_members and not separates:
        return None  # found at a low false-positive rate, which the area need not show
    halfway = math.floor(50 * (0.5 + (membership_auc(run) or 0.0))) / 100  # between guessing and what was found
    wanted = {
        WORDS_OF_TEXTS: "words<=0,cells<=0",
        MEMBERS: f"membership_auc<={min(0.6, halfway)}" if tells_members else "attribute_advantage<=0",
        SINGLES: "recovered<=0,words<=0,cells<=0",
        CLASSES: "labels<=0.5",
    }
    targets = conditions(wanted.get(level, "recovered<=0"), "--target")
    return next((target for target in targets if (value := target.value(run)) is not None and not target.allows(value)), None)


def _command(run: AuditedRun, target: Condition) -> str:
    """The search for a defence that meets the target.

    For ``recovered`` and ``labels`` of single uploads, the command gives a range of noise, which is searched by replay without
    training; otherwise it lists fixed values.
    """
    searched = target.measure in ("recovered", "cells", "labels") and not run.summed
    noise = ["gaussian:variance=1e-10..1e-4"] if searched else ["gaussian:variance=1e-6", "gaussian:variance=1e-4"]
    pruned = [] if run.summed else ["prune:fraction=0.01"]  # what is pruned has no sum
    sent = {statistic.what for statistic in run.statistics}
    statistics = sent - OF_MODEL
    removable = bool(statistics) and statistics <= _REMOVABLE
    # If samples are the target, statistics that the attack did not use may stay; otherwise they must be masked, as they reveal
    # members and classes.
    in_them = removable and (target.measure != "recovered" or any(map(gives_away, run.centers)))
    without = [_NO_STATISTICS] if in_them else []
    if RUNNING in sent and target.measure == "membership_auc":
        without.append(_NO_RUNNING)
    defences = ["+".join([defence, *without]) for defence in (*_masks(run), *pruned, *noise)]
    if run.epsilon is None and _may_be_private(run):
        defences.append(f"dp-sample:target_epsilon={_EPSILON}" + (f"+{_NO_STATISTICS}" if removable else ""))
    listed = " ".join(["+".join(without), *defences] if without else defences)
    # A folder of its own, as another run's search must not continue in it.
    output = shlex.quote(f"frontier-{run.name}")
    return f"fedpriv frontier --config {_config(run)} --defenses '{listed}' --target '{target}' --output {output}{_data(run)}"


def _masks(run: AuditedRun) -> list[str]:
    """A mask of the last linear layer that was sent; none where nothing else would be sent."""
    weights = [tensor for tensor in run.wire.tensors if tensor.role != "statistic" and tensor.name.endswith(".weight")]
    linear = [tensor.up for tensor in weights if len(tensor.shape) == 2]
    if not any(linear) or sum(tensor.up for tensor in weights) < 2:
        return []
    return [f"mask:last={linear[::-1].index(True) + 1}"]


def _defended(run: AuditedRun) -> str:
    return f"Measured with {_with_defence(run)}"


def _with_defence(run: AuditedRun) -> str:
    return f"{', '.join(run.defence) or 'no defence'} ({run.name})"


def _cost(run: AuditedRun, other: AuditedRun) -> str:
    if run.cost.ranked is None or other.cost.ranked is None or run.cost.metric != other.cost.metric:
        return ""
    if run.cost.metric != "accuracy":
        return f", at a {ranked(run.cost)} in place of {ranked(other.cost)}"
    return f", at an accuracy of {percent(run.cost.accuracy)} in place of {percent(other.cost.accuracy)}"
