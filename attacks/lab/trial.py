"""One attack on one target, from the budget to the doubts about its failure; for images and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, TypeVar

from fedpriv.attacks.attack import Attack, Result
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.lab.kept import Control
from fedpriv.attacks.lab.setting import Setting

Kind = TypeVar("Kind", bound=Attack[Any], covariant=True)
Scores = TypeVar("Scores")
Made = TypeVar("Made", bound="Attempt[Any, Any, Any]")
NO_PROMISE = Reason("no control", "no control shows that it can succeed")


@dataclass(frozen=True)
class Attacker(Generic[Kind]):
    """An attack with its options, and what it is assumed to know.

    Attributes:
        what: the statistic that it attacks instead of the model's change, if any.
    """

    attack: Kind
    threat: ThreatModel = ThreatModel()  # noqa: RUF009 (frozen)
    what: str = ""

    @property
    def name(self) -> str:
        """The name in tables."""
        by_threat = self.attack.modality == "text" and self.threat.top == "initial"  # on images it is an attack of its own
        return f"{self.attack.name}{', knowing the initial head' if by_threat else ''}{f' on {self.what}' if self.what else ''}"


Mount = Callable[[Attacker[Any], Sequence[Observation], int], Any]
"""An attacker, messages and a seed -> what it reconstructs."""


def mount(attacker: Attacker[Any], observed: Sequence[Observation], seed: int) -> Any:
    """Mount the attack; the global random state is left as it was."""
    with mounting():
        return attacker.attack.run(observed, seed)


@dataclass(frozen=True)
class Attempt(Generic[Kind, Result, Scores]):
    """One attacker's result on a target.

    Attributes:
        found: what it reconstructed; ``None``: it was not mounted.
        inapplicable: why it was not mounted.
        controls: the controls that were run, at its budget and with as many samples per message.
        reasons: why a failure is no evidence in spite of its controls.
    """

    attacker: Attacker[Kind]
    found: Result | None = None
    scores: Scores | None = None
    inapplicable: Reason | None = None
    controls: tuple[Control, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def doubts(self) -> tuple[Reason, ...]:
        """Why a failure is no evidence; empty: it is."""
        return self.reasons

    @property
    def is_evidence(self) -> bool:
        """Whether it was run, and a failure is evidence."""
        return self.found is not None and not self.doubts

    def status(self, found: bool) -> Status:
        """What the result says, where the attack ``found`` more than guesses would, or no more."""
        return Status.of(found, self.doubts) if self.inapplicable is None else Status.not_run(self.inapplicable)


def unlike(clauses: Iterable[str]) -> tuple[Reason, ...]:
    """Why a failure is no evidence: in what the messages are unlike those of the controls, a clause each."""
    return tuple(Reason("unlike the controls", clause) for clause in clauses)


def with_same_net(made: Made, control: Control | None) -> Made:
    """An attempt with a control on the attacked net: where it fails, too, the failure is no evidence; ``None``: there is none."""
    if control is None:
        return made
    failed = () if control.passed else (Reason("same net", control.sentence),)
    return replace(made, controls=(*made.controls, control), reasons=(*made.reasons, *failed))


def out_of_reach(attack: Attack[Any], each: int, schedule: Schedule | None = None) -> Reason | None:
    """Why a failure on ``each`` samples per message would be no evidence, as that is harder than the attack's control; ``None``:
    it is not."""
    if attack.optimises and attack.is_beyond(each):
        if attack.modality == "text":
            said = f"{each} sentences behind one message, and the budget is for {attack.at_once} at once"
        elif isinstance(attack.control, Setting) and attack.control.least > 0:
            said = f"{each} images behind one message; at this budget its control recovers up to {attack.at_once} at once"
        else:
            said = f"{each} images behind one message; it has no positive control, and is tried on up to {attack.at_once}"
        return Reason("too many samples", said)
    if attack.most_steps is not None and schedule is not None and schedule.steps > attack.most_steps:
        return Reason("too many steps", f"{schedule.steps} local steps are more than the {attack.most_steps} of this budget")
    return None


class NotTried(Exception):
    """An attack is not mounted; why, and the controls that were run before."""

    def __init__(self, reason: Reason, controls: tuple[Control, ...] = ()) -> None:
        self.reason, self.controls = reason, controls
        super().__init__(str(reason))


@dataclass(frozen=True)
class Trial:
    """How an attack is tried.

    Attributes:
        cut: why no further step may begin; ``None``: one may.
        mount: how it is mounted.
        controls: whether it is tried only if it passes its cheap check and its controls.
        in_reach: whether it is tried only on messages that are no harder than those of its controls.
    """

    seed: int = 0
    cut: Callable[[], Reason | None] = lambda: None
    mount: Mount = mount
    controls: bool = True
    in_reach: bool = True


@dataclass(frozen=True)
class Mounted(Generic[Result]):
    """What a mounted attack made of messages.

    Attributes:
        first: those that were attacked first.
        found: of each part of the messages what it reconstructed, or why it refused them.
        notes: what :meth:`Task.noted` kept of each part.
        controls: those that it passed.
        reach: why the messages are out of its reach, where it was tried on them all the same.
    """

    first: Sequence[Observation]
    found: list[Result | str]
    notes: list[Any]
    controls: tuple[Control, ...]
    reach: Reason | None


class Task(Generic[Kind, Result, Made]):
    """What is attacked, with the truth behind it: the base class of targets."""

    def messages(self, attacker: Attacker[Kind]) -> Iterable[Sequence[Observation]]:
        """The messages, in parts that are attacked one after the other, each read only then.

        Raises:
            NotTried: they cannot be read, or are not what such an attacker can attack.
        """
        raise NotImplementedError

    def each(self, part: Sequence[Observation]) -> int:
        """The number of samples behind each message of a part."""
        raise NotImplementedError

    def controls(self, attacker: Attacker[Kind], part: Sequence[Observation], seed: int) -> tuple[Control, ...]:
        """The attack's controls for such messages, at its own budget."""
        return ()

    def noted(self, attacker: Attacker[Kind], number: int, part: Sequence[Observation], made: Result | str) -> Any:
        """What :meth:`judged` must know of a part that was attacked, as its messages are not kept."""

    def judged(self, attacker: Attacker[Kind], mounted: Mounted[Result], trial: Trial) -> Made:
        """The scores, and whether a failure is evidence."""
        raise NotImplementedError

    def not_tried(self, attacker: Attacker[Kind], reason: NotTried) -> Made:
        """An attempt that was not made."""
        raise NotImplementedError

    def begun(self, attacker: Attacker[Kind], trial: Trial) -> tuple[Sequence[Observation], Iterator[Sequence[Observation]]]:
        """The first part of the messages, and all, after all that is checked before the controls.

        Raises:
            NotTried: the attack is not to be mounted on them.
        """
        if (over := trial.cut()) is not None:
            raise NotTried(over)
        parts = iter(self.messages(attacker))
        first = next(parts)
        if trial.in_reach and (reason := self._reach(attacker, first)):
            raise NotTried(reason)
        if trial.controls:
            try:
                attacker.attack.check(first[0])
            except Inapplicable as error:
                raise NotTried(Reason("does not apply", str(error))) from None
        return first, chain([first], parts)

    def mounted(self, attacker: Attacker[Kind], trial: Trial) -> Mounted[Result]:
        """Check the attack, run its controls, and mount it.

        Raises:
            NotTried: it is not to be mounted, failed a control, or refused all messages.
        """
        first, parts = self.begun(attacker, trial)
        passed = self.controls(attacker, first, trial.seed) if trial.controls else ()
        if failed := [control.sentence for control in passed if not control.passed]:
            raise NotTried(Reason("control failed", f"not tried, as a control failed: {failed[0]}"), passed)
        found, notes = list[Result | str](), list[Any]()
        for number, part in enumerate(parts):
            try:
                made: Result | str = trial.mount(attacker, part, trial.seed)
            except Inapplicable as error:
                made = str(error)
            found.append(made)
            notes.append(self.noted(attacker, number, part, made))
        if all(isinstance(one, str) for one in found):
            raise NotTried(Reason("does not apply", str(found[0])), passed)
        return Mounted(first, found, notes, passed, self._reach(attacker, first))

    def tried(self, attacker: Attacker[Kind], trial: Trial = Trial()) -> Made:
        """Try an attack: whether there is time, the messages can be read, they are within reach of its controls, it passes its
        cheap check and its controls; what it finds; and why its failure would be no evidence."""
        try:
            mounted = self.mounted(attacker, trial)
        except NotTried as reason:
            return self.not_tried(attacker, reason)
        return self.judged(attacker, mounted, trial)

    def _reach(self, attacker: Attacker[Kind], part: Sequence[Observation]) -> Reason | None:
        return out_of_reach(attacker.attack, self.each(part), part[0].schedule)
