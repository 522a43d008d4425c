"""What targets of images and of rows share: what is read of messages, and why a failure on them may be no evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.observation import Observation, Public, ThreatModel
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.explained import ONE_STEP, SIMULATED, Agreement, as_one_step, explained
from fedpriv.attacks.lab.trial import (
    Attacker,
    AttackT,
    AttemptT,
    Mounted,
    NotTried,
    SampleTask,
    Trial,
    add_same_net_control,
    difference_reasons,
)
from fedpriv.audit.pairs import begun, knows_texts, of_images
from fedpriv.audit.record.base import Message, PublicImages, Record
from fedpriv.errors import UsageError

TargetT = TypeVar("TargetT", bound="Doubts[Any, Any]")
EXPLAINED = 8
"""Messages that are simulated with the true samples."""


@dataclass(frozen=True, kw_only=True)
class Doubts(SampleTask[AttackT, Any, AttemptT]):
    """A target of messages, and why a failure on them may be no evidence.

    Attributes:
        title: a description for tables.
        statistics: statistics of the messages that are gradients, by name, each a target of its own: a defence of the model may
            leave them as they are.
        doubt: why attacks that simulate the clients' steps are inconclusive on these messages; ``None``: the steps explain them.
        doubt_of_one_step: why attacks that read a change as the gradient of one step are inconclusive; ``None``: one step
            explains the messages.
        doubts_all: whether messages that the steps do not explain make all attacks inconclusive. True where the steps are only
            the caller's claim: such a message may be of other samples.
        on_same_net: the control of an attacker on the attacked net, at the weights of the messages
            (:mod:`fedpriv.attacks.lab.same_net`); ``None``: the net is that of the controls.
    """

    title: str
    statistics: Mapping[str, Self] = field(default_factory=dict)
    doubt: Callable[[], str | None] = lambda: None
    doubts_all: bool = False
    doubt_of_one_step: Callable[[], str | None] = lambda: None
    on_same_net: Callable[[Attacker[Any]], Control | None] = lambda attacker: None

    def messages(self, attacker: Attacker[AttackT]) -> list[list[Observation]]:
        try:
            return super().messages(attacker)
        except UsageError as error:
            raise NotTried(Reason("does not apply", str(error))) from None

    def judge(self, attacker: Attacker[AttackT], mounted: Mounted[Any], trial: Trial) -> AttemptT:
        """The scores, and :meth:`with_doubts`."""
        attempt = self.with_doubts(super().judge(attacker, mounted, trial), trial)
        return attempt if mounted.reach is None else replace(attempt, reasons=difference_reasons([mounted.reach.text]))

    def with_doubts(self, attempt: AttemptT, trial: Trial | None = None) -> AttemptT:
        """Mark a failed attempt inconclusive if its simulated steps are not the clients', or if it also fails on undefended
        messages of this net.

        Closed forms need the control on the same net, too: below a last layer that is still zero, as in many new nets, no
        gradient shows anything, and messages of later rounds may show everything. Attacks of a malicious server do not need this
        control: they target one class, which the control's samples may not have. Once the budget is spent, it is not begun.
        """
        attack = attempt.attacker.attack
        if attempt.reconstruction is None:
            return attempt
        why = self.doubt() if self.doubts_all or attack.simulates else None
        if why is None and attack.one_step:
            why = self.doubt_of_one_step()
        if why is not None:
            return replace(attempt, reasons=(*attempt.reasons, *difference_reasons([why])))
        needs_control = attempt.is_evidence and not attack.is_malicious() and self.failed(attempt)
        if needs_control and trial is not None and (over := trial.cut()) is not None:
            reason = Reason(over.kind, f"it was not tried on undefended messages of this net ({over})")
            return replace(attempt, reasons=(*attempt.reasons, reason))
        return add_same_net_control(attempt, self.on_same_net(attempt.attacker) if needs_control else None)

    def described(self, record: Record, round: int, client: int, samples: str) -> Self:
        """The target with a title for the page, which has the number of local steps; ``samples``: their number and kind."""
        schedule = self.observe(ThreatModel())[0].schedule
        return replace(self, title=record.title(round, client, samples, None if schedule is None else schedule.steps))

    def failed(self, attempt: AttemptT) -> bool:
        """Whether an attempt recovered nothing, or no more than guesses."""
        raise NotImplementedError


@dataclass(frozen=True)
class Source:
    """What of messages is attacked. Pairs are read as messages of a net on images alone (:mod:`fedpriv.audit.pairs`).

    Attributes:
        public: public samples and their labels, of which attackers may know.
        what: the name of a statistic; empty: the model's change.
    """

    record: Record
    messages: Sequence[Message]
    public: PublicImages
    what: str = ""

    def read(self, message: Message, threat: ThreatModel) -> Observation:
        """A message as the attacker sees it; :class:`UsageError` where it cannot be read."""
        return of_images(self.record, message, self.record.observation(message, threat, self.what))

    def observe(self, threat: ThreatModel) -> list[Observation]:
        """All messages as the attacker sees them."""
        return granted([self.read(message, threat) for message in self.messages], self.public)

    def hidden_layers(self) -> int:
        """The number of fully connected layers at the end that the messages hide; 1 if the hidden end has none."""
        seen = self.read(self.messages[0], ThreatModel())
        shown = any(name.startswith("top.") for name in seen.shared)
        return 0 if shown else max(1, sum(isinstance(module, nn.Linear) for module in seen.net.top.modules()))

    def started(self, message: Message) -> Mapping[str, Tensor] | None:
        """The weights at which the client began, by the names of what is read, hidden ones too; ``None``: they were not kept."""
        weights = self.record.started(message, self.what)
        if weights is None or "text" not in self.record.modalities:
            return weights
        return begun(self.read(message, ThreatModel()), weights)


def with_statistics(whole: Source, build: Callable[[Source, int], TargetT]) -> TargetT:
    """The target of messages, with one of its own for each of their statistics that is a gradient.

    Args:
        build: makes a target of what is read, and of the number of layers at the end that it hides.
    """
    hidden, statistics = whole.hidden_layers(), dict[str, TargetT]()
    for what in whole.record.gradients(whole.messages[0]):
        part = replace(whole, what=what)
        try:
            statistics[what] = build(part, part.hidden_layers())
        except UsageError:  # every attack on it will say so
            statistics[what] = build(part, hidden)
    return replace(build(whole, hidden), statistics=statistics)


def with_truth(target: TargetT, source: Source, samples: Tensor, labels: Tensor, same_net: Callable[..., Control]) -> TargetT:
    """The target with the doubts that the true samples and labels behind its messages show.

    Args:
        same_net: :func:`fedpriv.attacks.lab.same_net.on_same_net`, or its counterpart for rows.
    """
    record, first = source.record, source.messages[0]
    steps = record.steps_behind(first, source.what) if source.what else None
    is_mean = steps is not None and steps.steps > 1  # read as the gradient of one step

    @cache
    def doubt(one_step: bool) -> str | None:
        if not knows_texts(source.read(first, ThreatModel())):  # the text's features are unknown, so this net matches no real one
            return None
        return _unexplained(source, samples, labels, one_step, is_mean)

    @cache
    def control(attacker: Attacker[Any]) -> Control | None:
        # In place of private layers that were not kept, those that every client began with: any are as good for this.
        weights = source.started(first) or source.started(replace(first, first_update=True))
        if weights is None:
            return None
        return same_net(attacker.attack, target.observe(attacker.threat)[0], weights, record.seed, steps)

    return replace(
        target, doubt=partial(doubt, is_mean), doubt_of_one_step=partial(doubt, True), doubts_all=record.declared,
        on_same_net=control,
    )  # fmt: skip


def _unexplained(source: Source, samples: Tensor, labels: Tensor, one_step: bool, is_mean: bool) -> str | None:
    """Why attacks that simulate the clients' steps cannot succeed; ``None``: with the true samples the steps give the messages,
    or noise hides whether they do. Of many messages, the first :data:`EXPLAINED` are simulated."""
    size, agreements = len(samples) // len(source.messages), list[Agreement]()
    each = zip(source.messages[:EXPLAINED], torch.split(samples, size), torch.split(labels, size), strict=False)
    for message, true_samples, true_labels in each:
        seen = source.read(message, ThreatModel())
        observation = as_one_step(seen) if one_step and not is_mean else seen
        if observation is None:
            continue
        weights = source.started(message)
        if weights is None:
            return "that its simulation gives the message cannot be told, as the client's private layers were not kept"
        agreement = explained(observation, weights, true_samples, true_labels, one_step)
        agreements += [] if agreement is None else [agreement]
    what = ONE_STEP if one_step else SIMULATED
    doubts = [doubt for agreement in agreements if (doubt := agreement.doubt_of(what)) is not None]
    return doubts[0] if len(doubts) > len(agreements) // 4 else None


def granted(observed: list[Observation], reference: PublicImages) -> list[Observation]:
    """The messages with public samples and their labels, ``reference``, where the threat model gives them."""
    samples, labels = reference
    if samples is None or labels is None or not observed[0].threat.public:
        return observed
    return [replace(seen, public=Public(samples, labels)) for seen in observed]
