"""The results of an audit as typed records: an :class:`Audit` of runs, each with the outcome of every attack on it.

``audit.json`` has the form of these classes (:func:`to_json`, :func:`from_json`); :attr:`Audit.format` is its version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.inference.canaries import CanaryBound
from fedpriv.attacks.inference.membership import Use
from fedpriv.attacks.inference.membership_controls import Kind as MembershipStatistic
from fedpriv.attacks.inference.shadow import ShadowReport
from fedpriv.attacks.scoring.operating_points import OperatingPoints
from fedpriv.attacks.scoring.scores import Rate, counts
from fedpriv.files import Damaged, load_json
from fedpriv.samples import Modality
from fedpriv.scores.catalogue import SCORES, score_named
from fedpriv.tracking.folder import read_run

if TYPE_CHECKING:
    from pydantic import TypeAdapter

TargetKind = Literal["message", "single image", "single text", "single row"]
"""A message that a client sent, or messages of clients with one sample each, which the audit simulated (the easiest case)."""
Part = Literal[
    "images", "single images", "texts", "single texts", "rows", "single rows", "attributes", "classes", "class centres",
    "shadow clients", "mean colour", "membership", "single uploads", "single samples", "buffers", "statistics",
]  # fmt: skip
"""A part of an audit that can be left out as a whole."""


@dataclass(frozen=True)
class Sender:
    """The sender of a message: a client, or several clients whose uploads were summed.

    Attributes:
        client: its number; ``None``: a sum.
        clients: how many are in the sum; ``trained``: how many of them had a batch to train on.
        name: of the client, where it has one.
    """

    client: int | None
    clients: int = 1
    trained: int = 1
    name: str = ""

    @property
    def short(self) -> str:
        """``3``, or ``sum of 10``."""
        if self.client is not None:
            return self.name or str(self.client)
        return f"sum of {self.clients}{self._few}"

    @property
    def named(self) -> str:
        """``client 3``, or ``sum of 10``."""
        return self.short if self.client is None else f"client {self.short}"

    def message_of(self, round: int) -> str:
        """``client 3's message of round 1``, or ``the sum of 10 clients' uploads of round 1``."""
        if self.client is not None:
            return f"client {self.short}'s message of round {round}"
        return f"the sum of {self.clients} clients' uploads of round {round}{self._few}"

    @property
    def _few(self) -> str:
        return f" (only {self.trained} trained)" if self.trained < self.clients else ""


@dataclass(frozen=True)
class ControlResult:
    """A control of an attack; ``name``: ``positive``, ``negative``, or ``same net``."""

    attacker: str
    name: str
    passed: bool
    sentence: str
    cpu_seconds: float | None


def distinct(controls: Iterable[ControlResult]) -> tuple[ControlResult, ...]:
    """The controls without those that differ from another in their cost alone."""
    return tuple({(control.attacker, control.name, control.sentence): control for control in controls}.values())


@dataclass(frozen=True)
class Interval:
    """A 95 % interval that holds for ``of`` attacks at once (Bonferroni)."""

    low: float
    high: float
    of: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one attack on one target.

    Attributes:
        attack: its name in tables.
        knows: what the attacker was assumed to know, in sentences.
        budget: in words; ``None``: it has none.
        statistic: the statistic of the message that was attacked; ``None``: the model's change was.
    """

    attack: str
    status: Status
    knows: tuple[str, ...] = ()
    budget: str | None = None
    statistic: str | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A message, or messages of clients with one sample each, with every attack on it."""

    title: str
    kind: TargetKind
    round: int
    sender: Sender
    samples: int
    outcomes: tuple[Any, ...]

    def only(self, outcomes: Iterable[Outcome]) -> Self:
        """The target with these of its outcomes."""
        return replace(self, outcomes=tuple(outcomes))

    def part(self, statistic: str | None) -> Self:
        """The target with the outcomes on one statistic; ``None``: those on the model's change."""
        return self.only(outcome for outcome in self.outcomes if outcome.statistic == statistic)

    def parts(self) -> list[Self]:
        """One target for the model's change and one for each statistic: a failure on one is no evidence on another."""
        return [self.part(statistic) for statistic in dict.fromkeys(outcome.statistic for outcome in self.outcomes)]


@dataclass(frozen=True)
class RecoveryRate:
    """How many images were recovered; ``limit``: the threshold of the mean squared error, such as ``0.01``."""

    rate: Rate
    limit: str


