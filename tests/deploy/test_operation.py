"""What an operator sees: metrics and health on a local port, logs that are rotated, counters of a client."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.facts import HANDSHAKE
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.operation import database, logs
from fedpriv.deploy.operation.counters import Counters, read_counters
from fedpriv.deploy.operation.logs import Log
from fedpriv.deploy.operation.measuring import of_counters, of_server
from fedpriv.deploy.operation.metrics import Metric, served
from fedpriv.deploy.versions import code_version
from fedpriv.errors import UsageError
from tests.deploy.apart import play_apart
from tests.simulation.small import FEW_STEPS, config


def get(port: int, path: str) -> tuple[int, str]:
    """The status and body of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.extra("deploy")
def test_a_local_port_answers_health_and_metrics() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    problem: list[str | None] = [None]
    metrics = [
        Metric("bytes", "Bytes.", 7, {"direction": "in"}, "counter"),
        Metric("bytes", "Bytes.", 9, {"direction": "out"}, "counter"),
        Metric("run_round", "Rounds.", 3, {"run": 'a"b'}),
    ]
    with served(0, lambda: metrics, lambda: problem[0]) as port:
        assert get(port, "/health") == (200, '{"status": "ok"}\n')
        problem[0] = "its SuperNode does not run"
        assert get(port, "/health") == (503, '{"status": "failing", "problem": "its SuperNode does not run"}\n')
        families = {family.name: family for family in text_string_to_metric_families(get(port, "/metrics")[1])}
        assert get(port, "/")[0] == 404
    samples = [(sample.labels, sample.value) for sample in families["fedpriv_bytes"].samples]
    assert samples == [({"direction": "in"}, 7), ({"direction": "out"}, 9)] and families["fedpriv_bytes"].type == "counter"
    assert families["fedpriv_run_round"].samples[0].labels == {"run": 'a"b'}


def values(metrics: Any) -> dict[Any, float]:
    return {(metric.name, *metric.labels.values()): metric.value for metric in metrics}


def test_a_server_s_metrics_are_those_of_its_runs_and_nodes(tmp_path: Path) -> None:
    folder = play_apart(tmp_path / "runs" / "run", "fedavg", **FEW_STEPS)
    (tmp_path / "runs" / "run-clients").rename(tmp_path / "clients")
    nodes = [("client-0", "online"), ("client-1", "offline")]
    measured = values(of_server(tmp_path / "runs", tmp_path / "none", lambda: nodes))
    record = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert (measured["clients_online",], measured["clients",]) == (1, 2)
    assert (measured["run_round", "run"], measured["run_running", "run"]) == (record["round"], 0)
    assert measured["run_bytes_up", "run"] == record["metrics"]["total_bytes_up"] > 0
    (folder / "metrics.jsonl").write_bytes(b"damaged\n" * 9)
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"damaged")
    assert values(of_server(tmp_path / "runs", tmp_path / "none", lambda: nodes))["run_damaged", "run"] == 1


def test_a_client_counts_what_it_answers_and_refuses(tmp_path: Path) -> None:
    counters, chosen = Counters(tmp_path / "counters.json"), config("fedavg", **FEW_STEPS)
    node = ClientNode(0, Source("digits", None, "partition"), tmp_path / "c", counters=counters)
    describe = {"do": "describe", "code": code_version(), "config": chosen.model_dump(mode="json")}
    node.answer(Frame({"run": HANDSHAKE, "entries": [describe]}))
    node.answer(Frame({"run": HANDSHAKE, "entries": [{"do": "steal"}]}))
    counters.save()
    counted = {(name, label): value for name, label, value in read_counters(tmp_path / "counters.json")}
    assert counted["answers", "describe"] == 1 and counted["refusals", ""] == 1 and counted["seconds", "describe"] > 0
    assert not any(label == "steal" for _, label in counted), "a server cannot make up labels"
    assert {metric.name for metric in of_counters(tmp_path / "counters.json")} == {"answers", "refusals", "seconds"}
    (tmp_path / "counters.json").write_bytes(b"[[1")
    assert read_counters(tmp_path / "counters.json") == []


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_log_has_all_lines_of_all_processes_and_is_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 700)
    log = Log(tmp_path / "log.txt", format)
    lines = [f"\x1b[92mline {number}\x1b[0m" for number in range(40)]
    for process in ("a", "b"):
        log.collect(process, BytesIO("".join(f"{line}\n" for line in lines).encode())).join(10)
    files = [*sorted(tmp_path.glob("log.txt.*"), reverse=True), tmp_path / "log.txt"]
    assert len(files) > 1 and all(path.stat().st_size <= 700 for path in files)
    written = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    if format == "json":
        entries = [json.loads(line) for line in written]
        assert {entry["process"] for entry in entries} <= {"a", "b"} and "\x1b" not in entries[0]["message"]
        written = [f"\x1b[92m{entry['message']}\x1b[0m" for entry in entries]
        assert log.messages()[-1] == "line 39"
    assert written == (lines * 2)[-len(written) :], "the newest lines, in order"
    assert len(files) == logs.KEPT + 1 or len(written) == 80


