"""Runs one attack on one target of any samples: the checks before it, its controls, and whether its failure is evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, TypeVar

from torch import Tensor

from fedpriv.attacks.attack import Attack, Result
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.setting import RowSetting, Setting, TextSetting

AttackT = TypeVar("AttackT", bound=Attack[Any], covariant=True)
Scores = TypeVar("Scores")
AttemptT = TypeVar("AttemptT", bound="Attempt[Any, Any, Any]")
NO_CONTROL = Reason("no control", "no control shows that it can succeed")


@dataclass(frozen=True)
class Attacker(Generic[AttackT]):
    """An attack with its options, and its threat model.

    Attributes:
        what: the statistic that it attacks; empty: the change of the model.
    """

    attack: AttackT
    threat: ThreatModel = ThreatModel()  # noqa: RUF009 (frozen)
    what: str = ""

    @classmethod
    def of(cls, kind: type[AttackT], options: Mapping[str, Any]) -> Attacker[AttackT]:
        """An attack with its options, and the threat model of its control."""
        control = kind.control
        return cls(kind(**options), ThreatModel() if control is None or isinstance(control, TextSetting) else control.threat)

    @property
    def name(self) -> str:
        """The name in tables."""
        by_threat = self.attack.modality == "text" and self.threat.top == "initial"  # for images, known-head is a separate attack
        return f"{self.attack.name}{', knowing the initial head' if by_threat else ''}{f' on {self.what}' if self.what else ''}"


Mount = Callable[[Attacker[Any], Sequence[Observation], int], Any]
"""Attacker, messages and seed -> reconstruction."""


def mount(attacker: Attacker[Any], observed: Sequence[Observation], seed: int) -> Any:
    """Run the attack on messages; the global random state is left as it was."""
    with mounting():
        return attacker.attack.run(observed, seed)


@dataclass(frozen=True)
class Attempt(Generic[AttackT, Result, Scores]):
    """The result of one attacker on a target.

    Attributes:
        reconstruction: ``None`` where the attack was not run.
        inapplicable: why it was not run.
        controls: the controls that were run, with the same options and number of samples per message as the target.
        reasons: why a failure is no evidence, although the controls were passed.
    """

    attacker: Attacker[AttackT]
    reconstruction: Result | None = None
    scores: Scores | None = None
    inapplicable: Reason | None = None
    controls: tuple[Control, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def doubts(self) -> tuple[Reason, ...]:
        """Why a failure is no evidence; empty if it is."""
        return self.reasons

    @property
    def is_evidence(self) -> bool:
        """Whether the attack was run, and its failure is evidence."""
        return self.reconstruction is not None and not self.doubts

    def status(self, succeeded: bool) -> Status:
        """The status of an attack that found more than guesses would (``succeeded``), or did not."""
        return Status.of(succeeded, self.doubts) if self.inapplicable is None else Status.not_run(self.inapplicable)


@dataclass(frozen=True)
class SampleAttempt(Attempt[AttackT, Result, Scores]):
    """The result of one attacker on images or rows.

    Attributes:
        raw: the samples that it found ``(n, ...)``, in the order of the true ones; NaN where it found none.
    """

    raw: Tensor | None = None

    @property
    def passed_positive(self) -> bool:
        """Whether it passed a positive control."""
        return any(control.name == "positive" and control.passed for control in self.controls)

    @property
    def doubts(self) -> tuple[Reason, ...]:
        """Why a failure is no evidence; empty if it passed a positive control on messages like these."""
        return self.reasons or (() if self.passed_positive else (NO_CONTROL,))


def difference_reasons(clauses: Iterable[str]) -> tuple[Reason, ...]:
    """Reasons why a failure is no evidence, from clauses on how the messages differ from those of the controls."""
    return tuple(Reason("differs from controls", clause) for clause in clauses)


def add_same_net_control(attempt: AttemptT, control: Control | None) -> AttemptT:
    """The attempt with a control on the attacked net, if there is one; if this control fails as well, the attack's failure is no
    evidence."""
    if control is None:
        return attempt
    reasons = () if control.passed else (Reason("same net", control.sentence),)
    return replace(attempt, controls=(*attempt.controls, control), reasons=(*attempt.reasons, *reasons))


def out_of_reach(attack: Attack[Any], samples: int, schedule: Schedule | None = None) -> Reason | None:
    """Why messages on so many samples each, or with such a schedule, are harder than the attack's control; ``None``: they are
    not."""
    if attack.optimises and attack.exceeds_control(samples):
        limit = attack.max_batch
        behind = f"{samples} {'rows' if attack.modality == 'row' else 'images'} behind one message"
        if attack.modality == "text":
            text = f"{samples} sentences behind one message, and the budget is for {limit} at once"
        elif isinstance(attack.control, Setting | RowSetting) and attack.control.min_recovery > 0:
            text = f"{behind}; at this budget its control recovers up to {limit} at once"
        else:
            text = f"{behind}; it has no positive control, and is tried on up to {limit}"
        return Reason("too many samples", text)
    if attack.most_steps is not None and schedule is not None and schedule.steps > attack.most_steps:
        return Reason("too many steps", f"{schedule.steps} local steps are more than the {attack.most_steps} of this budget")
    return None


class NotTried(Exception):
    """An attack is not run: the reason, and the controls that were run before."""

    def __init__(self, reason: Reason, controls: tuple[Control, ...] = ()) -> None:
        self.reason, self.controls = reason, controls
        super().__init__(str(reason))


@dataclass(frozen=True)
class Trial:
    """How an attack is run on a target.

    Attributes:
        cut: returns the reason if the budget is spent, else ``None``.
        mount: runs the attack on messages.
        controls: whether the attack must first pass its cheap check and its controls.
        in_reach: whether the attack is skipped on messages that are harder than those of its controls.
    """

    seed: int = 0
    cut: Callable[[], Reason | None] = lambda: None
    mount: Mount = mount
    controls: bool = True
    in_reach: bool = True


@dataclass(frozen=True)
class Mounted(Generic[Result]):
    """The results of an attack that was run on the parts of a target.

    Attributes:
        first: the messages of the first part.
        results: for each part the reconstruction, or why the attack refused it.
        notes: for each part what :meth:`Task.note_part` returned.
        controls: the controls that the attack passed.
        reach: why the messages are harder than those of the controls; ``None``: they are not.
    """

    first: Sequence[Observation]
    results: list[Result | str]
    notes: list[Any]
    controls: tuple[Control, ...]
    reach: Reason | None


class Task(Generic[AttackT, Result, AttemptT]):
    """A target of attacks, with the truth behind it; a base class."""

    def messages(self, attacker: Attacker[AttackT]) -> Iterable[Sequence[Observation]]:
        """The messages, in parts that are attacked one after the other; each part is read only then.

        Raises:
            NotTried: they cannot be read, or the attack is not for such messages.
        """
        raise NotImplementedError

    def samples_behind(self, part: Sequence[Observation]) -> int:
        """The number of samples behind each message of a part."""
        raise NotImplementedError

    def controls(self, attacker: Attacker[AttackT], part: Sequence[Observation], seed: int) -> tuple[Control, ...]:
        """Run the attack's controls for such messages, with its own options."""
        return ()

    def note_part(self, attacker: Attacker[AttackT], number: int, part: Sequence[Observation], result: Result | str) -> Any:
        """What :meth:`judge` needs of a part that was attacked, as its messages are not kept."""

    def judge(self, attacker: Attacker[AttackT], mounted: Mounted[Result], trial: Trial) -> AttemptT:
        """Score the results, and tell whether a failure is evidence."""
        raise NotImplementedError

    def not_tried(self, attacker: Attacker[AttackT], reason: NotTried) -> AttemptT:
        """The attempt of an attack that was not run."""
        raise NotImplementedError

    def start(self, attacker: Attacker[AttackT], trial: Trial) -> tuple[Sequence[Observation], Iterator[Sequence[Observation]]]:
        """Check all that can be checked before the controls; returns the first part of the messages, and all parts.

        Raises:
            NotTried: the attack is not to be run on them.
        """
        parts = iter(self.messages(attacker))
        first = next(parts)
        if trial.in_reach and (reason := self._reach(attacker, first)):
            raise NotTried(reason)
        if trial.controls:
            try:
                attacker.attack.check(first[0])
            except Inapplicable as error:
                raise NotTried(Reason("does not apply", str(error))) from None
        if (over := trial.cut()) is not None:  # asked last: what does not apply is not cut
            raise NotTried(over)
        return first, chain([first], parts)

    def mount(self, attacker: Attacker[AttackT], trial: Trial) -> Mounted[Result]:
        """Check the attack, run its controls, and run it on all messages.

        Raises:
            NotTried: it is not to be run, failed a control, or refused all messages.
        """
        first, parts = self.start(attacker, trial)
        controls = self.controls(attacker, first, trial.seed) if trial.controls else ()
        if failed := [control.sentence for control in controls if not control.passed]:
            raise NotTried(Reason("control failed", f"not tried, as a control failed: {failed[0]}"), controls)
        if (over := trial.cut()) is not None:  # the controls took the rest of it
            raise NotTried(over, controls)
        results, notes = list[Result | str](), list[Any]()
        for number, part in enumerate(parts):
            try:
                result: Result | str = trial.mount(attacker, part, trial.seed)
            except Inapplicable as error:
                result = str(error)
            results.append(result)
            notes.append(self.note_part(attacker, number, part, result))
        if all(isinstance(result, str) for result in results):
            raise NotTried(Reason("does not apply", str(results[0])), controls)
        return Mounted(first, results, notes, controls, self._reach(attacker, first))

    def run(self, attacker: Attacker[AttackT], trial: Trial = Trial()) -> AttemptT:
        """Run the attack if the budget, its reach, its cheap check and its controls allow it; then judge it."""
        try:
            mounted = self.mount(attacker, trial)
        except NotTried as reason:
            return self.not_tried(attacker, reason)
        return self.judge(attacker, mounted, trial)

    def _reach(self, attacker: Attacker[AttackT], part: Sequence[Observation]) -> Reason | None:
        return out_of_reach(attacker.attack, self.samples_behind(part), part[0].schedule)


class SampleTask(Task[AttackT, Result, AttemptT]):
    """Images or rows to attack, and the messages on them.

    Attributes:
        labels: the true ones ``(n,)``; attacks are scored against the truth and never see it.
        observe: threat model -> the messages; together they stand for the ``n`` samples, in order.
    """

    labels: Tensor
    observe: Callable[[ThreatModel], list[Observation]]

    def messages(self, attacker: Attacker[AttackT]) -> list[list[Observation]]:
        """All messages in one part, which is cheaper than several."""
        return [self.observe(attacker.threat)]

    def samples_behind(self, part: Sequence[Observation]) -> int:
        return len(self.labels) // len(part)
