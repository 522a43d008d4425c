"""What ``fedpriv audit`` found in an experiment's run, stored with its result: accuracy, bytes and leakage of the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit.judge import classes, images, members, rows, texts
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.images import ImageTarget
from fedpriv.audit.results.labels import LabelResult, ShadowLabels
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Outcome
from fedpriv.audit.results.rows import RowTarget
from fedpriv.audit.results.stored import audit_of, form_of, from_json
from fedpriv.audit.results.texts import TextTargetResult
from fedpriv.experiments.markdown import table
from fedpriv.experiments.results import Result, rounded

TITLE = "### What the messages leak"
TEXT = """Found by `fedpriv audit` in the same runs, from the messages that were sent.

* *round*: of the samples behind one client's message, those that the best attack reconstructed (images: mean squared error below
  0.01; texts: word for word). *copies*: how many copies of the nearest public images would pass the same threshold. If these are
  at least as many, the number after the semicolon is what the attack has below a stricter error, where it has more than the
  copies.
* *one sample each*: the same for simulated clients with a single sample.
* *members*: AUC of the best membership attack on the kept messages (0.5 is guessing); the interval holds for all attacks at once.
  *reversed*: the attack surely gives members lower scores than others, and its scores are read in the opposite order.
  *by round*: the same in each round that was looked at; the largest of several attacks is above 0.5 even where all guess.
* *classes by rule*: kept messages from which the client's set of classes was found exactly, by the last layer's gradient or the
  class centres. *by shadows*: clients whose set was found exactly by a classifier trained on messages of shadow clients, in
  the first of these rounds.