def test_a_database_shrinks_when_no_run_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LARGE", 2**19)
    file, idle = tmp_path / "link.db", False
    tended = database.Tended(file, lambda: idle)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:  # as the server's connection, which stays open
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE objects (content BLOB)")
        for _ in range(8):
            other.execute("INSERT INTO objects VALUES (?)", (bytes(2**18),))
        other.execute("DELETE FROM objects WHERE rowid > 1")
        before = database.size(file)
        tended()
        assert database.size(file) == before > 2**21, "a run uses it"
        idle, tended._next = True, 0.0
        tended()
        assert database.size(file) < 2**19 and other.execute("SELECT length(content) FROM objects").fetchall() == [(2**18,)]
        other.execute("BEGIN IMMEDIATE")
        database.compact(file)


@pytest.mark.extra("deploy")
def test_what_a_killed_client_leaves_is_in_its_own_folder_and_removed_at_its_next_start(tmp_path: Path) -> None:
    from fedpriv.deploy.flower.machines import _private_folder

    code = (
        "import os, sys; from pathlib import Path; from fedpriv.deploy.flower.machines import _private_folder\n"
        "with _private_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'secret').touch(); print(folder, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    left = Path(killed.stdout.strip())
    assert left.parent == tmp_path and (left / "secret").exists() and left.stat().st_mode & 0o777 == 0o700
    with _private_folder(tmp_path) as folder:
        assert folder == left and not (folder / "secret").exists()
        with pytest.raises(UsageError, match="another process on this machine runs the client"), _private_folder(tmp_path):
            pass
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.extra("deploy")
def test_a_killed_client_command_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    """In a folder whose path would be too long for a socket. Its server is not there, which only its node notices."""
    from fedpriv.deploy.flower.machines import free_port
    from fedpriv.deploy.flower.paths import make

    port, temporary = free_port(), tmp_path / "temporary"
    file = make(tmp_path / ("d" * 100), 1, "127.0.0.1", port, inner_port=port).client_file(0)
    temporary.mkdir()
    code = (
        "import sys; from pathlib import Path; from fedpriv.deploy.flower import machines\n"
        "machines._await_server = lambda *of: None\n"
        "with machines.client(Path(sys.argv[1])) as supervisor: supervisor.watch()"
    )
    environment, private = {**os.environ, "TMPDIR": str(temporary)}, file.with_suffix("") / "state" / "running"

    secrets = list[bytes]()

    def listening() -> subprocess.Popen[bytes]:
        process, until = subprocess.Popen([sys.executable, "-c", code, str(file)], env=environment), time.monotonic() + 300
        while not (private / "local_updates").exists() or (private / "secret").read_bytes() in secrets:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.2)
        return process

    for end in (signal.SIGKILL, signal.SIGTERM):
        process = listening()
        secrets.append((private / "secret").read_bytes())
        process.send_signal(end)
        process.wait(60)
        assert list(temporary.iterdir()) == [] and private.exists() == (end == signal.SIGKILL)
    assert len(set(secrets)) == 2 and len(secrets[0]) == 32
