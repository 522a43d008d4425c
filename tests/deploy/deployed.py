"""A server and three clients as real processes on this machine, joined by Flower with TLS and keys, for the tests of a module."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.apart import hashes, same_records
from tests.simulation.small import config

REAL = [pytest.mark.slow, pytest.mark.extra("deploy")]
SMALL = {
    "data.clients": 3,
    "data.limit": 300,
    "train.rounds": 2,
    "train.participation": 1.0,
    "model.projection": 8,
    "executor.name": "sequential",
    "wire.keep_payloads": "all",
}
ANSWER = 120.0
LONGEST = 600.0
"""Seconds that a run may take."""


@dataclass
class Deployment:
    """A running deployment."""

    paths: Any
    link: Any
    look: Callable[[], None]
    supervisors: list[Any]

    def play(
        self,
        name: str,
        method: str,
        on_round: Callable[[Any], None] = lambda record: None,
        meanwhile: Callable[[], None] = lambda: None,
        answer: float = ANSWER,
        **more: Any,
    ) -> Path:
        """Run a config to its end.

        Args:
            meanwhile: called regularly.
            answer: timeout of an answer (seconds).
        """
        from fedpriv.deploy.flower.requests import Request

        chosen = config(method, **{**SMALL, **more})
        request = Request.write(self.paths.requests, self.paths.runs / name, chosen, len(self.paths.members.all()), answer)
        number = self.link.start(request.path)
        assert self.follow(request, number, on_round, meanwhile)
        return Path(request.run_dir)

    def follow(
        self,
        request: Any,
        number: int,
        on_round: Callable[[Any], None] = lambda record: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait for the end of a run, with a timeout."""
        until = time.monotonic() + LONGEST

        def look() -> None:
            self.look()
            meanwhile()
            assert time.monotonic() < until, "the run does not end"

        return bool(request.follow(look, on_round))


@contextmanager
def deployed(folder: Path, clients: int, own: Sequence[str] = ()) -> Iterator[Deployment]:
    """A deployment in a new folder, on 127.0.0.1, beside a proxy at which nothing listens.

    Args:
        own: the ``data`` of each client's file, with data of its own; none: each takes its share of the run's data.
    """
    from fedpriv.deploy.flower.demo import running_deployment
    from fedpriv.deploy.flower.machines import free_port
    from fedpriv.deploy.flower.paths import make

    port = free_port()
    paths = make(folder, clients, "127.0.0.1", port, inner_port=port)
    for number in range(clients):
        file = paths.client_file(number)
        text = file.read_text().replace("poll: 1", "poll: 0.2")
        if own:
            text = re.sub(r"(?m)^data:\n(?:  .*\n)+", f"data: {own[number]}\n", text)
        file.write_text(text.replace("  share: own", "  share: partition"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            patch.setenv(name, "http://127.0.0.1:9")
        for name in ("no_proxy", "NO_PROXY"):
            patch.setenv(name, "")  # so that it is put back
            patch.delenv(name)
        with running_deployment(paths) as (link, look, supervisors):
            yield Deployment(paths, link, look, supervisors)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment of three clients."""
    with deployed(tmp_path_factory.mktemp("deployed") / "d", 3) as running:
        yield running


def same(deployed: Path, whole: Path) -> None:
    """Assert that checkpoints, messages, weights and metrics are equal to the bit."""
    state = ("checkpoints/server-*.safetensors", "payloads/*/*", "weights/*")
    assert hashes(deployed, *state) == hashes(whole, *state)
    same_records(deployed, whole)
