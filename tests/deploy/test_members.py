"""Clients that come and go: their files and numbers, runs beside vacant numbers, and the operators' journal."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from fedpriv.cli import deploy_members
from fedpriv.deploy import transport
from fedpriv.deploy.flower import internals
from fedpriv.deploy.flower.paths import make, read_client
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.operation.members import Member
from fedpriv.deploy.server_run import STOP, start
from fedpriv.deploy.transport import Transport
from fedpriv.errors import FedprivError
from fedpriv.storage.run_folder import RunFolder
from tests.deploy.apart import client_nodes, go_on
from tests.deploy.loopback import Loopback
from tests.deploy.unreliable import Clock, Unreliable
from tests.simulation.small import config


@pytest.fixture(autouse=True)
def without_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not marked does not use Flower, which need not be installed for it."""
    monkeypatch.setattr(internals, "require_flower", lambda: None)


@pytest.mark.extra("deploy")
def test_clients_come_and_go_without_a_running_server(tmp_path: Path, fedpriv: Callable[..., Result]) -> None:
    paths = make(tmp_path / "d", 2, "server.example.org")
    keys = {number: paths.public_key(number).read_bytes() for number in range(2)}
    ended = fedpriv("deploy", "add-client", paths.path, "hospital-b")
    assert ended.exit_code == 0 and "hospital-b is client 2: copy" in ended.stdout and "no server runs" in ended.stderr
    added = read_client(paths.client_file(2))
    assert (added.client, added.server) == (2, "server.example.org:8443") and added.key.stat().st_mode & 0o777 == 0o600
    assert paths.public_key(2).read_bytes() not in keys.values()
    assert fedpriv("deploy", "remove-client", paths.path, "client-1").exit_code == 0
    assert [member.node for member in paths.members.present()] == ["client-0", "client-2"]
    assert fedpriv("deploy", "add-client", paths.path, "client-1").exit_code == 0, "the name is free, the number is not"
    assert paths.members.named("client-1").number == 3
    for name, why in [("hospital-b", "is called hospital-b already"), ("a/b", "a name has letters")]:
        ended = fedpriv("deploy", "add-client", paths.path, name)
        assert ended.exit_code == 2 and why in " ".join(ended.stderr.split())
    ended = fedpriv("deploy", "remove-client", paths.path, "hospital-c")
    assert ended.exit_code == 2 and "it has client-0, hospital-b, client-1" in " ".join(ended.stderr.split())
    entries = [json.loads(line) for line in paths.journal.read_text(encoding="utf-8").splitlines()]
    assert [(entry["did"], entry["what"]) for entry in entries] == [
        ("add-client", "hospital-b"),
        ("remove-client", "client-1"),
        ("add-client", "client-1"),
    ]
    assert all(entry["user"] and entry["time"] and entry["host"] for entry in entries)
    assert stat.S_IMODE(paths.journal.stat().st_mode) == 0o600


def test_a_running_server_learns_of_them_at_once_and_runs_say_that_they_have_begun(
    tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[Any]()

    class Link:
        def register(self, name: str, key: Path) -> None:
            done.append(("register", name, key.exists()))

        def unregister(self, name: str) -> None:
            done.append(("unregister", name))

    paths = make(tmp_path / "d", 2, "server.example.org")
    monkeypatch.setattr(deploy_members, "link_of", lambda paths: Link())
    with RunFolder.begin(config("fedavg", run_dir=str(paths.runs / "begun")), paths.runs) as folder:
        folder.update_facts(status="running")
        ended = fedpriv("deploy", "add-client", paths.path, "late")
        assert "begun has begun with its clients and goes on without late" in " ".join(ended.stderr.split())
        assert "begun goes on without it" in fedpriv("deploy", "remove-client", paths.path, "client-0").stderr
    assert done == [("register", "client-2", True), ("unregister", "client-0")]


FOUR = {"data.clients": 4, "data.limit": 120, "train.rounds": 2, "train.participation": 1.0, "wire.keep_payloads": "all"}


def test_a_run_leaves_out_vacant_numbers_and_says_when_its_clients_came(tmp_path: Path) -> None:
    chosen = config("mpfedcon", **FOUR, run_dir=str(tmp_path / "run"))
    nodes = client_nodes(tmp_path / "clients", chosen)
    del nodes[0]
    members = [Member(number, f"hospital-{number}", f"2026-01-0{number}T00:00:00+00:00") for number in (1, 2, 3)]

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            (tmp_path / "run" / STOP).touch()

    grid = Loopback(nodes)
    assert start(chosen, tmp_path, grid, 60, lambda *of: None, stop, lambda text: None, members=members) is None
    go_on(tmp_path / "run", grid)
    folder = RunFolder.open(tmp_path / "run")
    records = folder.records()
    assert [record["metrics"].get("participants") for record in records[1:]] == [3, 3]
    assert folder.facts["deployed"]["clients"][0] == {"number": 1, "name": "hospital-1", "added": "2026-01-01T00:00:00+00:00"}
    broadcast = (folder.path / "payloads" / "round-0000" / "broadcast.safetensors").stat().st_size
    assert records[0]["metrics"]["bytes_down"] == 3 * broadcast, "nothing is sent to a vacant number"


def test_a_removed_client_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gone = Clock(), dict[int, str]()
    monkeypatch.setattr(transport, "time", clock)
    network = Unreliable(tmp_path, config("fedavg", **FOUR), {}, clock, away={1})
    gone[1] = "it was removed at noon"
    frames = {client: Frame({"run": "none", "entries": []}) for client in (0, 1)}
    answers = dict(Transport(network, lambda: gone).exchange(frames, 600, 1))
    assert answers[1] == "it was removed at noon" and isinstance(answers[0], Frame)
    assert clock.now < transport.JOIN_AGAIN


def test_status_watch_shows_the_clients_again_and_says_when_the_server_is_away(
    tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make(tmp_path / "d", 2, "server.example.org")
    states = iter(["online", "offline", None])

    def link_of(paths: Any) -> Any:
        if (state := next(states)) is None:
            raise FedprivError("no server answers")
        return SimpleNamespace(nodes=lambda: [SimpleNamespace(name="client-0", status=state)])

    pauses = iter([None, None, KeyboardInterrupt])

    def sleep(seconds: float) -> None:
        if (end := next(pauses)) is not None:
            raise end

    monkeypatch.setattr(deploy_members, "link_of", link_of)
    monkeypatch.setattr(deploy_members, "time", SimpleNamespace(sleep=sleep, strftime=time.strftime))
    shown = fedpriv("deploy", "status", paths.path, "--watch").stdout.split()
    assert [word for word in shown if word in ("online", "offline", "answers")] == ["online", "offline", "answers"]
