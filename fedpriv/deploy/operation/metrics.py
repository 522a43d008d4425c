"""``/health`` and ``/metrics`` (Prometheus) of a server or a client, on a port of its own machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from fedpriv.errors import UsageError, extra


@dataclass(frozen=True)
class Metric:
    """A number, as Prometheus names it after the prefix ``fedpriv_``."""

    name: str
    about: str
    value: float
    labels: Mapping[str, str]
    kind: Literal["counter", "gauge"] = "gauge"


@contextmanager
def served(port: int, measure: Callable[[], Iterable[Metric]], problem: Callable[[], str | None]) -> Iterator[int]:
    """A block in which a port of 127.0.0.1 answers ``/metrics`` and ``/health``; yields the port.

    Args:
        problem: says why this machine's part of the deployment does not work; ``None``: it works.

    Raises:
        UsageError: the port is taken, or the library is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise UsageError(f"--metrics-port needs prometheus-client; {extra('deploy')}") from None
    registry = CollectorRegistry()
    registry.register(_Collector(measure))

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry))
            elif self.path == "/health":
                why = problem()
                body = json.dumps({"status": "ok"} if why is None else {"status": "failing", "problem": why})
                self._answer(200 if why is None else 503, "application/json", body.encode() + b"\n")
            else:
                self._answer(404, "text/plain", b"/metrics or /health\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *given: Any) -> None:
            """Log nothing: it is asked every few seconds."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(f"--metrics-port {port}: port {port} on 127.0.0.1 cannot be used: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _Collector:
    def __init__(self, measure: Callable[[], Iterable[Metric]]) -> None:
        self._measure = measure

    def describe(self) -> Iterable[Any]:
        """Nothing in advance."""
        return ()

    def collect(self) -> Iterator[Any]:
        """The metrics as Prometheus has them, by name."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for metric in self._measure():
            if metric.name not in families:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                families[metric.name] = family(f"fedpriv_{metric.name}", metric.about, labels=list(metric.labels))
            families[metric.name].add_metric(list(metric.labels.values()), metric.value)
        yield from families.values()


def memory(pids: Mapping[str, int]) -> Iterator[Metric]:
    """The resident memory of processes, by name."""
    for name, pid in pids.items():
        try:
            lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:  # it has ended
            continue
        for line in lines:
            if line.startswith("VmRSS:"):
                yield Metric("memory_bytes", "Resident memory of a process.", 1024.0 * int(line.split()[1]), {"process": name})
