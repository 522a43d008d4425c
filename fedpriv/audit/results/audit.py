"""An :class:`Audit` of runs, each with the outcome of every attack on it, and the answer for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedpriv.attacks.core.status import Reason
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.epsilon import Epsilon
from fedpriv.audit.results.images import CenterOutcome, ImageTarget, MeanColour
from fedpriv.audit.results.labels import LabelResult, LabelRule, ShadowLabels
from fedpriv.audit.results.membership import KnownMembers, MembershipOutcome
from fedpriv.audit.results.outcome import ControlResult
from fedpriv.audit.results.rows import AttributeOutcome, RowTarget
from fedpriv.audit.results.sums import SumComparison
from fedpriv.audit.results.texts import TextTargetResult
from fedpriv.audit.results.wire import SignalToNoise, Statistic, ToldBefore, ToldRows, Wire, told_rows
from fedpriv.samples import Modality

Part = Literal[
    "images", "single images", "texts", "single texts", "rows", "single rows", "attributes", "classes", "class centres",
    "shadow clients", "mean colour", "membership", "single uploads", "single samples", "buffers", "statistics",
]  # fmt: skip
"""A part of an audit that can be left out as a whole."""


@dataclass(frozen=True)
class Coverage:
    """Which attacks an audit ran on a run, by name: a name counts once, on however many messages.

    Attributes:
        run: attacks that were run on some message.
        shortened: those of them that the audit's budget stopped before they had seen all messages or samples.
        not_run: why each of the others was not run; ``also``: the further reasons, where messages differ in them.
        clients: how many the run has; ``not_kept``: those of whom no message was kept, so that no attack saw them.
    """

    run: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    not_run: Mapping[str, Reason] = field(default_factory=dict)
    also: Mapping[str, tuple[Reason, ...]] = field(default_factory=dict)
    clients: int = 1
    not_kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The answer for a run.

    Attributes:
        level: its place in :data:`fedpriv.audit.answer.WORDS`, worst first.
        sentence: the finding behind it; ``picture``: file name of one that shows it; ``roc``: the membership curves show it.
        before_training: whether the finding is on what clients told before round 1, which no defence of the uploads alters.
        not_tried: attacks that were not mounted, and why.
        change, command: what to do, and the command that does it.
        coverage: which attacks were run; ``None``: an audit of an earlier version does not say.
    """

    words: str
    level: int
    sentence: str
    picture: str | None = None
    roc: bool = False
    before_training: bool = False
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
        data_dir: the folder of its data, where the environment named it and the config does not.
        modalities: of its samples; empty: rows of a table.
        client_names, class_names: by number; empty where they are numbers.
        participants: clients in a round.
        not_kept: names of the clients of whom no message was kept.
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
    data_dir: str | None = None
    model: str
    modalities: tuple[Modality, ...]
    seed: int
    client_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    clients: int = 1
    participants: int = 1
    not_kept: tuple[str, ...] = ()
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
    def told_rows(self) -> list[ToldRows]:
        """The clients of whose rows the statistics of before round 1 tell single cells."""
        return told_rows(self.before)

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
