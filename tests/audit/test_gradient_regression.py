"""The regression on gradients in an audit: found where one step was taken, whatever hides the rest, and not where none was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv.audit.conditions import conditions
from fedpriv.audit.membership.inference import REGRESSION, REGRESSIONS, Membership, membership
from fedpriv.audit.membership.rounds import in_rounds
from fedpriv.audit.progress import Progress
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.sums import record_of
from tests.audit import built
from tests.simulation.small import play

ONE_STEP = {"train.batch_size": 500, "train.rounds": 1, "eval.last": 1}
NOISE = {"name": "gaussian", "variance": 1e-8}


def attacked(folder: Path, method: str = "fedavg", clients: int = 1, **overrides: Any) -> Membership:
    play(folder, method, **{**ONE_STEP, **overrides})
    run = record_of(folder)
    last = run.store.rounds()[-1]
    return membership(run, last, run.whole_clients(last)[:clients], shadows=4)


@pytest.mark.slow
def test_regression_finds_members_that_other_attacks_miss(tmp_path: Path) -> None:
    result = attacked(tmp_path / "run")
    assert result.attacks[REGRESSION].auc.value > 0.99 and REGRESSION not in result.failed_controls
    assert result.positive[REGRESSION].passed and result.controls[REGRESSION].low < 0.5 < result.controls[REGRESSION].high
    assert all(item.auc.value < 0.9 for name, item in result.attacks.items() if name != REGRESSION)
    assert any("gradient regression" in sentence for sentence in result.threat)


def test_a_condition_on_membership_counts_the_regression(tmp_path: Path) -> None:
    play(tmp_path / "run", "fedavg", **ONE_STEP)
    result = in_rounds(RunRecord(tmp_path / "run"), [], 4, 0, Progress(lambda text: None)).outcomes
    (target,) = conditions("membership_auc>0.95")
    assert target.holds(built.run(membership=tuple(item for item in result if item.attack == REGRESSION)))
    assert not target.holds(built.run(membership=tuple(item for item in result if item.attack != REGRESSION)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "least"),
    [
        ("fedavg", {"wire.transforms": [NOISE]}, 0.9),
        ("fedavg", {"wire.transforms": [{"name": "quantise", "bits": 4}]}, 0.8),
        ("fedavg", {"wire.transforms": [{"name": "prune", "fraction": 0.2}]}, 0.9),
        ("fedavg", {"wire.transforms": [{"name": "cast"}]}, 0.9),
        ("fedavg", {"wire.transforms": [{"name": "clip", "norm": 0.01}]}, 0.9),
        ("fedavg", {"wire.transforms": [{"name": "mask", "names": ["encoder.fc1.weight"]}]}, 0.9),
        ("fedper", {}, 0.65),
        ("fedprox", {}, 0.99),
        ("scaffold", {}, 0.99),
        ("fedavg", {"wire.secure_aggregation": True, "data.limit": 300}, 0.9),
    ],
)
def test_members_are_found_whatever_was_done_to_the_message(
    method: str, options: dict[str, Any], least: float, tmp_path: Path
) -> None:
    result = attacked(tmp_path / "run", method, **options)
    assert result.attacks[REGRESSION].auc.value > least, result.not_tried


@pytest.mark.slow
def test_several_rounds_tell_more_than_the_last(tmp_path: Path) -> None:
    strong = {"name": "gaussian", "variance": 1e-7}
    options: dict[str, Any] = {
        "train.rounds": 4,
        "train.participation": 1.0,
        "data.clients": 3,
        "data.limit": 90,
        "wire.transforms": [strong],
    }
    result = attacked(tmp_path / "run", clients=3, **{"wire.keep_payloads": "all", **options})
    assert result.attacks[REGRESSIONS].auc.value > result.attacks[REGRESSION].auc.value > 0.5
    assert REGRESSIONS in result.controls and not result.failed_controls


@pytest.mark.slow
def test_the_message_of_another_client_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(tmp_path / "run", "fedavg", **ONE_STEP)
    run = RunRecord(tmp_path / "run")
    clients = run.store.clients(1)[:3]
    others = dict(zip(clients, [*clients[1:], clients[0]], strict=True))
    real = run.message

    def swapped(round: int, client: int) -> Message:
        return real(round, others.get(client, client))

    monkeypatch.setattr(run, "message", swapped)
    result = membership(run, 1, clients, shadows=4).attacks[REGRESSION].auc
    assert result.low < 0.5 < result.high


@pytest.mark.slow
def test_of_one_kept_message_there_is_nothing_to_add_up(tmp_path: Path) -> None:
    play(tmp_path / "run", "fedavg", **{**ONE_STEP, "train.rounds": 2, "wire.keep_payloads": "all"})
    run = RunRecord(tmp_path / "run")
    new = [client for client in run.store.clients(2) if client not in run.store.clients(1)]
    result = membership(run, 2, new[:1], shadows=4)
    assert REGRESSION in result.attacks and REGRESSIONS not in {*result.attacks, *result.not_tried}


@pytest.mark.slow
def test_a_loss_without_labels_is_named_as_the_reason(tmp_path: Path) -> None:
    few: dict[str, Any] = {"model.name": None, "data.limit": 60, "data.clients": 3, "train.participation": 1.0}
    result = attacked(tmp_path / "run", "l-dawa", **few)
    assert "looks at no label" in result.not_tried[REGRESSION].text and REGRESSION not in result.attacks