@dataclass(frozen=True, kw_only=True)
class ImageFigures:
    """The figures of an attack on images; thresholds of the mean squared error are keys such as ``0.01``.

    Attributes:
        success: threshold -> rate of images with a smaller error.
        public_successes: threshold -> how many the nearest public image would recover; ``None``: the attacker knows none.
        label_accuracy: ``None``: it guesses no labels.
        psnr_median_db: ``None``: infinite, as images are exact.
        lpips_missing, feature_distance_missing: why there is no such figure.
        curve: (step, median loss over the messages).
    """

    success: Mapping[str, Rate]
    public_successes: Mapping[str, int] | None
    label_accuracy: float | None
    mse_median: float
    mse_best: float
    psnr_median_db: float | None
    ssim_median: float
    lpips_median: float | None
    lpips_missing: str | None
    feature_distance_median: float | None
    feature_distance_missing: str | None
    cpu_seconds: float
    images_per_cpu_second: float | None
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageOutcome(Outcome):
    """An attack on images.

    Attributes:
        figures: ``None``: it was not run.
        cut: why it was not tried on further images.
    """

    figures: ImageFigures | None = None
    cut: Reason | None = None


@dataclass(frozen=True)
class Baseline:
    """A guess made without the message; ``success``: threshold -> rate of images that it recovers."""

    mse_median: float
    success: Mapping[str, Rate]


@dataclass(frozen=True, kw_only=True)
class ImageTarget(Target):
    """Attacked images.

    Attributes:
        baselines: by name.
        note: of image-text pairs, what the attacker knows of the texts.
        picture: file name of the reconstructions; ``picture_note``: which ones it shows.
    """

    outcomes: tuple[ImageOutcome, ...]
    baselines: Mapping[str, Baseline]
    note: str | None = None
    picture: str | None = None
    picture_note: str | None = None

    @property
    def baseline_successes(self) -> Mapping[str, Mapping[str, int]]:
        """Baseline -> threshold -> number of images that it recovers."""
        return {name: counts(baseline.success) for name, baseline in self.baselines.items()}


@dataclass(frozen=True, kw_only=True)
class TextScoreMeans:
    """Scores of texts: means of precision and recall over messages, of ROUGE-L over sentences; ``None``: not measured.

    Attributes:
        exact: rate of sentences recovered word for word; ``None``: the attack finds no order.
        named: rate of the named tokens that are right.
    """

    recall: float | None
    precision: float | None
    multiset_recall: float | None
    multiset_precision: float | None
    rouge_l: float | None
    exact: Rate | None
    labels: Rate | None
    named: Rate | None


@dataclass(frozen=True)
class TextExample:
    """The first few of a message's ``sentences``, and the recovered ones, or the recovered tokens."""

    true: tuple[str, ...]
    recovered: tuple[str, ...]
    sentences: int


@dataclass(frozen=True, kw_only=True)
class TextFigures(TextScoreMeans):
    """The figures of an attack on texts.

    Attributes:
        by_frequency: precision of naming as many of the most frequent public words; ``None``: the attack named no word.
        messages, refused: how many were attacked, and on how many of these it could not be mounted.
        notes: a sentence for each message.
    """

    by_frequency: float | None
    messages: int
    refused: int
    loss_median: float | None
    notes: tuple[str, ...]
    examples: tuple[TextExample, ...]
    cpu_seconds: float


@dataclass(frozen=True)
class PartialLeakage:
    """What messages reveal where sentences cannot be recovered: rates of correct inferences.

    Attributes:
        labels: over all sentences.
        longest, total: the number of tokens of the longest sentence, and of all together; over all messages.
    """

    labels: Rate
    longest: Rate
    total: Rate

    @property
    def sentence(self) -> str:
        """The correct inferences in words."""
        rates = {"labels": self.labels, "longest sentences (in tokens)": self.longest, "total numbers of tokens": self.total}
        parts = [f"{rate.successes} of {rate.n} {name}" for name, rate in rates.items() if rate.successes]
        return f"still inferred correctly: {', '.join(parts) or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class TextOutcome(Outcome):
    """An attack on texts.

    Attributes:
        figures: ``None``: it was not run.
        partial_leakage: what else the messages reveal, where it could not be mounted.
    """

    figures: TextFigures | None = None
    partial_leakage: PartialLeakage | None = None


