"""A whole deployment on this machine, with TLS and node authentication, and whether it computes what a simulation does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig
from fedpriv.deploy.flower import machines
from fedpriv.deploy.flower.home import Home, make
from fedpriv.deploy.flower.needed import require_flower
from fedpriv.deploy.flower.requests import Request
from fedpriv.errors import FedprivError
from fedpriv.server.run_folder import RunFolder
from fedpriv.simulation import run

JOIN = 180.0
"""Seconds in which all clients must have joined."""
ANSWER = 300.0


@dataclass(frozen=True)
class Demo:
    """How it went: the deployed run's folder, that of the simulation, and what to print."""

    folder: Path
    simulated: Path
    found: dict[str, Any]


def demo(config: RunConfig, folder: Path, say: Callable[[str], None], on_round: Callable[[dict[str, Any]], None]) -> Demo:
    """Set up a deployment of ``config.data.clients`` clients in a new folder, play the config on it, and in a simulation.

    Args:
        say: called with what happens, in a line each; ``on_round``: with each round's record.

    Raises:
        FedprivError: something does not start, or the run failed.
    """
    require_flower()
    from fedpriv.deploy.flower.control import SuperLink

    clients = config.data.clients
    home = make(folder / "deployment", clients, "127.0.0.1", port=machines.free_port())
    for number in range(clients):
        file = home.client_file(number)
        file.write_text(file.read_text().replace("  share: own", "  share: dealt"))
    link = SuperLink(f"127.0.0.1:{home.settings().port}", home.authority)
    began = time.monotonic()
    with ExitStack() as stack:
        say(f"server on port {home.settings().port}, certificates and keys in {home.path}")
        keepers = [stack.enter_context(machines.server(home))]
        keepers += [stack.enter_context(machines.client(home.client_file(number))) for number in range(clients)]

        def look() -> None:
            for keeper in keepers:
                keeper.look()

        _wait_for_clients(link, clients, look)
        say(f"{clients} clients joined after {time.monotonic() - began:.0f} s")
        request = Request.write(home.requests, home.runs / "demo", config, clients, ANSWER)
        link.start(request.path)
        request.follow(look, on_round)
        seconds = time.monotonic() - began
    say("the same run in a simulation")
    simulated = folder / "simulated"
    run.start(config.model_copy(update={"run_dir": simulated}), folder, lambda *of: None, lambda record: None, lambda text: None)
    here, there = _state(home.runs / "demo", home), _state(simulated, None)
    summary = RunFolder.open(home.runs / "demo").summary() or {}
    found = {
        "equal": here == there,
        "weights_sha256": here["server"],
        "rounds": summary["rounds"],
        "seconds": round(seconds, 1),
        "seconds_a_round": round(summary["seconds"] / summary["rounds"], 2),
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "accuracy": summary["accuracy"],
        "run_dir": str(home.runs / "demo"),
    }
    return Demo(home.runs / "demo", simulated, found)


def _wait_for_clients(link: Any, clients: int, look: Callable[[], None]) -> None:
    until = time.monotonic() + JOIN
    while (here := sum(node.status == "online" for node in link.nodes())) < clients:
        look()
        if time.monotonic() > until:
            raise FedprivError(f"{here} of {clients} clients joined within {JOIN:g} s; state/log.txt of a client says why")
        time.sleep(0.5)


def _state(run_dir: Path, home: Home | None) -> dict[str, str]:
    """Hashes of the server's last state, of the accuracies, and of what each client keeps."""
    server = max((run_dir / "checkpoints").glob("server-*.safetensors"))
    of_clients = (
        (run_dir / "clients").glob("client-*") if home is None else home.path.glob("client-*/state/runs/*/states/client-*")
    )
    accuracies = [record["per_client"] for record in RunFolder.open(run_dir).records()]
    kept = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in of_clients}
    return {"server": hashlib.sha256(server.read_bytes()).hexdigest(), "accuracies": str(accuracies), **kept}
