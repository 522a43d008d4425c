"""Numbers that clients report stand beside the server's own in a record, and never in their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpriv.server.answers.reported import check_names, means
from fedpriv.tracking.names import SECTIONS, as_points, point_values
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Report
from tests.deploy.apart import play_apart
from tests.marks import quick_first
from tests.simulation.small import play

SOME = {"data.limit": 200, "data.clients": 4, "train.participation": 1.0, "train.rounds": 1}
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", {"eval.fresh_head": 1, "wire.transforms": [{"name": "clip"}, {"name": "gaussian", "variance": 1e-4}]}),
    ("feddyn", {"method.test_mean": True, "executor.name": "vectorized"}),
    ("fedavg", {"privacy.level": "sample", "privacy.noise": 4.0}),
    ("fedavg", {"wire.secure_aggregation": True, "train.min_uploads": 4}),
    ("fedavg", {"eval.probe": "linear"}),
]
HONEST = ["clipped", "snr_db/encoder.fc1", "siamese/spread", "loss/contrast", "accuracy_before", "final", "κ", "a b", "a"]
SELDOM = ["refused", "missing", "too_few_uploads", "not_finite", "accuracy_before_merge", "global_x", "probe/x", "final/accuracy"]
SELDOM += ["audit/x"]


def own(record: dict[str, Any]) -> set[str]:
    """The names in a record that are not a client's or an aggregation's."""
    return {name for name in record["metrics"] if not name.startswith(("clipped", "snr_db/", "feddyn/"))}


@pytest.mark.parametrize(("method", "options"), quick_first(RUNS), ids=[str(number) for number in range(len(RUNS))])
def test_no_client_reports_what_a_record_says_itself(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    records = play(tmp_path / "run", method, **{**SOME, **options}).folder.records()
    names = set().union(*map(own, records))
    assert {"participants", "train_loss", "seconds", "total_bytes_up"} <= names
    for record in records:  # and by no name that becomes the server's in MLflow
        names |= point_values({**record, "metrics": {name: record["metrics"].get(name) for name in own(record)}}).keys()
    for name in names:
        with pytest.raises(Refused, match="a number of the server's own"):
            check_names([name])


def test_nor_what_a_record_of_a_deployment_says(tmp_path: Path) -> None:
    folder = play_apart(tmp_path / "run", "fedavg", **SOME)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert "bytes_up_tests" in last["metrics"]
    for name in own(last):
        with pytest.raises(Refused, match="a number of the server's own"):
            check_names([name])


@pytest.mark.parametrize("name", [*SELDOM, *SECTIONS.values()])
def test_nor_what_it_says_at_times(name: str) -> None:
    with pytest.raises(Refused, match="a number of the server's own"):
        check_names([name])


@pytest.mark.parametrize("name", ["accuracy?mean", "accuracy mean", "bytes/total?up"])
def test_a_name_that_a_tracker_spells_as_the_servers_is_refused(name: str) -> None:
    (point,) = as_points({name: 1.0}, 0, 1)
    assert point.key != name or " " in name
    with pytest.raises(Refused, match="a number of the server's own"):
        check_names([name])


@pytest.mark.parametrize("name", ["Accuracy", "ACCURACY", "Train_Loss", "Probe/x"])
def test_a_name_that_looks_like_the_servers_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="a number of the server's own"):
        check_names([name])


def test_more_numbers_than_a_net_has_layers_are_refused() -> None:
    check_names(f"snr_db/layer{number}" for number in range(1000))
    with pytest.raises(Refused, match="it reports 1001 numbers of its own, more than 1000"):
        check_names(f"x/{number}" for number in range(1001))


@pytest.mark.parametrize("name", ["", "a/../b", "/a", "a/", "a//b", "./a", "..", ".hidden/x"])
def test_a_name_that_is_no_plain_path_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="between slashes"):
        check_names([name])


def test_honest_names_are_taken_and_averaged() -> None:
    check_names(HONEST)
    reports = [Report(1, 0, 9, numbers={"a": 1.0, "b": 5.0}), Report(1, 1, 1, numbers={"a": 2.0}), Report(1, 2, 1)]
    assert means(reports) == {"a": 1.5, "b": 5.0}
