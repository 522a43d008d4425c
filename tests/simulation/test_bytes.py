"""The byte counts of a run are the lengths of what crossed the wire, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpriv.wire import Direction, Sealed
from tests.simulation.small import play, simulation

Crossed = list[tuple[Direction, Sealed]]


def play_tapped(folder: Path, method: str, **overrides: Any) -> tuple[list[dict[str, Any]], list[Crossed]]:
    """Each round's record (0: the broadcast) and what a tap of our own saw cross in it."""
    run, seen = simulation(folder, method, **overrides), []
    crossed: list[Crossed] = []
    run.taps.append(lambda direction, sealed: seen.append((direction, sealed)))

    def step() -> None:
        crossed.append(list(seen))
        seen.clear()

    run.start()
    step()
    for _ in run.rounds():
        step()
    return run.folder.records(), crossed


def total(crossed: Crossed, *directions: Direction) -> int:
    return sum(len(sealed.data) for way, sealed in crossed if way in directions)


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("mpfedcon", {}),
        ("fedavg", {"wire.transforms": [{"name": "cast"}]}),
        ("fedrep", {"wire.transforms": [{"name": "mask", "names": ["encoder.*.bias"]}]}),
        ("local", {}),
    ],
    ids=["mpfedcon", "fedavg-cast", "fedrep-mask", "local"],
)
def test_every_count_is_the_sum_over_a_tap(tmp_path: Path, method: str, overrides: dict[str, Any]) -> None:
    records, crossed = play_tapped(tmp_path / "run", method, **overrides)
    assert len(records) == len(crossed) == 4
    up = down = 0
    for record, seen in zip(records, crossed, strict=True):
        metrics = record["metrics"]
        assert (metrics["bytes_up"], metrics["bytes_down"]) == (total(seen, "up", "report"), total(seen, "down"))
        up, down = up + total(seen, "up", "report"), down + total(seen, "down")
        assert (metrics["total_bytes_up"], metrics["total_bytes_down"]) == (up, down)
        if method != "local" and record["round"]:
            ways = [way for way, _ in seen]
            assert ways.count("up") == ways.count("report") == ways.count("down") == metrics["participants"] == 3


@pytest.mark.parametrize("method", ["mpfedcon", "fedrep"])
def test_round_0_sends_the_whole_initial_model_to_every_client_head_included(tmp_path: Path, method: str) -> None:
    records, crossed = play_tapped(tmp_path / "run", method, **{"train.rounds": 1})
    assert [way for way, _ in crossed[0]] == ["down"] * 10
    payload = crossed[0][0][1]
    assert {"encoder", "projector", "head"} <= {name.split(".")[0] for name in payload.schema}
    assert records[0]["metrics"]["bytes_down"] == 10 * payload.nbytes
    downloads = [sealed for way, sealed in crossed[1] if way == "down"]
    assert not any(name.startswith("head") for sealed in downloads for name in sealed.schema)


def test_local_sends_nothing_but_reports(tmp_path: Path) -> None:
    records, crossed = play_tapped(tmp_path / "run", "local")
    assert {way for seen in crossed for way, _ in seen} == {"report"}
    assert all(not name.startswith(("encoder", "head")) for seen in crossed for _, sealed in seen for name in sealed.schema)
    assert records[-1]["metrics"]["total_bytes_down"] == 0


def test_what_is_masked_is_not_paid_for(tmp_path: Path) -> None:
    mask = {"wire.transforms": [{"name": "mask", "roles": ["head"]}]}
    (plain, plainly), (masked, maskedly) = (play_tapped(tmp_path / name, "fedavg", **o) for name, o in (("a", {}), ("b", mask)))
    upload = next(sealed for way, sealed in plainly[1] if way == "up")
    head = sum(t.nbytes for n, t in upload.tensors().items() if n.startswith("head."))
    assert head > 0
    for before, after in zip(plain[1:], masked[1:], strict=True):
        assert after["metrics"]["bytes_up"] <= before["metrics"]["bytes_up"] - 3 * head
        assert after["metrics"]["bytes_down"] == before["metrics"]["bytes_down"]
    uploads = [sealed for seen in maskedly for way, sealed in seen if way == "up"]
    assert not any(name.startswith("head") for sealed in uploads for name in sealed.schema)


def test_the_summary_counts_all_rounds(tmp_path: Path) -> None:
    outcome = play(tmp_path / "run", "mpfedcon")
    lines = [json.loads(line)["metrics"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert outcome.summary is not None
    assert outcome.summary["bytes_up"] == sum(line["bytes_up"] for line in lines) > 0
    assert outcome.summary["bytes_down"] == sum(line["bytes_down"] for line in lines) > 0
