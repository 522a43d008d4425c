"""What an audit's budget keeps from beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.trial import NotTried, Trial
from fedpriv.audit.images import attempts
from fedpriv.audit.images.target import Target
from tests.audit.built import CUT


class Asked:
    """A target of which controls are asked."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def start(self, attacker: str, trial: Trial) -> tuple[list[object], Iterator[object]]:
        if (over := trial.cut()) is not None:
            raise NotTried(over)
        return [], iter(())

    def controls(self, attacker: str, first: object, seed: int) -> None:
        self.ran.append(attacker)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_control_begins_after_it(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    target, said = Asked(), list[str]()

    def spent(say: object) -> Reason | None:
        return CUT if len(target.ran) >= most else None

    monkeypatch.setattr(attempts, "spent", spent)
    attackers = cast("list[Any]", ["a", "b", "c"])
    attempts._controls_at_once(cast("Target", target), attackers, 0, said.append, 1)
    assert target.ran == ["a", "b", "c"][:most] and len(said) == (most > 0)
