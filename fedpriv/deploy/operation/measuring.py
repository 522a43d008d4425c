"""What the metrics of a server and of a client are read from: run folders, counters, and the nodes that are registered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fedpriv.deploy.operation.counters import read_counters
from fedpriv.deploy.operation.metrics import Metric
from fedpriv.files import Damaged
from fedpriv.storage.run_folder import RunFolder

_OF_A_ROUND = {
    "total_bytes_up": ("run_bytes_up", "Bytes that the clients of a run have uploaded."),
    "total_bytes_down": ("run_bytes_down", "Bytes that the clients of a run have downloaded."),
    "epsilon": ("run_epsilon", "Epsilon that a run has spent."),
    "seconds": ("run_round_seconds", "Seconds of the last round of a run."),
    "participants": ("run_participants", "Clients of the last round of a run."),
    "missing": ("run_missing", "Clients that gave no answer in the last round of a run."),
    "refused": ("run_refused", "Clients whose answers were refused in the last round of a run."),
}
"""Name in a round's record -> name and description of the metric."""
_ABOUT = {
    "requests": "Requests by the status that they got.",
    "answers": "Requests of the server that were answered, by kind.",
    "seconds": "Seconds for the requests of the server, by kind.",
    "refusals": "Requests of the server that were answered by an error.",
    "bytes": "Bytes that came in and went out.",
    "round": "Last round of a run in which this client trained.",
    "epsilon": "Epsilon that this client has spent in a run, by its own ledger.",
}
_LABEL = {
    "requests": "status",
    "answers": "request",
    "seconds": "request",
    "bytes": "direction",
    "round": "run",
    "epsilon": "run",
}
_GAUGES = ("round", "epsilon")


def of_server(runs: Path, counters: Path, nodes: Callable[[], Iterable[tuple[str, str]]]) -> Iterator[Metric]:
    """The metrics of a server.

    Args:
        runs: the folder of its runs.
        nodes: gives name and status of each registered node.
    """
    online = {name: float(status == "online") for name, status in nodes()}
    yield Metric("clients_online", "Clients that are connected.", sum(online.values()), {})
    yield Metric("clients", "Clients that are registered.", len(online), {})
    for path in sorted(runs.iterdir()):
        if (path / "config.yaml").exists():
            yield from _of_run(path)
    yield from of_counters(counters)


def _of_run(path: Path) -> Iterator[Metric]:
    labels = {"run": path.name}
    try:
        folder = RunFolder.open(path)
        records, status = folder.records(), folder.status
    except Damaged:
        yield Metric("run_damaged", "A run whose folder is damaged.", 1, labels)
        return
    yield Metric("run_running", "Whether a run is running.", float(status == "running"), labels)
    if not records:
        return
    yield Metric("run_round", "Rounds that a run has done.", records[-1]["round"], labels)
    for key, (name, about) in _OF_A_ROUND.items():
        if (value := records[-1]["metrics"].get(key)) is not None:
            yield Metric(name, about, float(value), labels)


def of_counters(file: Path) -> Iterator[Metric]:
    """The metrics of a process's counters."""
    for name, label, value in read_counters(file):
        labels = {_LABEL[name]: label} if name in _LABEL else {}
        yield Metric(name, _ABOUT[name], value, labels, "gauge" if name in _GAUGES else "counter")
