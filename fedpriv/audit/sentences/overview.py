"""The sentences beside the answer: what was audited, how thoroughly, and what a defence cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fedpriv.attacks.core.status import Reason, ReasonKind
from fedpriv.audit.formats import changed, joined, listed, over_rounds, percent, plain, scored
from fedpriv.audit.results.audit import AuditedRun, Coverage
from fedpriv.scores.catalogue import beside, score_named

WHY_NOT_RUN: Mapping[ReasonKind, str] = {
    "budget spent": "as the budget was spent",
    "too many samples": "as too many samples or steps are behind a message",
    "too many steps": "as too many samples or steps are behind a message",
    "does not apply": "as they do not apply to what was sent",
    "other inputs": "as they do not apply to what was sent",
    "not available": "as what they need was not sent or kept",
    "not needed": "as other attacks had recovered all",
    "too few samples": "as even a perfect result could be chance",
    "control failed": "as no control shows that they work",
    "no control": "as no control shows that they work",
    "differs from controls": "as no control shows that they work",
    "same net": "as no control shows that they work",
}
"""Why attacks were not run, as the first screen says it."""
_NAMED = 5
"""Most clients that a sentence names."""


def audited(run: AuditedRun) -> str:
    """What was audited, in one line."""
    what = f"{run.method} with {run.model} on {run.dataset}"
    if run.source == "update":
        return f"one update of {what}; defence: {listed(run.defence, 'not known')}"
    share = "all" if run.participants >= run.clients else run.participants
    parts = [f"{run.clients} clients, {share} in each of {run.rounds} rounds", listed(run.defence, "no defence")]
    parts += [] if run.cost.ranked is None else [scored(run.cost, over_rounds(run.cost))]
    return f"{what}: {'; '.join(parts)}"


def thoroughness(coverage: Coverage, budget: float | None) -> str:
    """How many of the attacks were run, why the others were not, and of which clients no message was kept.

    Args:
        budget: of the audit, in seconds; ``None``: no limit.
    """
    every = len(coverage.run) + len(coverage.not_run)
    limit = "run without a limit of time" if budget is None else f"begun within the budget of {budget:g} s"
    fewer = f", {len(coverage.shortened)} of them on fewer messages or samples, as it was spent" if coverage.shortened else ""
    left_out = Counter(
        ", and on others ".join(dict.fromkeys(map(_why_not_run, (reason, *coverage.also.get(name, ())))))
        for name, reason in coverage.not_run.items()
    )
    sentences = [f"{len(coverage.run)} of {every} attacks were {limit}{fewer}."]
    if left_out:
        sentences.append(f"Not run: {'; '.join(f'{count} {why}' for why, count in left_out.most_common())}.")
    if missing := coverage.not_kept:
        who = joined(missing) if len(missing) <= _NAMED else f"the other {len(missing)}"
        were, of = "was" if len(missing) == 1 else "were", coverage.clients
        sentences.append(f"Messages of {of - len(missing)} of {of} clients were kept; {who} {were} not examined.")
    return " ".join(sentences)


def _why_not_run(reason: Reason) -> str:
    return WHY_NOT_RUN[reason.kind]


def cost_in_sentences(run: AuditedRun) -> str:
    """The cost of the defences, in sentences; no conclusion is drawn from a model at chance level."""
    cost, sentences = run.cost, []
    if cost.at_chance:
        sentences.append(
            f"The model is at chance level: within its 95 % interval, its {score_named(cost.metric).title} is no better than a "
            f"constant answer's{f' ({percent(cost.chance)})' if cost.metric == 'accuracy' else ''}."
        )
    if cost.against is not None:
        other = f"Against the undefended run {cost.against}: "
        if cost.at_chance or cost.against_at_chance:
            whose = "this model is" if not cost.against_at_chance else "both models are" if cost.at_chance else "that model is"
            other += f"{whose} at chance level, so the cost in {beside(score_named(cost.metric)).title} cannot be determined; "
        elif (change := changed(cost)) is not None:
            other += f"{change}, "
        sentences.append(f"{other}upload {plain(cost.bytes_up_ratio)} times as large.")
    elif run.defence:
        sentences.append(
            "There is no undefended run of the same method among the given ones, so the cost of the defence is not known."
        )
    else:
        sentences.append("This run has no defence, so there is no cost to report.")
    return " ".join(sentences)
