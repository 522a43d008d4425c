"""Requests of runs, also of two apps for one request: the SuperLink may start another if it believes the first is dead."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fedpriv.deploy import server_run
from fedpriv.deploy.flower.requests import GivenUp, Request
from fedpriv.deploy.frames import Frame
from fedpriv.errors import UsageError
from fedpriv.files import load_json, save_json
from fedpriv.storage.run_folder import RunFolder
from tests.deploy.apart import agree, client_nodes
from tests.deploy.loopback import Loopback
from tests.simulation.small import config, play

SETTINGS = {
    "data.clients": 3,
    "data.limit": 200,
    "model.projection": 8,
    "train.participation": 1.0,
    "executor.name": "sequential",
}


class Doomed(Loopback):
    """A grid whose SuperLink gives the app up in its second round, once another one was started."""

    other = threading.Event()

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        if round == 2:
            assert self.other.wait(60)
            raise GivenUp("the SuperLink does not know the server's app any more")
        yield from super().exchange(frames, seconds, round)


@pytest.mark.parametrize(
    ("chosen", "written"), [({}, "drop"), ({"train.on_nan": "stop"}, "stop"), ({"aggregation.name": "euc"}, "stop")]
)
def test_on_nan_is_as_chosen_else_drop(tmp_path: Path, chosen: dict[str, Any], written: str) -> None:
    request = Request.write(tmp_path, tmp_path / "run", config("fedavg", **{**SETTINGS, **chosen}), 3, 60)
    assert load_json(request.path)["config"]["train"]["on_nan"] == written


def test_a_request_leaves_open_what_the_data_may_suggest(tmp_path: Path) -> None:
    request = Request.write(tmp_path, tmp_path / "run", config("fedavg", **SETTINGS), 3, 60)
    written = load_json(request.path)["config"]
    assert written["train"]["lr"] == 0.05 and "partition" not in written["data"]


def test_clients_of_the_data_become_the_partition(tmp_path: Path) -> None:
    """Each client of the deployment opens the same folder, and that suggests its own clients."""
    for number, name in enumerate(("north", "south", "west")):
        folder = tmp_path / "data" / "clients" / name
        folder.mkdir(parents=True)
        rows = [f"{i},{i * i % (7 + number)},{i % 2}" for i in range(20 + 10 * number)]
        (folder / "train.csv").write_text("\n".join(["a,b,label", *rows]))
    chosen = config("fedavg", **{**SETTINGS, "data.name": str(tmp_path / "data"), "data.limit": None, "train.rounds": 1})
    (tmp_path / "requests").mkdir()
    request = Request.write(tmp_path / "requests", tmp_path / "run", chosen, 3, 60)
    request.play(lambda clients, removed: Loopback(client_nodes(tmp_path / "run-clients", chosen)))
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config().data.partition.name == "given" and request.ended == {"finished": True}
    assert [record.get("refused") for record in folder.records()] == [None, None]
    assert (folder.summary() or {})["clients_never_trained"] == 0


def test_a_second_app_continues_the_run_of_the_first(tmp_path: Path) -> None:
    play(tmp_path / "whole", "mpfedcon", **SETTINGS)
    chosen = config("mpfedcon", **SETTINGS)
    here = client_nodes(tmp_path / "run-clients", chosen)
    (tmp_path / "requests").mkdir()
    request = Request.write(tmp_path / "requests", tmp_path / "run", chosen, 3, 60)
    doomed = Doomed(here)
    first_ended = threading.Event()

    def second() -> None:
        doomed.other.set()
        Request(request.path).play(lambda clients, removed: Loopback(here) if first_ended.wait(60) else doomed)

    other = threading.Thread(target=second)
    with pytest.raises(GivenUp):
        request.play(lambda clients, removed: (other.start(), doomed)[1])
    assert request.ended is None, "a run that may go on has not ended"
    first_ended.set()
    other.join(120)
    assert request.ended == {"finished": True}
    agree(tmp_path / "run", tmp_path / "whole")
    request.play(lambda clients, removed: pytest.fail("it is played once"))


def test_follow_reports_rounds_and_warnings(tmp_path: Path) -> None:
    """What the server's app prints would be in the SuperLink's database alone."""
    chosen = config("fedavg", **{**SETTINGS, "train.rounds": 1, "train.max_update_norm": 1e-6})
    (tmp_path / "requests").mkdir()
    request = Request.write(tmp_path / "requests", tmp_path / "run", chosen, 3, 60)
    request.play(lambda clients, removed: Loopback(client_nodes(tmp_path / "run-clients", chosen)))
    warnings: list[str] = []
    assert request.follow(lambda: None, lambda record: None, warnings.append)
    assert [text for text in warnings if "what client 2 sent is refused" in text], warnings
    shown: list[dict[str, Any]] = []
    assert request.follow(lambda: None, shown.append, after=0)
    assert [record["round"] for record in shown] == [1], "who resumes a run has seen its first rounds"


def test_a_full_disk_at_a_warning_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = config("fedavg", **{**SETTINGS, "train.rounds": 1, "train.max_update_norm": 1e-6})
    request, real = Request.write(tmp_path, tmp_path / "run", chosen, 3, 60), Path.open

    def full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if path == request.warnings:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    request.play(lambda clients, removed: Loopback(client_nodes(tmp_path / "run-clients", chosen)))
    assert request.ended == {"finished": True}
    assert "what client 0 sent is refused" in capsys.readouterr().err


def test_the_last_request_of_each_run(tmp_path: Path) -> None:
    chosen = config("fedavg", **SETTINGS)
    first, second, other = (Request.write(tmp_path, tmp_path / name, chosen, 3, 60) for name in ("a-1", "a-1", "b"))
    assert Request.latest(tmp_path) == {"a-1": second, "b": other} and first != second


def test_requests_are_ordered_by_number_and_not_by_clock(tmp_path: Path) -> None:
    chosen = config("fedavg", **SETTINGS)
    requests = [Request.write(tmp_path, tmp_path / "a-1", chosen, 3, 60) for _ in range(11)]
    assert Request.latest(tmp_path) == {"a-1": requests[-1]}
    requests[-1]._begun.touch()
    requests[-1].path.unlink()
    assert not Request.write(tmp_path, tmp_path / "a-1", chosen, 3, 60)._begun.exists(), "a number is used once"


@pytest.mark.parametrize("how", ["copytree", "move"])
def test_a_deployment_that_was_moved_or_copied_plays_its_own_run(tmp_path: Path, how: str) -> None:
    chosen, first = config("fedavg", **{**SETTINGS, "train.rounds": 1}), tmp_path / "first"
    for name in ("requests", "runs/run"):
        (first / name).mkdir(parents=True)
    Request.write(first / "requests", first / "runs" / "run", chosen, 3, 60)._begun.touch()
    getattr(shutil, how)(first, tmp_path / "second")
    (request,) = Request.interrupted(tmp_path / "second" / "requests")
    assert request.run_dir == tmp_path / "second" / "runs" / "run"
    request.play(lambda clients, removed: Loopback(client_nodes(tmp_path / "clients", chosen)))
    assert request.ended == {"finished": True}
    assert RunFolder.open(tmp_path / "second" / "runs" / "run").summary() is not None
    assert not (first / "runs" / "run" / "config.yaml").exists()


@pytest.mark.parametrize("name", ["note_beginning", "save_json", "run_server"])
def test_a_run_killed_at_its_start_is_started_again(tmp_path: Path, name: str) -> None:
    """With a config alone, before it says what its clients declared, and before its first round."""
    chosen = config("fedavg", **{**SETTINGS, "train.rounds": 1})
    play(tmp_path / "whole", "fedavg", **{**SETTINGS, "train.rounds": 1})
    grid = Loopback(client_nodes(tmp_path / "run-clients", chosen))
    (tmp_path / "requests").mkdir()
    request = Request.write(tmp_path / "requests", tmp_path / "run", chosen, 3, 60)
    assert Request.interrupted(tmp_path / "requests") == []
    with patch.object(server_run, name, side_effect=SystemExit), pytest.raises(SystemExit):  # notes nothing, as a kill
        request.play(lambda clients, removed: grid)
    assert request.ended is None and Request.interrupted(tmp_path / "requests") == [request]
    request.play(lambda clients, removed: grid)
    assert request.ended == {"finished": True} and Request.interrupted(tmp_path / "requests") == []
    agree(tmp_path / "run", tmp_path / "whole")


def test_another_run_in_the_folder_is_not_deleted(tmp_path: Path) -> None:
    chosen = config("fedavg", **{**SETTINGS, "train.rounds": 1})
    request = Request.write(tmp_path, tmp_path / "run", chosen, 3, 60)
    request._begun.touch()
    play(tmp_path / "run", "fedavg", **{**SETTINGS, "train.rounds": 1})
    with pytest.raises(UsageError, match="holds a run already"):
        request.play(lambda clients, removed: Loopback(client_nodes(tmp_path / "run-clients", chosen)))
    assert RunFolder.open(tmp_path / "run").summary() is not None


def test_interrupted_finds_runs_that_did_not_end(tmp_path: Path) -> None:
    chosen, requests = config("fedavg", **SETTINGS), tmp_path / "requests"
    requests.mkdir()

    def written(name: str, began: bool = True, folder: bool = True, **note: Any) -> Request:
        request = Request.write(requests, tmp_path / name, chosen, 3, 60)
        if began:
            request._begun.touch()
        if folder:
            (tmp_path / name).mkdir(exist_ok=True)
        if note:
            save_json(request._note, note)
        return request

    killed = written("killed")
    written("ended", finished=True)
    written("failed", error="why")
    written("not-begun", began=False)
    written("removed", folder=False)  # by its operator
    written("stopped")
    written("stopped", finished=False)  # resumed after a kill, and stopped
    assert Request.interrupted(requests) == [killed]


def test_a_schedule_is_read_when_the_request_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's app runs in another folder."""
    (tmp_path / "schedule.txt").write_text("0 1\n1 2\n0 2\n")
    monkeypatch.chdir(tmp_path)
    chosen = config("fedavg", **{**SETTINGS, "train.selection": "schedule", "train.schedule": "schedule.txt"})
    request = Request.write(tmp_path, tmp_path / "run", chosen, 3, 60)
    assert load_json(request.path)["config"]["train"]["schedule"] == [[0, 1], [1, 2], [0, 2]]


def test_a_new_request_refuses_an_existing_run(tmp_path: Path) -> None:
    chosen = config("fedavg", **{**SETTINGS, "train.rounds": 1})
    grid = Loopback(client_nodes(tmp_path / "run-clients", chosen))
    (tmp_path / "requests").mkdir()
    Request.write(tmp_path / "requests", tmp_path / "run", chosen, 3, 60).play(lambda clients, removed: grid)
    again = Request.write(tmp_path / "requests", tmp_path / "run", chosen, 3, 60)
    with pytest.raises(UsageError, match="holds a run already"):
        again.play(lambda clients, removed: grid)
    ended = again.ended
    assert ended is not None and "holds a run already" in ended["error"]
