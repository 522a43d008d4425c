"""The driver of attacks: what is looked at before one is mounted, in which order, and what an attempt says when it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
import torch

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.nets import observe, perceptron
from fedpriv.attacks.lab.trial import Attacker, Attempt, Mounted, NotTried, Task, Trial, add_same_net_control

Made = Attempt[ImageAttack, Reconstruction, None]
EVENTS: list[str] = []


class Told(ImageAttack):
    """An attack that says what is asked of it, and finds nothing."""

    name = "told"
    most_steps: ClassVar[int | None] = 2

    def __init__(self, refuses: Sequence[int] = ()) -> None:
        self.refuses, self.met = refuses, 0

    @staticmethod
    def check(observation: Observation) -> None:
        EVENTS.append("check")
        if observation.loss is not None:
            raise Inapplicable("another loss")

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        EVENTS.append("run")
        self.met += 1
        if self.met in self.refuses:
            raise Inapplicable(f"message {self.met}")
        return Reconstruction(*(torch.zeros(1) for _ in range(6)))


class Parts(Task[ImageAttack, Reconstruction, Made]):
    """Messages, one after the other."""

    def __init__(self, each: int = 1, passes: bool = True, **changes: Any) -> None:
        self.n, self.passes, self.changes = each, passes, changes

    def messages(self, attacker: Attacker[ImageAttack]) -> Iterator[list[Observation]]:
        if self.changes.get("unreadable"):
            raise NotTried(Reason("not available", "it was not kept"))
        seen = observe(perceptron(0, height=8, width=8), torch.zeros(1, 3, 8, 8), torch.zeros(1).long())
        for _ in range(2):
            EVENTS.append("read")
            yield [Observation(**{**vars(seen), **self.changes})]

    def samples_behind(self, part: Sequence[Observation]) -> int:
        return self.n

    def controls(self, attacker: Attacker[ImageAttack], part: Sequence[Observation], seed: int) -> tuple[Control, ...]:
        EVENTS.append("controls")
        return (Control("positive", self.passes, "recovered 0 of 4", None),)

    def note_part(self, attacker: Attacker[ImageAttack], number: int, part: Sequence[Observation], output: Any) -> int:
        return number

    def judge(self, attacker: Attacker[ImageAttack], mounted: Mounted[Reconstruction], trial: Trial) -> Made:
        assert mounted.notes == [0, 1] and len(mounted.results) == 2
        result = next(result for result in mounted.results if isinstance(result, Reconstruction))
        return Made(attacker, result, controls=mounted.controls, reasons=() if mounted.reach is None else (mounted.reach,))

    def not_tried(self, attacker: Attacker[ImageAttack], reason: NotTried) -> Made:
        return Made(attacker, inapplicable=reason.reason, controls=reason.controls)


def spent_by_controls() -> Reason | None:
    return Reason("budget spent", "cut") if "controls" in EVENTS else None


SPENT = Trial(cut=lambda: Reason("budget spent", "cut"))


@pytest.mark.parametrize(
    ("task", "trial", "refuses", "events", "kind"),
    [
        (Parts(), SPENT, (), ["read", "check"], "budget spent"),
        (Parts(unreadable=True), SPENT, (), [], "not available"),
        (Parts(each=2), SPENT, (), ["read"], "too many samples"),
        (Parts(loss="margins"), SPENT, (), ["read", "check"], "does not apply"),
        (Parts(), Trial(cut=spent_by_controls), (), ["read", "check", "controls"], "budget spent"),
        (Parts(unreadable=True), Trial(), (), [], "not available"),
        (Parts(each=2), Trial(), (), ["read"], "too many samples"),
        (Parts(schedule=Schedule(lr=0.1, steps=3)), Trial(), (), ["read"], "too many steps"),
        (Parts(loss="margins"), Trial(), (), ["read", "check"], "does not apply"),
        (Parts(passes=False), Trial(), (), ["read", "check", "controls"], "control failed"),
        (Parts(), Trial(), (1, 2), ["read", "check", "controls", "run", "read", "run"], "does not apply"),
        (Parts(), Trial(), (1,), ["read", "check", "controls", "run", "read", "run"], None),
        (Parts(passes=False, loss="margins"), Trial(controls=False), (), ["read", "run", "read", "run"], None),
    ],
)
def test_the_order_of_checks_before_an_attack(
    task: Parts, trial: Trial, refuses: Sequence[int], events: list[str], kind: str | None
) -> None:
    EVENTS.clear()
    output = task.run(Attacker(Told(refuses), ThreatModel()), trial)
    assert events == EVENTS
    assert (None if output.inapplicable is None else output.inapplicable.kind) == kind
    assert output.is_evidence == (output.reconstruction is not None) == (kind is None)
    assert (output.status(False) == Status("resisted")) == (kind is None)
    assert [control.passed for control in output.controls] == ([task.passes] if "controls" in events else [])


def test_an_attack_out_of_reach_can_be_run_and_is_no_evidence() -> None:
    output = Parts(each=2).run(Attacker(Told(), ThreatModel()), Trial(in_reach=False))
    (why,) = output.doubts
    assert output.reconstruction is not None and why.kind == "too many samples"
    assert why.text == "2 images behind one message; it has no positive control, and is tried on up to 1"


def test_failing_on_the_same_net_is_no_evidence() -> None:
    output = Parts().run(Attacker(Told(), ThreatModel()))
    assert add_same_net_control(output, None) is output and output.is_evidence
    for passes in (True, False):
        held = add_same_net_control(output, Control("same net", passes, "recovers 0 of 4", None))
        assert held.is_evidence is passes and [control.name for control in held.controls] == ["positive", "same net"]
        assert held.reasons == (() if passes else (Reason("same net", "recovers 0 of 4"),))


def test_a_statistic_and_what_is_known_are_in_the_name_in_tables() -> None:
    assert Attacker(Told(), ThreatModel(top="initial"), "variate").name == "told on variate"
