"""What an audit found, as typed records: an :class:`Audit` of runs, each with the outcome of every attack on it.

The JSON form is that of these classes (:func:`to_json`, :func:`from_json`); :attr:`Audit.format` is its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.inference.canaries import CanaryBound
from fedpriv.attacks.inference.membership import Use
from fedpriv.attacks.inference.membership_controls import Kind as MembershipStatistic
from fedpriv.attacks.inference.shadow import ShadowReport
from fedpriv.attacks.scoring.operating_points import OperatingPoints
from fedpriv.attacks.scoring.scores import Rate, counts
from fedpriv.files import Damaged, load_json
from fedpriv.samples import Modality
from fedpriv.tracking.folder import read_run

if TYPE_CHECKING:
    from pydantic import TypeAdapter

TargetKind = Literal["message", "single image", "single text"]
"""A message that a client sent, or messages of clients with one sample each, which the audit simulated."""
Part = Literal[
    "images", "single images", "texts", "single texts", "rows", "class centres", "shadow clients", "mean colour", "membership",
    "single uploads", "single samples", "buffers", "statistics",
]  # fmt: skip
"""A part of an audit that may be left out as a whole."""


@dataclass(frozen=True)
class Sender:
    """Whose message it is: a client's, or the sum of several clients' uploads.

    Attributes:
        client: its number; ``None``: a sum.
        clients: how many are in the sum, of which ``trained`` had a batch to train on.
    """

    client: int | None
    clients: int = 1
    trained: int = 1

    @property
    def short(self) -> str:
        """``3``, or ``sum of 10``."""
        if self.client is not None:
            return str(self.client)
        return f"sum of {self.clients}{self._few}"

    @property
    def named(self) -> str:
        """``client 3``, or ``sum of 10``."""
        return self.short if self.client is None else f"client {self.client}"

    def message_of(self, round: int) -> str:
        """``client 3's message of round 1``, or ``the sum of 10 clients' uploads of round 1``."""
        if self.client is not None:
            return f"client {self.client}'s message of round {round}"
        return f"the sum of {self.clients} clients' uploads of round {round}{self._few}"

    @property
    def _few(self) -> str:
        return f" (only {self.trained} trained)" if self.trained < self.clients else ""


@dataclass(frozen=True)
class ControlResult:
    """A control of an attack.

    Attributes:
        name: ``positive``, ``negative``, or ``same net``.
    """

    attacker: str
    name: str
    passed: bool
    sentence: str
    cpu_seconds: float | None


def distinct(controls: Iterable[ControlResult]) -> tuple[ControlResult, ...]:
    """The distinct controls; those that differ in their cost alone are equal."""
    return tuple({(one.attacker, one.name, one.sentence): one for one in controls}.values())


@dataclass(frozen=True)
class Interval:
    """A 95 % interval that holds for ``of`` attacks at once (Bonferroni)."""

    low: float
    high: float
    of: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one attack on one target.

    Attributes:
        attack: its name in tables.
        knows: what the attacker was assumed to know, in sentences.
        budget: in words; ``None``: it has none.
        statistic: what of the message was attacked in place of the model's change; ``None``: that change.
    """

    attack: str
    status: Status
    knows: tuple[str, ...] = ()
    budget: str | None = None
    statistic: str | None = None


@dataclass(frozen=True)
class CountedRate:
    """How many images count as recovered.

    Attributes:
        limit: the threshold of the mean squared error, such as ``0.01``.
    """

    rate: Rate
    limit: str


@dataclass(frozen=True, kw_only=True)
class ImageFigures:
    """What an attack made of images; thresholds of the mean squared error are keys such as ``0.01``.

    Attributes:
        success: threshold -> how many images are nearer.
        copies: threshold -> how many copies of the nearest public image would be, where the attacker knows public images.
        label_accuracy: ``None``: it guesses no labels.
        psnr_median_db: ``None``: infinite, as images are exact.
        lpips_missing, feature_distance_missing: why there is no such figure.
        curve: (step, median loss over the messages).
    """

    success: Mapping[str, Rate]
    copies: Mapping[str, int] | None
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
    """
    Attributes:
        figures: ``None``: it was not run.
        cut: why it was not tried on further images.
    """

    figures: ImageFigures | None = None
    cut: Reason | None = None


@dataclass(frozen=True)
class Baseline:
    """A guess without the message: its errors, and how many images it would count for by threshold."""

    mse_median: float
    success: Mapping[str, Rate]


