"""What an audit's budget keeps from beginning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.trial import NotTried, Trial
from fedpriv.audit.foreign.membership import in_recorded_rounds
from fedpriv.audit.foreign.simulation import SimulatedRecord
from fedpriv.audit.images import attempts
from fedpriv.audit.images.target import Target
from fedpriv.audit.membership.label_leaks import shadow_labels
from fedpriv.audit.membership.rounds import in_rounds
from fedpriv.audit.progress import BudgetSpent, Progress
from fedpriv.audit.record.base import Record
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.audit import Part
from fedpriv.audit.run_audit import AuditOptions, _finished, _of_clients, _of_members, _shadow_labels
from fedpriv.client.client import Client
from fedpriv.errors import FedprivError
from tests.audit import built
from tests.audit.built import CUT
from tests.recorder.loop import recorded
from tests.simulation.small import FEW_STEPS, play


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


class FewBegin(Progress):
    """The progress of an audit whose budget is spent when ``most`` shadow clients began."""

    def __init__(self, most: int) -> None:
        super().__init__(lambda text: None, 60.0)
        self.left = most + 1  # it is asked once before the first of them

    def so_far(self) -> float:
        return 0.0 if getattr(self, "left", 1) > 0 else 61.0

    def in_time(self) -> None:
        super().in_time()
        self.left -= 1


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """What gets an entry at the end of each call of a method."""
    calls, real = list[object](), getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        result = real(*given, **named)
        calls.append(None)
        return result

    monkeypatch.setattr(owner, name, call)
    return calls


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("kept") / "run"
    play(folder, "fedavg", **{**FEW_STEPS, "train.rounds": 1, "wire.keep_payloads": "all"})
    return RunRecord(folder)


def test_no_shadow_model_begins_after_it(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = counted(monkeypatch, Client, "train")
    results = in_rounds(kept, [1], 4, 0, FewBegin(2))
    assert len(trained) == 2
    assert results.refused is not None and results.refused.kind == "budget spent"
    assert [(it.attack, it.round, it.status.reasons) for it in results.outcomes] == [
        ("every membership attack", 1, (results.refused,))
    ]


def test_no_shadow_client_of_the_label_sets_begins_after_it(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, progress = counted(monkeypatch, Client, "train"), FewBegin(2)
    progress.in_time()
    with pytest.raises(BudgetSpent):
        shadow_labels(kept, 1, 6, 0, progress.in_time)
    assert len(trained) == 2


@pytest.mark.slow
def test_no_shadow_model_of_a_record_begins_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimulatedRecord(recorded(tmp_path / "record", rounds=1).folder)
    trained = counted(monkeypatch, SimulatedRecord, "simulated")
    results = in_recorded_rounds(record, [], 8, 0, FewBegin(2))
    assert len(trained) == 3  # with the server's own update
    assert results.refused is not None and results.refused.kind == "budget spent"


def test_what_does_not_apply_is_not_said_to_be_cut(kept: RunRecord) -> None:
    """FedAvg sends no class centres, a sum is of no single client, and pairs may lack images."""
    spent = FewBegin(-1)
    bare = built.run(statistics=(), labels=(), label_rules=())
    options = AuditOptions(messages=1, budget=60.0)
    for name, part, asked in ("clients", _of_clients, "shadow clients"), ("members", _of_members, "membership"):
        cut = _finished(name, part, bare, kept, options, spent).run.not_run
        assert {of: reason.kind for of, reason in cut.items()} == {asked: "budget spent"}

    not_run = dict[Part, Reason]()
    summed = cast("Record", SimpleNamespace(summed=True, numbers=False, rounds=lambda: [1]))
    assert _shadow_labels(summed, AuditOptions(), not_run, spent) is None
    assert not_run["shadow clients"].kind == "not available" and "a sum" in not_run["shadow clients"].text

    def none(round: int) -> list[int]:
        raise FedprivError("every client lacks the texts")

    lacking = cast("RunRecord", SimpleNamespace(store=SimpleNamespace(rounds=lambda: [1]), whole_clients=none))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpriv.audit.membership.rounds._corrected", lambda *asked: [])
        results = in_rounds(lacking, [], 4, 0, spent)
    assert results.refused == Reason("not available", "every client lacks the texts")