* A dash: no attack whose failure would be evidence could be mounted, so it is not known."""


@dataclass(frozen=True)
class Closer:
    """How many images were recovered with an error below a stricter ``limit``."""

    recovered: int
    limit: float


@dataclass(frozen=True)
class Samples:
    """The samples behind a message, or of simulated clients with one sample each.

    Attributes:
        client: its number, or which sum.
        recovered: by the best attack; ``None``: no attack is conclusive.
        what: ``images``, ``texts`` or ``rows``.
        copies: for how many images a copy of the nearest public one would count.
        closer: what was recovered more closely, where the copies are as many.
    """

    kind: str
    round: int
    client: int | str
    samples: int
    recovered: int | None
    attack: str | None
    what: str = "images"
    copies: int | None = None
    closer: Closer | None = None


@dataclass(frozen=True)
class Membership:
    """The best membership attack: its AUC with an interval for ``of`` attacks at once; ``reversed``: with the scores negated."""

    attack: str
    auc: float
    low: float
    high: float
    of: int
    reversed: bool = False

    @property
    def mark(self) -> str:
        return "reversed" if self.reversed else ""


@dataclass(frozen=True, kw_only=True)
class RoundMembership(Membership):
    """The best membership attack in a round."""

    round: int


@dataclass(frozen=True)
class Leaks:
    """The figures of an audit.

    Attributes:
        singles: those of which most was recovered, of clients with one sample each.
        classes: ``exact`` of ``of`` messages, by the last layer's gradient or the class centres; ``None``: neither was sent.
        options: of the audit.
    """

    answer: str
    messages: tuple[Samples, ...]
    singles: Samples | None
    members: Membership | None
    members_by_round: tuple[RoundMembership, ...]
    classes: Mapping[str, int] | None
    classes_by_shadows: Mapping[str, Any] | None
    options: Mapping[str, Any]


def leakage(run_dir: Path) -> dict[str, Any]:
    """The figures of the audit in a run's folder, as the JSON of :class:`Leaks`; empty where the run was not audited.

    Raises:
        Damaged: the report in the folder is not what fedpriv writes.
    """
    if (audited := audit_of(run_dir)) is None:
        return {}
    run, options = audited
    data: dict[str, Any] = rounded(form_of(Leaks).dump_python(_leaks(run, options), mode="json", exclude_defaults=True))
    return data


def _leaks(run: AuditedRun, options: Mapping[str, int | float | None]) -> Leaks:
    targets = [*map(_image_samples, run.images), *map(_text_samples, run.texts), *map(_row_samples, run.rows)]
    singles = [target for target in targets if target.kind != "message"]
    return Leaks(
        answer=run.concluded.words,
        messages=tuple(target for target in targets if target.kind == "message"),
        singles=max(singles, key=_share_or_unknown, default=None),
        members=_best_membership(run.membership),
        members_by_round=tuple(_by_round(run.membership)),
        classes=_classes(run.labels),
        classes_by_shadows=_classes_by_shadows(run.shadow_labels),
        options=options,
    )


def _image_samples(target: ImageTarget) -> Samples:
    if (best := images.best(target)) is None:
        return _samples(target, "images")
    rate, figures = best.rate, best.outcome.figures
    samples = _samples(target, "images", best.outcome, rate)
    if not rate.successes or figures is None:
        return samples
    copies, closer = images.beside_guesses(target, figures)
    closest = None if closer is None else Closer(closer.rate.successes, float(closer.limit))
    return replace(samples, copies=copies, closer=closest)


def _text_samples(target: TextTargetResult) -> Samples:
    best = texts.best(target)
    return _samples(target, "texts", best.outcome, best.figures.exact) if best else _samples(target, "texts")


def _row_samples(target: RowTarget) -> Samples:
    best = rows.best(target)
    return _samples(target, "rows", best.outcome, rows.recovered(best)) if best else _samples(target, "rows")


def _samples(
    target: ImageTarget | TextTargetResult | RowTarget, what: str, best: Outcome | None = None, rate: Rate | None = None
) -> Samples:
    """A target with the rate of its best attack, which may have been tried on some of the samples only."""
    client = target.sender.short if target.sender.client is None else target.sender.client
    samples, recovered = (target.samples, None) if rate is None else (rate.n, rate.successes)
    return Samples(target.kind, target.round, client, samples, recovered, None if best is None else best.attack, what)


def _share_or_unknown(target: Samples) -> tuple[float, bool]:
    """The order of targets: by the share recovered; where nothing was, a target of which it is not known comes first."""
    return (target.recovered or 0) / target.samples, target.recovered is None


def _best_membership(attacks: Sequence[MembershipOutcome]) -> Membership | None:
    """The attack with the largest area, also if its scores are read in the opposite order."""
    best, turned = members.best(attacks), members.reversed_attack(attacks)
    if best is None:
        return None
    if turned is None or best.auc >= 1 - turned.auc:
        return Membership(best.outcome.name, best.auc, **asdict(best.together))
    span = turned.together
    return Membership(turned.outcome.name, 1 - turned.auc, 1 - span.high, 1 - span.low, span.of, True)


def _by_round(attacks: Sequence[MembershipOutcome]) -> list[RoundMembership]:
    """The best attack of each round, without the rounds in which none could be mounted."""
    rounds = sorted({attack.round for attack in attacks})
    by_round = {number: _best_membership([attack for attack in attacks if attack.round == number]) for number in rounds}
    return [RoundMembership(**asdict(best), round=number) for number, best in by_round.items() if best]


def _classes(labels: Sequence[LabelResult]) -> dict[str, int] | None:
    if not classes.by_rule(labels):
        return None
    return {"exact": sum(result.exact for result in labels), "of": len(labels)}


def _classes_by_shadows(shadow: ShadowLabels | None) -> dict[str, Any] | None:
    if shadow is None:
        return None
    counts = {name: getattr(shadow, name) for name in ("round", "shadows", "wider", "unlearned", "later")}
    return asdict(shadow.report) | counts


def section(results: Mapping[str, Mapping[int, Result]]) -> list[str]:
    """A table with a row for each result of an audited run; empty where there is none."""
    audited = [
        (result, from_json(Leaks, result.leakage))
        for of_label in results.values()
        for _, result in sorted(of_label.items())
        if result.leakage
    ]
    if not audited:
        return []
    rounds = sorted({message.round for _, leaks in audited for message in leaks.messages})
    columns = ["method", "seed", "answer", *(f"round {number}" for number in rounds), "one sample each", "members", "by round"]
    columns += ["classes by rule", "by shadows"]
    return [TITLE, table(" | ".join(columns), [_row(result, leaks, rounds) for result, leaks in audited]), TEXT]


def _row(result: Result, leaks: Leaks, rounds: Sequence[int]) -> list[str]:
    best, by_rule, shadows = leaks.members, leaks.classes, leaks.classes_by_shadows
    interval = "" if best is None else "; ".join([f"{best.low:.2f} to {best.high:.2f}", *([best.mark] if best.mark else [])])
    return [
        result.label,
        str(result.seed),
        leaks.answer,
        *(_round_cell([message for message in leaks.messages if message.round == number]) for number in rounds),
        _recovered(leaks.singles),
        f"{best.auc:.2f} ({interval})" if best else "–",
        ", ".join(f"{each.round}: {each.auc:.2f} {each.mark}".strip() for each in leaks.members_by_round) or "–",
        f"{by_rule['exact']} of {by_rule['of']}" if by_rule else "–",
        f"{round(shadows['exact'] * shadows['clients'])} of {shadows['clients']}" if shadows else "–",
    ]


def _round_cell(messages: Sequence[Samples]) -> str:
    """What was recovered from each message of a round; where a message has images and texts, of either."""
    if len({message.what for message in messages}) > 1:
        return "; ".join(f"{message.what}: {_recovered(message)}" for message in messages)
    return ", ".join(map(_recovered, messages)) or "–"


def _recovered(samples: Samples | None) -> str:
    if samples is None or samples.recovered is None:
        return "–"
    beside = [f"copies {samples.copies}"] if samples.copies else []
    if samples.closer:
        beside.append(f"{samples.closer.recovered} below {samples.closer.limit:g}")
    rate = f"{samples.recovered} of {samples.samples}"
    return f"{rate} ({'; '.join(beside)})" if beside else rate