@dataclass(frozen=True, kw_only=True)
class TextTargetResult(Target):
    """Attacked texts; ``baseline``: random words."""

    outcomes: tuple[TextOutcome, ...]
    baseline: TextScoreMeans


@dataclass(frozen=True, kw_only=True)
class RowRates:
    """How many cells of a table are right, and how many rows in every cell."""

    cells: Rate
    rows: Rate


@dataclass(frozen=True)
class CellExample:
    """A cell of an example row, decoded; ``guessed``: the column's most frequent value."""

    column: str
    true: str
    recovered: str
    guessed: str
    right: bool


@dataclass(frozen=True)
class RowExample:
    """A row and its reconstruction, cell by cell; ``right``: how many cells are right."""

    cells: tuple[CellExample, ...]

    @property
    def right(self) -> int:
        """How many cells are right."""
        return sum(cell.right for cell in self.cells)


@dataclass(frozen=True, kw_only=True)
class RowFigures(RowRates):
    """The figures of an attack on rows of a table.

    Attributes:
        numbers, categories: the cells of either kind of column; ``None``: the table has none.
        labels: ``None``: it guesses no labels.
        sure: the rows that are right in every cell, and hardly by chance (:func:`fedpriv.attacks.scoring.row_scores.sure_rows`).
        by_chance: the probability that guesses are right in as many cells, row by row; see :mod:`fedpriv.audit.rows.figures`.
        example: the row that it recovered best.
    """

    numbers: Rate | None
    categories: Rate | None
    labels: Rate | None
    sure: Rate
    by_chance: float
    example: RowExample
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class RowOutcome(Outcome):
    """An attack on rows of a table; ``figures``: ``None``: it was not run."""

    figures: RowFigures | None = None


@dataclass(frozen=True, kw_only=True)
class RowTarget(Target):
    """Attacked rows of a table.

    Attributes:
        columns: their number.
        baselines: guesses made without the message, by name.
    """

    outcomes: tuple[RowOutcome, ...]
    columns: int
    baselines: Mapping[str, RowRates]


@dataclass(frozen=True, kw_only=True)
class AttributeFigures:
    """How many hidden values of a column were named by an attack on a message, and by the other columns alone.

    Attributes:
        right: with the message; ``guessed``: without it, by the same attacker on the same rows.
        gained, lost: rows that are right only with the message, and only without it.
        together: the interval of :attr:`advantage` that holds for all columns of all messages at once.
    """

    right: Rate
    guessed: Rate
    gained: int
    lost: int
    together: Interval
    cpu_seconds: float

    @property
    def advantage(self) -> float:
        """The difference of the two shares."""
        return self.right.share - self.guessed.share


@dataclass(frozen=True, kw_only=True)
class AttributeOutcome(Outcome):
    """Attribute inference of one column from one message.

    Attributes:
        values: the number of its values; of numbers, of their ranges.
        figures: ``None``: it was not run.
    """

    round: int
    sender: Sender
    column: str
    values: int
    figures: AttributeFigures | None = None


@dataclass(frozen=True, kw_only=True)
class CenterOutcome:
    """Images recovered from the class centres of a message. There is no control, so that a failure is no evidence.

    Attributes:
        classes: whose centres were sent; ``samples_per_class``: how many samples of each the client has.
        mse_median: median error of the recovered image to the mean image of its class; ``baseline_mse_median``: the same error of
            the mean of public images.
        success: threshold -> rate of centres that gave an image away; ``public_successes``: threshold -> how many guesses would.
        recovered: the rate at the loosest threshold at which it exceeds that of guesses; 0 where there is none.
        distance_of_truth, distance_of_recovered: from an embedding to the centre, as a share of its squared length; ``None``:
            not finite.
    """

    round: int
    sender: Sender
    classes: tuple[int, ...]
    samples_per_class: tuple[int, ...]
    mse_median: float
    baseline_mse_median: float
    success: Mapping[str, Rate]
    public_successes: Mapping[str, int]
    recovered: RecoveryRate
    distance_of_truth: float | None
    distance_of_recovered: float | None
    picture: str | None = None


@dataclass(frozen=True, kw_only=True)
class MeanColour:
    """The mean colour of a client's images, estimated from running statistics, in [0, 1] by channel; errors are means."""

    round: int
    sender: Sender
    estimate: tuple[float, ...]
    true: tuple[float, ...]
    error: float
    baseline_error: float


