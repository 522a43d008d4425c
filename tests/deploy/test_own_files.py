"""A client opens the files that its own file names, and none that a server names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.facts import HANDSHAKE
from fedpriv.deploy.frames import Envelope, Frame
from fedpriv.deploy.versions import code_version
from fedpriv.errors import UsageError
from fedpriv.simulation.inputs.unseen import SampleForm
from tests.data.image_files import pixels, write_folder
from tests.deploy.apart import ALL_KEPT, agree, client_nodes, play_apart
from tests.deploy.loopback import Loopback
from tests.simulation.small import config, play

TEXTS = {"model.encoder": "tiny", "data.clients": 2, "train.participation": 1.0}
PATIENTS = "Jane Doe", "John Roe", "Ann Poe"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Reports on patients, with two columns that could be labels."""
    rows = [f"report {n},{('flu', 'cold')[n % 2]},{PATIENTS[n % 3]}" for n in range(60)]
    (tmp_path / "reports.csv").write_text("text,diagnosis,patient\n" + "\n".join(rows) + "\n")
    return tmp_path / "reports.csv"


def described(tmp_path: Path, source: Source, **asked: Any) -> Frame:
    """What a client answers to a server that asks it to describe its data for such a config."""
    envelope = Envelope()
    envelope.add({"do": "describe", "code": code_version(), "config": config("fedavg", **asked).model_dump(mode="json")})
    return ClientNode(0, source, tmp_path / "state").answer(envelope.frame(run=HANDSHAKE))


@pytest.mark.parametrize("name", ["reports.csv", ".", "hf:some/data"])
def test_a_server_names_no_data_but_registered_ones(
    tmp_path: Path, reports: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for asked in {name, str(tmp_path / name)}:
        answer = described(tmp_path, Source(), **TEXTS, **{"data.name": asked, "data.label": "patient"})
        assert "only registered data sets" in str(answer.error)
    assert described(tmp_path, Source(), **{"data.name": "digits"}).error is None


def test_a_server_chooses_no_column_of_a_clients_own_data(tmp_path: Path, reports: Path) -> None:
    own = Source(str(reports), label="diagnosis")
    answer = described(tmp_path, own, **TEXTS, **{"data.name": "elsewhere.csv", "data.label": "patient"})
    assert "the client's file says which column" in str(answer.error)
    by_column = {"data.partition.name": "by_column", "data.partition.column": "patient"}
    for asked in ({}, {"data.label": "diagnosis"}, by_column):
        answer = described(tmp_path, own, **TEXTS, **{"data.name": "elsewhere.csv"}, **asked)
        assert answer.error is None and sorted(answer.entries[0]["classes"]) == ["cold", "flu"]
    with pytest.raises(UsageError, match=r"needs data\.name"):
        Source(label="diagnosis")


@pytest.mark.parametrize(
    ("rows", "quoted"),
    [
        (["text,diagnosis", "a report,flu", "a report,cold,Jane Doe"], "Jane Doe"),
        (["text,illness", "a report,flu", "a report,cold"], "illness"),
    ],
    ids=["a row", "a column"],
)
def test_errors_quote_a_clients_own_data_in_its_own_log_alone(
    tmp_path: Path, rows: list[str], quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Jane Doe").mkdir()
    file = tmp_path / "Jane Doe" / "my reports.csv"
    file.write_text("\n".join(rows) + "\n")
    answer = described(tmp_path, Source(str(file), label="diagnosis"), **TEXTS, **{"data.limit": 2})
    assert "its data cannot be read as the run's config says" in str(answer.error)
    assert quoted not in str(answer.error) and "Doe" not in str(answer.error) and quoted in capsys.readouterr().err


def test_an_unexpected_error_is_sent_as_its_kind_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_of: object) -> None:
        raise KeyError("Jane Doe")

    monkeypatch.setattr(SampleForm, "of", fails)
    error = described(tmp_path, Source("digits")).error
    assert error == "the client cannot answer (KeyError); the client's own log says why" and "Jane" in capsys.readouterr().err


def test_a_server_names_no_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("0 1\nmy password is 42\n")
    lines = {"train.selection": "schedule", "train.schedule": str(tmp_path / "notes.txt")}
    error = described(tmp_path, Source("digits"), **lines).error
    assert "train.schedule names a file" in str(error) and "password" not in str(error)
    for folder in (str(tmp_path), "../models/bert", "~/bert"):
        answer = described(tmp_path, Source("digits"), **{"model.encoder": folder})
        assert "model.encoder names a folder" in str(answer.error)
    with pytest.raises(UsageError, match="clients open no folder that a server names"):
        play_apart(tmp_path / "run", "fedavg", **{**TEXTS, "model.encoder": str(tmp_path)})


def test_own_images_are_scaled_once_all_clients_are_known(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", list(pixels(40, 8, 8)), [0, 1] * 20)
    own, asked = Source(str(tmp_path / "photos")), {"data.limit": None, "data.partition.name": "iid"}
    (facts,) = described(tmp_path, own, **asked).entries
    unscaled = {"columns": (), "channels": 1, "images": True, "arrays": None, "target": None}
    assert facts["unscaled"] == unscaled and facts["form"]["shape"] == (
        1,
        8,
        8,
    )
    for source, more in ((own, {"data.pixels": "unit"}), (Source("digits"), {})):
        (facts,) = described(tmp_path, source, **asked, **more).entries
        assert facts["unscaled"] is None


class Reading(Loopback):
    """A loopback that keeps the configs sent to clients."""

    def __init__(self, of: Mapping[int, ClientNode]) -> None:
        super().__init__(of)
        self.configs: list[Mapping[str, Any]] = []

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        self.configs += [entry["config"] for frame in frames.values() for entry in frame.entries if "config" in entry]
        yield from super().exchange(frames, seconds, round)


def test_a_schedule_is_sent_as_the_clients_of_each_round(tmp_path: Path) -> None:
    file = tmp_path / "schedule.txt"
    file.write_text("0 2\n1 2\n")
    follows = {"train.rounds": 2, "train.selection": "schedule", "train.schedule": str(file)}
    asked = {"data.clients": 3, "data.limit": 100, "train.participation": 1.0, **follows, **ALL_KEPT}
    play(tmp_path / "whole", "fedavg", **asked)
    grid = Reading(client_nodes(tmp_path / "apart-clients", config("fedavg", **asked)))
    agree(play_apart(tmp_path / "apart", "fedavg", grid=grid, **asked), tmp_path / "whole")
    assert grid.configs and all(sent["train"]["schedule"] == [[0, 2], [1, 2]] for sent in grid.configs)
    file.write_text("0 7\n")
    with pytest.raises(UsageError, match=r"schedule\.txt:1: '0 7'"):
        play_apart(tmp_path / "other", "fedavg", grid=Reading({}), **asked)