@dataclass(frozen=True, kw_only=True)
class ImageTarget:
    """A message, or clients with one image each, with every attack on it.

    Attributes:
        note: a remark; for pairs, on the texts.
        picture: name of the picture of reconstructions; ``picture_note``: what it shows.
        baselines: by name.
    """

    title: str
    kind: TargetKind
    round: int
    sender: Sender
    samples: int
    outcomes: tuple[ImageOutcome, ...]
    baselines: Mapping[str, Baseline]
    note: str | None = None
    picture: str | None = None
    picture_note: str | None = None

    @property
    def baselines_by_count(self) -> Mapping[str, Mapping[str, int]]:
        """Name -> threshold -> how many images it would count for."""
        return {name: counts(one.success) for name, one in self.baselines.items()}

    def only(self, outcomes: Sequence[ImageOutcome]) -> ImageTarget:
        """The same with some of its outcomes."""
        return replace(self, outcomes=tuple(outcomes))

    def parts(self) -> list[ImageTarget]:
        """What of its messages was attacked, apart: the model's change, and statistics. A failure on one is no evidence on
        another."""
        return [self.part(what) for what in dict.fromkeys(one.statistic for one in self.outcomes)]

    def part(self, statistic: str | None) -> ImageTarget:
        """The same with the outcomes on a statistic alone; ``None``: those on the model's change."""
        return self.only([one for one in self.outcomes if one.statistic == statistic])


@dataclass(frozen=True, kw_only=True)
class TextScoreMeans:
    """Scores of texts: means of precision and recall over messages, of ROUGE-L over sentences; ``None``: there is no such figure.

    Attributes:
        exact: sentences found word for word; ``None``: no order was found.
        named: of the tokens that were named, how many are right.
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
    """The true sentences behind a message and those found, or the tokens found; of ``sentences``, the first few."""

    true: tuple[str, ...]
    found: tuple[str, ...]
    sentences: int


@dataclass(frozen=True, kw_only=True)
class TextFigures(TextScoreMeans):
    """What an attack made of texts.

    Attributes:
        by_frequency: of as many of the most frequent public words as were named, the share that is right; ``None``: none was.
        messages, refused: how many were attacked, and how many of these it could not be mounted on.
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
        longest, total: number of tokens of the longest sentence and of all together, over all messages.
    """

    labels: Rate
    longest: Rate
    total: Rate

    @property
    def sentence(self) -> str:
        """What was inferred, in words."""
        what = {
            "labels": self.labels, "longest sentences (in tokens)": self.longest, "total numbers of tokens": self.total,
        }  # fmt: skip
        parts = [f"{rate.successes} of {rate.n} {name}" for name, rate in what.items() if rate.successes]
        return f"still inferred correctly: {', '.join(parts) or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class TextOutcome(Outcome):
    """
    Attributes:
        figures: ``None``: it was not run.
        left: where it could not be mounted, what else the messages reveal.
    """

    figures: TextFigures | None = None
    left: PartialLeakage | None = None


@dataclass(frozen=True, kw_only=True)
class TextTargetResult:
    """A message, or clients with one text each, with every attack on it; ``baseline``: random words."""

    title: str
    kind: TargetKind
    round: int
    sender: Sender
    samples: int
    outcomes: tuple[TextOutcome, ...]
    baseline: TextScoreMeans

    def parts(self) -> list[TextTargetResult]:
        """As :meth:`ImageTarget.parts`."""
        return [self.part(what) for what in dict.fromkeys(one.statistic for one in self.outcomes)]

    def part(self, statistic: str | None) -> TextTargetResult:
        """As :meth:`ImageTarget.part`."""
        return replace(self, outcomes=tuple(one for one in self.outcomes if one.statistic == statistic))


@dataclass(frozen=True, kw_only=True)
class CenterOutcome:
    """Images drawn from the class centres of a message. There is no control: that none is recovered is no evidence.

    Attributes:
        classes: whose centres were sent; ``samples_per_class``: how many samples of each the client has.
        mse_median: to the mean image of the class; ``baseline_mse_median``: the same of the mean of public images.
        success, copies: threshold -> how many were recovered, and for how many guesses would count.
        counted: those at the loosest threshold at which they are more than guesses; none where there is no such threshold.
        distance_of_truth, distance_found: of an embedding to the centre, as a share of its squared length; ``None``: not finite.
    """

    round: int
    sender: Sender
    classes: tuple[int, ...]
    samples_per_class: tuple[int, ...]
    mse_median: float
    baseline_mse_median: float
    success: Mapping[str, Rate]
    copies: Mapping[str, int]
    counted: CountedRate
    distance_of_truth: float | None
    distance_found: float | None
    picture: str | None = None


@dataclass(frozen=True, kw_only=True)
class MeanColour:
    """The mean colour of a client's images by running statistics, in [0, 1] by channel; errors are means over the channels."""

    round: int
    sender: Sender
    found: tuple[float, ...]
    true: tuple[float, ...]
    error: float
    baseline_error: float