@dataclass(frozen=True, kw_only=True)
class LabelResult:
    """The classes of a client by the best rule, from one message or from all of its messages together.

    Attributes:
        round: ``None``: from all messages together.
        rule: the best rule for sets that applies; ``None``: none does. ``stated``: the classes were read in clear.
        classes: how many the data set has.
        true, inferred: the client's classes.
        count_rule, count_accuracy: the best rule for counts, and the share of samples with the right label by it.
        count_guess: the share of samples with the right label by equal counts of all classes.
        rules: how many rules apply to some message; the best of them is shown.
        guess: the share of clients whose set is that of the best constant guess; ``None``: not known.
        note: why no rule applies.
        limit: why a failure is no evidence; ``None``: it is evidence.
        messages: how many are read together; ``single_exact``: how many of them are exact on their own;
            ``single_count_accuracy``: their mean accuracy of counts.
    """

    round: int | None
    sender: Sender
    rule: str | None
    stated: bool
    classes: int
    true: tuple[int, ...]
    inferred: tuple[int, ...]
    count_rule: str | None
    count_accuracy: float | None
    count_guess: float
    rules: int
    guess: float | None
    note: str | None = None
    limit: str | None = None
    messages: int = 1
    single_exact: int | None = None
    single_count_accuracy: float | None = None

    @property
    def exact(self) -> bool:
        """Whether the set of classes is right."""
        return self.true == self.inferred

    @property
    def lacks_a_class(self) -> bool:
        """Whether the client lacks some class; the set of one that holds every class reveals nothing."""
        return len(self.true) < self.classes


@dataclass(frozen=True, kw_only=True)
class LabelRule:
    """A rule for labels, over all messages.

    Attributes:
        rests_on: what it uses and assumes.
        messages: to how many it applies.
        exact: rate of right sets; ``together``: its interval for all rules at once. ``None``: it applies to no message.
        count_accuracy: mean share of samples with the right label; ``None``: it gives no counts.
        best, best_counts: whether it is the best rule for sets, and for counts.
        not_applicable: why it does not apply to some messages.
    """

    rule: str
    rests_on: str
    messages: int
    exact: Rate | None
    together: Interval | None
    count_accuracy: float | None
    best: bool
    best_counts: bool
    not_applicable: str | None


@dataclass(frozen=True)
class ShadowLabels:
    """The classes of clients by a classifier trained on messages of simulated (shadow) clients.

    Attributes:
        wider: how many of the clients that lack a class hold more classes than any shadow client.
        unlearned: how many of the others have a set that the classifier never predicts.
        later: how many kept something from an earlier local update.
    """

    report: ShadowReport
    round: int
    shadows: int
    wider: int
    unlearned: int
    later: int


@dataclass(frozen=True, kw_only=True)
class MembershipOutcome(Outcome):
    """A membership attack in one round, on the kept messages of its clients (``senders``).

    Attributes:
        uses: the score taken from the message, such as confidence; ``use``: how scores are compared, such as LiRA. ``None``: no
            attack of the round was run.
        extent: how many shadow models or rounds it used, in words.
        points: ``None``: it was not run.
        together: the interval of the AUC that holds for all attacks of all rounds.
        epsilon_lower: the lower bound of epsilon that it shows; ``None``: none is shown.
    """

    round: int
    senders: tuple[Sender, ...] = ()
    uses: MembershipStatistic | None = None
    use: Use | None = None
    extent: str = ""
    points: OperatingPoints | None = None
    together: Interval | None = None
    epsilon_lower: float | None = None

    @property
    def name(self) -> str:
        """The attack's name with its extent."""
        return f"{self.attack} ({self.extent})" if self.extent else self.attack


@dataclass(frozen=True, kw_only=True)
class KnownMembers:
    """Training samples that were reconstructed from a message, and are therefore known members."""

    round: int
    sender: Sender
    what: Literal["images", "texts", "rows"]
    attack: str
    rate: Rate


@dataclass(frozen=True)
class Canaries:
    """Lower bounds of a run's epsilon from its canaries, at ``delta`` and ``confidence``; ``claim``: the accountant's epsilon."""

    canaries: int
    used: int
    claim: float
    delta: float
    confidence: float
    bounds: tuple[CanaryBound, ...]

    @property
    def best(self) -> CanaryBound:
        """The largest lower bound."""
        return max(self.bounds, key=lambda bound: bound.epsilon)


