"""Attribute inference on the messages of a run: the attacker knows rows of a client but for one column, and infers it.

The other columns and the label already tell something of the hidden one. The attack's prior is therefore a logistic regression on
rows of other clients and on the client's remaining rows, which the attacker knows, as the adversary of differential privacy does.
A message also tells of the client's rows in general, for instance that all of them have a value that is missing elsewhere. This
is no finding on a single row. So the attack is compared with the best of three guesses on the same rows: the prior; the same
regression on the client's remaining rows alone; and the client's most frequent value.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from fedpriv.attacks.core.labels import groups
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.inference.attributes import log_likelihoods, positive_control, probabilities, samples, trust
from fedpriv.attacks.lab.control import Control, run_control
from fedpriv.attacks.lab.same_net import TRIED_ON, undefended
from fedpriv.attacks.lab.trial import difference_reasons
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.judge.attributes import FEW, succeeded
from fedpriv.audit.membership.member_scores import is_finite
from fedpriv.audit.progress import BudgetSpent, Progress
from fedpriv.audit.record.base import Message, Record, RegressionInputs
from fedpriv.audit.results.outcome import ControlResult, Interval
from fedpriv.audit.results.rows import AttributeFigures, AttributeOutcome
from fedpriv.audit.rows.choices import Choices, Labelled, choices_of, told_by_others
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError

ATTACK = "attribute regression"
ROWS = 32
"""Largest number of a client's rows whose hidden values are asked for."""
KNOWN = 2000
"""Largest number of the attacker's own rows, of other clients."""
LESSON = 16
"""Number of the attacker's own rows by which it learns how far to trust the likelihoods."""
REGRESSED = 64
"""Largest number of the attacker's own rows in the regression on gradients."""
FEWEST = 20
"""Least number of the attacker's own rows."""
COLUMNS = 32
"""Largest number of columns that are attacked, in turn."""
LEVEL, SURE = 0.05, 0.001
"""Significance levels: of the intervals, for all columns at once; and of controls."""
KNOWS = (
    "sees the payload, the architecture and the weights that were sent to the client",
    f"knows the client's rows and their labels, but of up to {ROWS} of them not the hidden column",
    "has rows of other clients, from which it learns, too, what the other columns and the label tell of the hidden one",
    "knows the number of samples and the client's schedule",
)


@dataclass(frozen=True)
class Attributes:
    """The outcomes of all columns and messages, the controls, and why columns or messages were left out."""

    outcomes: tuple[AttributeOutcome, ...]
    controls: tuple[ControlResult, ...]
    refused: Reason | None