@dataclass(frozen=True, kw_only=True)
class LabelResult:
    """The classes of a client by the best rule, from a message or from all of its messages together.

    Attributes:
        round: ``None``: from all messages together.
        rule: the best rule for sets that applies; ``None``: none does. ``stated``: the classes were read in clear.
        classes: C, of the data set.
        true, found: the classes.
        count_rule, count_accuracy: the best rule for counts, and the share of the samples whose label it found.
        count_guess: that share by naming all classes equally often.
        rules: how many rules apply to some message, the best of which is looked at.
        guess: the share of clients whose set is found by naming the same one each time; ``None``: it is not known.
        note: why no rule applies.
        limit: why it is no evidence that the classes were not found; ``None``: it is.
        messages, single_exact, single_count_accuracy: of a client's messages together: how many, how many of them were exact on
            their own, and their mean accuracy of counts.
    """

    round: int | None
    sender: Sender
    rule: str | None
    stated: bool
    classes: int
    true: tuple[int, ...]
    found: tuple[int, ...]
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
        return self.true == self.found

    @property
    def lacks_a_class(self) -> bool:
        """Whether the client does not hold every class; otherwise the set says nothing of it."""
        return len(self.true) < self.classes


@dataclass(frozen=True, kw_only=True)
class LabelRule:
    """A rule for labels, over all messages.

    Attributes:
        rests_on: what it uses and assumes.
        messages: to how many it applies.
        exact: how many sets it found; ``together``: the interval for all rules that apply. ``None``: it applies to no message.
        count_accuracy: mean share of the samples whose label it found; ``None``: it shows no counts.
        best, best_counts: whether it found most sets, and the labels of most samples.
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
    """The classes of clients by a classifier that was trained on messages of simulated clients.

    Attributes:
        wider: of the clients that lack a class, those that hold more classes than any simulated one.
        unlearned: of the others, those with a set that the classifier names of no message.
        later: those that kept something from an earlier local update.
    """

    report: ShadowReport
    round: int
    shadows: int
    wider: int
    unlearned: int
    later: int


@dataclass(frozen=True, kw_only=True)
class MembershipOutcome(Outcome):
    """A membership attack in one round, on the kept messages of its clients.

    Attributes:
        round: ``senders``: of the clients.
        uses: what of a message is compared, and ``use``: with what; ``None``: no attack of the round was run.
        extent: how many shadow models or rounds it used, in words.
        points: ``None``: it was not run.
        together: the interval of the area that holds for all attacks of all rounds.
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
        """With its extent."""
        return f"{self.attack} ({self.extent})" if self.extent else self.attack


@dataclass(frozen=True, kw_only=True)
class KnownMembers:
    """Training samples that were reconstructed from a message, and so are known members."""

    round: int
    sender: Sender
    what: Literal["images", "texts"]
    attack: str
    rate: Rate


@dataclass(frozen=True)
class Canaries:
    """What a run's canaries show of its epsilon: ``bounds`` at ``delta`` and ``confidence``, of which ``lower`` is the best."""

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
        lower: the lower bound at that confidence (one training run, many samples: Steinke et al. 2023); the best of ``each``.
        each: the lower bound from each of the scores; they hold simultaneously.
        lower_by_rates: from Clopper-Pearson bounds on true and false positives, as if samples were independent trials.
        samples: number of samples behind the bounds.
        upper_update: the accountant's epsilon of the attacked round alone, for the sample that spent most; ``None`` without
            sample-level DP. For a sample that several clients hold, the local updates of all of them count.
        upper_so_far: the same for the turns up to this round.
        upper_run: the same for the whole run.
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
        upper: at ``delta``, against a ``level`` (client or sample).
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
        """The bound by attacks, where it bounds the accountant's epsilon."""
        return self.by_attack.lower if self.by_attack is not None and self.level == "sample" else None