@dataclass(frozen=True)
class EpsilonBounds:
    """Bounds on the epsilon of the attacked clients' local updates, at ``delta``.

    Attributes:
        lower: the largest lower bound of ``each`` (one training run, many samples: Steinke et al. 2023), at ``confidence``.
        each: the lower bound from each set of scores; they hold simultaneously.
        lower_by_rates: from Clopper-Pearson bounds on true and false positives, as if samples were independent trials.
        samples: how many are behind the bounds.
        upper_update: the accountant's epsilon of the attacked round, for the sample that spent most; ``None``: no such DP.
            For a sample that several clients hold, the local updates of all of them count.
        upper_so_far: the same for the local updates up to this round; ``upper_run``: for the whole run.
        about: which bounds can be compared.
    """

    lower: float
    each: tuple[float, ...]
    lower_by_rates: float
    delta: float
    confidence: float
    samples: int
    upper_update: float | None
    upper_so_far: float | None
    upper_run: float | None
    about: str


@dataclass(frozen=True, kw_only=True)
class Epsilon:
    """The accountant's epsilon beside lower bounds.

    Attributes:
        upper: the accountant's epsilon at ``delta``, for a ``level`` (client or sample).
        by_attack: bounds from membership attacks; ``None``: there are none.
        statement: what the accountant's epsilon holds for, in sentences.
    """

    upper: float
    delta: float
    level: str
    accountant: str
    by_attack: EpsilonBounds | None
    canaries: Canaries | None
    statement: tuple[str, ...]

    @property
    def lower(self) -> float | None:
        """The bound from membership attacks, where it can be compared with the accountant's epsilon."""
        return self.by_attack.lower if self.by_attack is not None and self.level == "sample" else None


@dataclass(frozen=True)
class Value:
    """A figure of an attack with its 95 % interval; ``n``: the number of samples, or of messages for labels."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class SumComparison:
    """An attack on the sums that the server saw, beside the same on the uploads behind them; ``None``: not mounted there."""

    measure: Literal["images", "texts", "rows", "cells", "label sets", "membership"]
    attack: str
    on_sums: Value | None
    on_uploads: Value | None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run cost: accuracies in [0, 1], bytes and seconds of the whole run; ``None``: not measured.

    Attributes:
        metric: the score that the run is ranked by (``eval.metric``), and ``score`` its value if it is not the accuracy.
        worst_tenth: accuracy of the worst tenth of the clients; of a regression, this score.
        chance: accuracy of the best constant answer; ``at_chance``: the model is no better, within its 95 % interval,
            by the score that it is ranked by.
        probes: results of ``fedpriv probe``.
        against: name of the audited run without defences that is otherwise the same; ``against_at_chance``: whether that run is
            at chance; ``accuracy_difference``, ``score_difference``, ``bytes_up_ratio``: the differences from it, and the ratio.
    """

    accuracy: float | None = None
    worst_tenth: float | None = None
    chance: float | None = None
    at_chance: bool = False
    bytes_up: int
    bytes_down: int | None = None
    seconds: float | None = None
    probes: tuple[ProbeResult, ...] = ()
    against: str | None = None
    against_at_chance: bool | None = None
    accuracy_difference: float | None = None
    bytes_up_ratio: float | None = None
    metric: str = "accuracy"
    score: float | None = None
    score_difference: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in SCORES:  # an audit may come from elsewhere
            raise ValueError(f"{self.metric!r} is no score")

    @property
    def ranked(self) -> float | None:
        """The score that the run is ranked by."""
        return self.accuracy if self.metric == "accuracy" else self.score

    @property
    def merit(self) -> float:
        """By which runs are ranked, more is better; minus infinity: not measured."""
        return -math.inf if self.ranked is None else score_named(self.metric).merit(self.ranked)