@dataclass(frozen=True)
class _Named:
    """How many values of ``n`` rows were named.

    Attributes:
        both: rows whose value was named with a message, and by the best guess without it.
        gained, lost: rows whose value was named only with the message, and only by the guess.
    """

    n: int
    both: int
    gained: int
    lost: int
    cpu_seconds: float

    @classmethod
    def of(cls, right: Tensor, guessed: Tensor, cpu_seconds: float) -> _Named:
        """By whether each row's value is right ``(n,)``, with a message and without."""
        both, gained, lost = (int(rows.sum()) for rows in (right & guessed, right & ~guessed, guessed & ~right))
        return cls(len(right), both, gained, lost, cpu_seconds)

    @classmethod
    def pooled(cls, every: Sequence[_Named]) -> _Named:
        """Of several columns together."""
        n, both, gained, lost = (sum(getattr(each, name) for each in every) for name in ("n", "both", "gained", "lost"))
        return cls(n, both, gained, lost, sum(each.cpu_seconds for each in every))

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of the difference that the message makes."""
        return paired_interval(self.gained, self.lost, self.n, level)

    @property
    def figures(self) -> AttributeFigures:
        """The figures of a column; the interval is that of the column alone."""
        return AttributeFigures(
            right=wilson(self.both + self.gained, self.n), guessed=wilson(self.both + self.lost, self.n), gained=self.gained,
            lost=self.lost, together=Interval(*self.interval(LEVEL), 1), cpu_seconds=self.cpu_seconds,
        )  # fmt: skip

    @property
    def sentence(self) -> str:
        """How many were named, in words."""
        return f"{self.both + self.gained} of {self.n} hidden values, and guesses {self.both + self.lost}"


def infer_attributes(record: Record, messages: Sequence[tuple[int, int]], seed: int, progress: Progress) -> Attributes:
    """Attack each column of the rows behind some messages (round, client)."""
    outcomes, controls, reasons = list[AttributeOutcome](), list[ControlResult](), list[Reason]()
    passed = positive_control(seed)
    controls.append(ControlResult(ATTACK, **vars(passed)))
    if not passed.passed:
        return Attributes((), tuple(controls), Reason("control failed", f"its control failed: {passed.sentence}"))
    for round, client in messages:
        try:
            progress(f"attributes: round {round}, {record.sender(round, client).named}")
            of_message, its_controls = _on_message(record, round, client, seed, progress)
        except BudgetSpent as cut:
            reasons.append(cut.reason)
        except (FedprivError, Inapplicable) as error:
            reasons.append(Reason("does not apply", str(error)))
        else:
            outcomes += of_message
            controls += its_controls
    assert record.encoding is not None, "its samples are rows of a table"
    if (left := len(record.encoding.columns) - COLUMNS) > 0:
        reasons.append(Reason("not needed", f"the last {left} of {left + COLUMNS} columns were not hidden"))
    first = next(iter(reasons), None)
    why = None if first is None else Reason(first.kind, "; ".join(dict.fromkeys(reason.text for reason in reasons)))
    return Attributes(_at_once(outcomes), tuple(controls), why)


def _on_message(
    record: Record, round: int, client: int, seed: int, progress: Progress
) -> tuple[list[AttributeOutcome], list[ControlResult]]:
    """The outcomes of each column, with intervals that hold for that column alone, and the controls.

    Raises:
        BudgetSpent: before the attack begins.
        FedprivError, Inapplicable: it does not apply.
    """
    assert record.encoding is not None, "its samples are rows of a table"
    message, generator = record.message(round, client), torch.Generator().manual_seed(seed)
    if not is_finite(message.uploaded):
        raise FedprivError(f"round {round}: the message is not finite")
    own = _others(record, round, client, generator)
    held = Labelled(record.rows(client), record.labels(client))
    middle = len(own.labels) // 2
    trained, known = own.at(slice(min(len(held.labels), middle))), own.at(slice(middle, None))
    held = held.at(torch.isin(groups(held.labels), groups(known.labels)))
    held = held.at(torch.randperm(len(held.labels), generator=generator))
    asked, rest = held.at(slice(ROWS)), held.at(slice(ROWS, None))
    if not len(asked.labels):
        raise FedprivError(f"round {round}: no other client has rows of the client's classes")
    progress.in_time()
    inputs = record.regression(message, Split(trained.rows, trained.labels))
    columns = list(choices_of(record.encoding, known.rows))[:COLUMNS]
    trained = trained.at(torch.isin(groups(trained.labels), groups(known.labels)))
    lesson = _Lesson(inputs.messages[1], trained.at(slice(LESSON)), trained.at(slice(LESSON, None)), known, inputs)
    named = [_ask(lesson, inputs.messages, choices, asked, rest) for choices in columns]
    observed, sender = inputs.messages[0], record.sender(round, client)
    negative = _negative([pair[1] for pair in named], round)
    controls, on_message = [ControlResult(ATTACK, **vars(negative))], [pair[0] for pair in named]
    reasons: tuple[Reason, ...] = difference_reasons(observed.control_differences)
    if negative.passed and not reasons and not any(each.interval(LEVEL / len(named))[0] > 0 for each in on_message):
        same_net = _same_net(record, message, inputs, columns, trained, known, seed)
        controls += [] if same_net is None else [ControlResult(ATTACK, **vars(same_net))]
        if same_net is None:
            unkept = "the client's private layers were not kept, so that it could not be tried on undefended messages of this net"
            reasons = (Reason("no control", unkept),)
        elif not same_net.passed:
            reasons = (Reason("same net", same_net.sentence),)
    outcomes = []
    for choices, each in zip(columns, on_message, strict=True):
        outcome = AttributeOutcome(
            attack=ATTACK, status=Status("inconclusive", reasons), knows=KNOWS, budget="no optimisation", round=round,
            sender=sender, column=choices.column, values=len(choices.entries),
        )  # fmt: skip
        if negative.passed:
            outcomes.append(replace(outcome, figures=each.figures))
        else:
            failed = Reason("control failed", f"its negative control failed: {negative.sentence}")
            outcomes.append(replace(outcome, status=Status.not_run(failed)))
    return outcomes, controls


def _others(record: Record, round: int, client: int, generator: torch.Generator) -> Labelled:
    """The attacker's own rows, in random order: those of other clients; where there are none, of the data set's test split."""
    behind = set(record.behind(round, client))
    others = [other for other in record.holders() if other not in behind]
    if others:
        own = Labelled(torch.cat([record.rows(other) for other in others]), torch.cat([record.labels(other) for other in others]))
    else:
        public = record.public_rows()
        own = Labelled(public, record.server_labels().cpu()[: len(public)])
    if len(own.labels) < FEWEST:
        raise FedprivError(f"other clients have {len(own.labels)} rows, and {FEWEST} are needed")
    return own.at(torch.randperm(len(own.labels), generator=generator)[:KNOWN])


@dataclass(frozen=True)
class _Lesson:
    """What the attacker has besides the messages that it attacks.

    Attributes:
        message: a message on rows that the attacker knows: on ``rows``, by which it learns, and on ``others``.
        known: further rows that it knows.
    """

    message: Observation
    rows: Labelled
    others: Labelled
    known: Labelled
    inputs: RegressionInputs

    def likelihoods(
        self, messages: Sequence[Observation], choices: Choices, prior: Tensor, asked: Labelled, others: Labelled
    ) -> list[Tensor]:
        """The log-likelihoods of each value of the asked rows, for each message on them and on ``others``."""
        values, device = len(choices.entries), next(iter(self.inputs.path[0].values())).device
        completed = samples(choices.completed(asked.rows).to(device), asked.labels.repeat_interleave(values).to(device))
        few = self.known.at(_some_of_each(groups(self.known.labels), groups(asked.labels)))
        public = samples(few.rows.to(device), few.labels.to(device))
        certain = samples(others.rows.to(device), others.labels.to(device)) if len(others.labels) else None
        return log_likelihoods(messages, completed, prior, public, self.inputs.path, self.inputs.clip, certain)

    def trust(self, choices: Choices) -> float:
        """How far the attacker trusts likelihoods, as learned from the message whose rows it knows."""
        prior = told_by_others(choices, self.known.beside(self.others), self.rows)
        (learned,) = self.likelihoods([self.message], choices, prior, self.rows, self.others)
        return trust(prior, learned, choices.of(self.rows.rows))


def _ask(lesson: _Lesson, messages: Sequence[Observation], choices: Choices, asked: Labelled, rest: Labelled) -> list[_Named]:
    """The values of a column that each message names, for the asked rows.

    Args:
        rest: the client's remaining rows.
    """
    began = time.process_time()
    true, prior = choices.of(asked.rows), told_by_others(choices, lesson.known.beside(rest), asked)
    guesses = [prior.argmax(1), true.mode().values.expand_as(true)]
    if len(rest.labels) >= FEWEST:
        guesses.append(told_by_others(choices, rest, asked).argmax(1))
    guessed = max((guess == true for guess in guesses), key=lambda right: int(right.sum()))
    power = lesson.trust(choices)
    named = [probabilities(prior, each, power).argmax(1) for each in lesson.likelihoods(messages, choices, prior, asked, rest)]
    seconds = (time.process_time() - began) / len(messages)
    return [_Named.of(values == true, guessed, seconds) for values in named]


def _some_of_each(labels: Tensor, wanted: Tensor) -> Tensor:
    """Positions of at most :data:`REGRESSED` samples of the wanted classes, shared out equally among the classes."""
    classes = torch.unique(wanted)
    each = max(1, REGRESSED // len(classes))
    return torch.cat([(labels == label).nonzero().flatten()[:each] for label in classes])


def paired_interval(gained: int, lost: int, n: int, level: float) -> tuple[float, float]:
    """The interval of the difference between two shares of the same ``n`` rows (Agresti & Min 2005, "adjusted Wald").

    Args:
        gained, lost: rows that only the first has right, and only the second.
    """
    more, less, total = gained + 0.5, lost + 0.5, n + 2
    difference = (more - less) / total
    error = sqrt(more + less - (more - less) ** 2 / total) / total
    z = NormalDist().inv_cdf(1 - level / 2)
    return max(-1.0, difference - z * error), min(1.0, difference + z * error)


def _at_once(outcomes: Sequence[AttributeOutcome]) -> tuple[AttributeOutcome, ...]:
    """The outcomes with intervals that hold for all of them at once (Bonferroni), and judged by these."""
    count, judged = sum(outcome.figures is not None for outcome in outcomes), list[AttributeOutcome]()
    for outcome in outcomes:
        if (figures := outcome.figures) is not None:
            level, n = LEVEL / count, figures.right.n
            span = paired_interval(figures.gained, figures.lost, n, level)
            every, _ = paired_interval(n - figures.guessed.successes, 0, n, level)
            figures = replace(figures, together=Interval(*span, count))
            few = () if every > 0 else (Reason("too few samples", FEW),)
            outcome = replace(outcome, figures=figures, status=Status.of(succeeded(figures), (*few, *outcome.status.reasons)))
        judged.append(outcome)
    return tuple(judged)


def _negative(named: Sequence[_Named], round: int) -> Control:
    """A message of other rows must name no more than the other columns tell, over all columns."""
    every = _Named.pooled(named)
    low, high = every.interval(SURE)
    sentence = (
        f"round {round}: a message of a client that trained on none of the rows named {every.sentence} (99.9 % interval of the "
        f"difference {low:+.2f} to {high:+.2f}; it must not lie above 0)"
    )
    return Control("negative", low <= 0, sentence, every.cpu_seconds)


def _same_net(
    record: Record, message: Message, inputs: RegressionInputs, columns: Sequence[Choices], client: Labelled, known: Labelled,
    seed: int,
) -> Control | None:  # fmt: skip
    """Whether the attack names values of the attacker's own rows in an undefended message of this net on them, with the same
    steps; ``None``: the weights at which the client began were not kept."""
    weights = record.started(message) or record.started(replace(message, first_update=True))
    if weights is None or len(client.labels) < 2:
        return None
    cut = min(LESSON, len(client.labels) // 2)
    asked = client.at(slice(cut, cut + ROWS))
    rest = client.at(slice(cut)).beside(client.at(slice(cut + ROWS, None)))

    def check() -> tuple[bool, str]:
        sent = undefended(inputs.messages[0], weights, client.rows, client.labels, seed)
        lesson = _Lesson(sent, client.at(slice(cut)), client.at(slice(cut, None)), known, replace(inputs, clip=None))
        every = _Named.pooled([_ask(lesson, [sent], choices, asked, rest)[0] for choices in columns])
        low, high = every.interval(LEVEL)
        return low > 0, (
            f"from {TRIED_ON} on {len(client.labels)} rows of other clients, {ATTACK} names {every.sentence} (95 % interval of "
            f"the difference {low:+.2f} to {high:+.2f}; it must lie above 0)"
        )

    return run_control("same net", ATTACK, TRIED_ON, check)