@dataclass(frozen=True)
class Value:
    """A figure of an attack with its 95 % interval; ``n``: of how many samples, or of labels messages."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class SumComparison:
    """An attack on the sums that the server saw, beside the same on the uploads behind them; ``None``: not mounted there."""

    measure: Literal["images", "texts", "label sets", "membership"]
    attack: str
    on_sums: Value | None
    on_uploads: Value | None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run cost; accuracies in [0, 1], bytes and seconds of the whole run; ``None``: not measured.

    Attributes:
        chance: accuracy of the best constant answer; ``at_chance``: the model is no better, within its 95 % interval.
        probes: results of ``fedpriv probe``.
        against: name of the audited run that differs in the defence alone, and has none; ``against_at_chance``,
            ``accuracy_difference``, ``bytes_up_ratio``: compared with it.
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
        dtype: safetensors' name.
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
        """At any time, in either direction."""
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
class Statistic:
    """What is sent besides the layers that give the logits.

    Attributes:
        tensors, bytes: in a message.
        says: what it reveals of a client.
        known: whether this audit knows what it is.
        gradient: whether it is a gradient, and attacked as one.
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
    """Signal-to-noise ratio of a layer that noise was added to, in dB over the rounds."""

    layer: str
    min: float
    median: float
    rounds: int


@dataclass(frozen=True)
class Answer:
    """The answer for a run.

    Attributes:
        level: its place in :data:`fedpriv.audit.judge.WORDS`, worst first.
        sentence: the finding behind it. ``picture``: name of one that shows it. ``roc``: the membership curves show it.
        not_tried: attacks that were not mounted, and why.
        change, command: what would change the answer, and the command that searches for it.
    """

    words: str
    level: int
    sentence: str
    picture: str | None = None
    roc: bool = False
    not_tried: tuple[str, ...] = ()
    change: str = ""
    command: str | None = None


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """One audited run, or one update of a training loop.

    Attributes:
        is_update: it is one update; what only a run says is empty.
        modalities: of its samples; empty: rows of a table.
        participants: clients in a round.
        defence: transforms, secure aggregation and differential privacy, as they are named.
        server_knows, outsider_knows, conditions: in sentences; ``batch_norm``: whether the net normalises by the batch.
        exposed: kinds of statistics that are sent unaltered although a defence alters the model.
        membership: an outcome for each attack and round that was looked at, also of those that were not run.
        membership_limit: why it is no evidence that members were not found; ``None``: it is.
        not_run: parts of the audit that were left out, and why.
        comparison: attacks on sums beside those on single uploads; ``None``: the run has no secure aggregation.
        seconds: step -> CPU seconds.
        metrics: the leakage in numbers, by name (:mod:`fedpriv.audit.judge.metrics`).
    """

    name: str
    run_id: str
    run_dir: str = ""
    is_update: bool = False
    method: str
    title: str
    paper: str = ""
    dataset: str
    model: str
    modalities: tuple[Modality, ...]
    seed: int
    clients: int = 1
    participants: int = 1
    rounds: int = 1
    defence: tuple[str, ...] = ()
    summed: bool = False
    git_commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    partition_hash: str | None = None
    config_yaml: str = ""
    cost: Cost
    snr: tuple[SignalToNoise, ...] = ()
    wire: Wire = field(default_factory=Wire)
    server_knows: tuple[str, ...] = ()
    outsider_knows: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    batch_norm: bool = False
    statistics: tuple[Statistic, ...] = ()
    exposed: tuple[str, ...] = ()
    images: tuple[ImageTarget, ...] = ()
    texts: tuple[TextTargetResult, ...] = ()
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
        controls: of the attacks on samples, each once.
    """

    created: str
    seconds: float
    fedpriv: str
    command: str
    options: Mapping[str, int | float | None]
    controls: tuple[ControlResult, ...]
    runs: tuple[AuditedRun, ...]
    format: Literal[2] = 2


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


def audit_of(run_dir: Path) -> tuple[AuditedRun, Mapping[str, int | float | None]] | None:
    """What an audit found in a run, and the audit's options; ``None``: it was not audited.

    Raises:
        Damaged: the report is not what this version of fedpriv writes.
    """
    path = run_dir / "audit" / "audit.json"
    if not path.exists():
        return None
    try:
        audit = from_json(load_json(path))
    except ValueError as error:
        raise Damaged(f"{path} is not what fedpriv writes; `fedpriv audit` writes it anew") from error
    run_id = read_run(run_dir).get("run_id")
    found = next((one for one in audit.runs if one.run_id == run_id), None)
    return None if found is None else (found, audit.options)