@dataclass(frozen=True)
class ProbeResult:
    """Accuracy of a linear classifier on the run's encoder, trained on a ``fraction`` of the labels of ``dataset``."""

    fraction: float
    dataset: str
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """A tensor of the net or of a message.

    Attributes:
        role: the part of the net, or ``statistic``.
        dtype: as safetensors names it.
        up, down, broadcast: whether it was uploaded, downloaded, sent in round 0.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    up: bool
    down: bool
    broadcast: bool

    @property
    def was_sent(self) -> bool:
        """Whether it was ever sent, in either direction."""
        return self.up or self.down or self.broadcast


@dataclass(frozen=True)
class RoundTraffic:
    """Bytes of all messages of a round."""

    round: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Schema:
    """Messages of the same names, types and shapes."""

    hash: str
    tensors: int
    bytes: int
    messages: tuple[str, ...]


@dataclass(frozen=True)
class Wire:
    """What was sent in the kept messages; ``facts``: what a message states besides tensors."""

    tensors: tuple[TensorInfo, ...] = ()
    facts: tuple[str, ...] = ()
    rounds: tuple[RoundTraffic, ...] = ()
    schemas: tuple[Schema, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToldBefore:
    """What a message of before round 1 says of training samples.

    Attributes:
        client: whose samples they are; ``None``: those of all clients together.
        column: of a table, or a channel; empty: all of the samples.
        bytes: of the message.
    """

    client: int | None
    column: str
    says: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A statistic that is sent besides the layers that give the logits.

    Attributes:
        tensors, bytes: in a message.
        says: what it reveals of a client.
        known: whether this audit knows what it is.
        gradient: whether it is a gradient, and is attacked as one.
        otherwise: how else it is attacked; empty: it is not.
    """

    what: str
    tensors: int
    bytes: int
    says: str
    known: bool
    gradient: bool
    otherwise: str

    @property
    def attacked(self) -> str:
        """How it is attacked, in words; empty: it is not."""
        return "as a gradient" if self.gradient else self.otherwise


@dataclass(frozen=True)
class SignalToNoise:
    """Signal-to-noise ratio in dB of a layer that noise was added to, over the rounds."""

    layer: str
    min: float
    median: float
    rounds: int


@dataclass(frozen=True)
class Coverage:
    """Which attacks an audit ran on a run, by name: a name counts once, on however many messages.

    Attributes:
        run: attacks that were run on some message.
        shortened: those of them that the audit's budget kept from further messages or samples.
        not_run: why the others were not run.
    """

    run: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    not_run: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The answer for a run.

    Attributes:
        level: its place in :data:`fedpriv.audit.answer.WORDS`, worst first.
        sentence: the finding behind it; ``picture``: file name of one that shows it; ``roc``: the membership curves show it.
        not_tried: attacks that were not mounted, and why.
        change, command: what to do, and the command that does it.
        coverage: which attacks were run; ``None``: an audit of an earlier version does not say.
    """

    words: str
    level: int
    sentence: str
    picture: str | None = None
    roc: bool = False
    not_tried: tuple[str, ...] = ()
    change: str = ""
    command: str | None = None
    coverage: Coverage | None = None


@dataclass(frozen=True)
class About:
    """What a person says of a run: its title, who answers for it, and what the data are; ``None``: nothing."""

    title: str | None = None
    owner: str | None = None
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """One audited run, or one update of a training loop.

    Attributes:
        source: where its messages come from: a run, one update, or a record of a federation elsewhere. What only a run has is
            empty for the others.
        modalities: of its samples; empty: rows of a table.
        client_names, class_names: by number; empty where they are numbers.
        participants: clients in a round.
        defence: transforms, secure aggregation and differential privacy, as they are named.
        server_knows, outsider_knows, conditions: in sentences; ``batch_norm``: whether the net normalises by the batch.
        no_dp: whether sample-level differential privacy is refused for its method, its training, or columns without bounds.
        before: what the clients told of their samples before round 1.
        exposed: kinds of statistics that are sent unaltered although a defence alters the model.
        attributes: an outcome for each column and attacked message, also of those that were not run.
        membership: an outcome for each attack and round, also of those that were not run.
        membership_limit: why a failure to identify members is no evidence; ``None``: it is evidence.
        about: what a person says of the run.
        not_run: parts of the audit that were left out, and why.
        comparison: attacks on sums beside those on single uploads; ``None``: the run has no secure aggregation.
        seconds: step -> CPU seconds.
        metrics: the leakage in numbers, by name (:mod:`fedpriv.audit.judge.measures`).
    """

    name: str
    run_id: str
    run_dir: str = ""
    source: Literal["run", "update", "record"] = "run"
    method: str
    title: str
    paper: str = ""
    dataset: str
    model: str
    modalities: tuple[Modality, ...]
    seed: int
    client_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    clients: int = 1
    participants: int = 1
    rounds: int = 1
    defence: tuple[str, ...] = ()
    summed: bool = False
    git_commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    partition_hash: str | None = None
    config_yaml: str = ""
    about: About = About()
    cost: Cost
    snr: tuple[SignalToNoise, ...] = ()
    wire: Wire = field(default_factory=Wire)
    server_knows: tuple[str, ...] = ()
    outsider_knows: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    batch_norm: bool = False
    no_dp: bool = False
    before: tuple[ToldBefore, ...] = ()
    statistics: tuple[Statistic, ...] = ()
    exposed: tuple[str, ...] = ()
    images: tuple[ImageTarget, ...] = ()
    texts: tuple[TextTargetResult, ...] = ()
    rows: tuple[RowTarget, ...] = ()
    attributes: tuple[AttributeOutcome, ...] = ()
    attribute_controls: tuple[ControlResult, ...] = ()
    centers: tuple[CenterOutcome, ...] = ()
    mean_colours: tuple[MeanColour, ...] = ()
    labels: tuple[LabelResult, ...] = ()
    label_rules: tuple[LabelRule, ...] = ()
    labels_over_rounds: tuple[LabelResult, ...] = ()
    shadow_labels: ShadowLabels | None = None
    membership: tuple[MembershipOutcome, ...] = ()
    membership_controls: tuple[ControlResult, ...] = ()
    membership_limit: str | None = None
    known_members: tuple[KnownMembers, ...] = ()
    epsilon: Epsilon | None = None
    controls: tuple[ControlResult, ...] = ()
    not_run: Mapping[Part, Reason] = field(default_factory=dict)
    comparison: tuple[SumComparison, ...] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    verdict: tuple[str, ...] = ()
    answer: Answer | None = None

    @property
    def concluded(self) -> Answer:
        """The answer, which every finished audit has."""
        assert self.answer is not None, "the audit is not finished"
        return self.answer


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Audited runs side by side.

    Attributes:
        created: ISO 8601.
        seconds: of wall time.
        command: as it was typed.
        options: of the audit, by name.
        controls: controls of the attacks on samples, without repetitions.
        format: version of the JSON form; it rises if a reader of the previous version would fail or misread.
    """

    created: str
    seconds: float
    fedpriv: str
    command: str
    options: Mapping[str, int | float | None]
    controls: tuple[ControlResult, ...]
    runs: tuple[AuditedRun, ...]
    format: Literal[2] = 2


T = TypeVar("T")


def reworded(results: T, word: Callable[[str], str]) -> T:
    """Results with other words for the reasons in them, such as with a net's own names of layers. Those of controls that failed
    are on other nets, and stay."""
    if isinstance(results, Reason):
        return results if results.kind == "control failed" else replace(results, text=word(results.text))
    if isinstance(results, tuple):
        return tuple(reworded(it, word) for it in results)  # type: ignore[return-value]
    if isinstance(results, dict):
        return {name: reworded(it, word) for name, it in results.items()}  # type: ignore[return-value]
    if is_dataclass(results) and not isinstance(results, type):
        return replace(results, **{it.name: reworded(getattr(results, it.name), word) for it in fields(results)})
    return results


@cache
def _form() -> TypeAdapter[Audit]:
    from pydantic import TypeAdapter

    return TypeAdapter(Audit)


def to_json(audit: Audit) -> dict[str, Any]:
    """The JSON form."""
    data: dict[str, Any] = _form().dump_python(audit, mode="json")
    return data


def from_json(data: object) -> Audit:
    """The inverse of :func:`to_json`.

    Raises:
        ValueError: the data have another form.
    """
    return _form().validate_python(data, strict=False)


def read_audit(run_dir: Path) -> Audit | None:
    """The audit in a run's folder; ``None``: the run was not audited.

    Raises:
        Damaged: the report is not what this version of fedpriv writes.
    """
    path = run_dir / "audit" / "audit.json"
    if not path.exists():
        return None
    try:
        return from_json(load_json(path))
    except ValueError as error:
        raise Damaged(f"{path} is not what fedpriv writes; `fedpriv audit` writes it anew") from error


def audit_of(run_dir: Path) -> tuple[AuditedRun, Mapping[str, int | float | None]] | None:
    """A run's results and the options of its audit; ``None``: it was not audited. Raises as :func:`read_audit`."""
    if (audit := read_audit(run_dir)) is None:
        return None
    run_id = read_run(run_dir).get("run_id")
    return next(((run, audit.options) for run in audit.runs if run.run_id == run_id), None)
