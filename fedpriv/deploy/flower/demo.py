"""A whole deployment on this machine, with TLS and node authentication, which is compared with a simulation."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.config import RunConfig
from fedpriv.data.sources import sources
from fedpriv.deploy.flower import machines
from fedpriv.deploy.flower.paths import DeploymentPaths, make
from fedpriv.deploy.flower.requests import Request
from fedpriv.deploy.flower.supervisor import Supervisor
from fedpriv.errors import FedprivError
from fedpriv.simulation import run
from fedpriv.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedpriv.deploy.flower.control import SuperLink

JOIN = 180.0
"""Seconds for all clients to join."""
ANSWER = 300.0


def demo(
    config: RunConfig, folder: Path, say: Callable[[str], None], rounds_of: Callable[[Path], Callable[[dict[str, Any]], None]]
) -> dict[str, Any]:
    """Set up a deployment of ``config.data.clients`` clients in a new folder, and run the config on it and in a simulation.

    Returns:
        Results to print; ``equal``: whether both runs are the same to the bit.

    Args:
        say: called with lines on the progress.
        rounds_of: the folder of the run -> a function that is called with each round's record.

    Raises:
        FedprivError: something does not start, or the run failed.
    """
    clients, began = config.data.clients, time.monotonic()
    port = machines.free_port()
    paths = make(folder / "deployment", clients, "127.0.0.1", port, inner_port=port)
    for number in range(clients):
        file, text = paths.client_file(number), paths.client_file(number).read_text(encoding="utf-8")
        for line, value in {
            "name: null": _place(config.data.name),
            "label: null": config.data.label,
            "share: own": "partition",
        }.items():
            text = text.replace(f"  {line}\n", f"  {line.split(':')[0]}: {json.dumps(value)}\n")
        file.write_text(text, encoding="utf-8")
    say(f"server on port {port}, certificates and keys in {paths.path}")
    with running_deployment(paths) as (link, look, _):
        say(f"{clients} clients joined after {time.monotonic() - began:.0f} s")
        request = Request.write(paths.requests, paths.runs / "demo", config, clients, ANSWER)
        link.start(request.path)
        request.follow(look, rounds_of(request.run_dir), say)
        seconds = time.monotonic() - began
    say("the same run in a simulation")
    simulated = folder / "simulated"
    run.start(config.model_copy(update={"run_dir": simulated}), folder, lambda *of: None, lambda record: None, lambda text: None)
    deployed = paths.runs / "demo"
    summary = RunFolder.open(deployed).summary() or {}
    return {
        "equal": _equal(paths, deployed, simulated),
        "weights_sha256": hashlib.sha256(_last_state(deployed)).hexdigest(),
        "rounds": summary["rounds"],
        "seconds": round(seconds, 1),
        "seconds_a_round": round(summary["seconds"] / summary["rounds"], 2),
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "accuracy": summary["accuracy"],
        **{metric: summary["scores"].get(metric, {}).get("mean") for metric in {summary["metric"]} - {"accuracy"}},
        "run_dir": str(deployed),
    }


@contextmanager
def running_deployment(paths: DeploymentPaths) -> Iterator[tuple[SuperLink, Callable[[], None], list[Supervisor]]]:
    """A block in which the server and all clients of a deployment run on this machine, and the clients have joined.

    Yields:
        (the operator's access to the server, a function that restarts ended processes, the supervisors of the server and of each
        client).

    Raises:
        FedprivError: something does not start.
    """
    from fedpriv.deploy.flower.control import SuperLink

    settings = paths.settings()
    link = SuperLink(f"127.0.0.1:{settings.port}", paths.authority)
    with ExitStack() as stack:
        supervisors = [stack.enter_context(machines.server(paths))]
        supervisors += [
            stack.enter_context(machines.client(paths.client_file(number), patience=machines.START))
            for number in range(settings.clients)
        ]

        def look() -> None:
            for supervisor in supervisors:
                supervisor.look()

        until = time.monotonic() + JOIN
        while (joined := sum(node.status == "online" for node in link.nodes())) < settings.clients:
            look()
            if time.monotonic() > until:
                logs = paths.path / "client-*" / "state" / "log.txt"
                raise FedprivError(f"{joined} of {settings.clients} clients joined in {JOIN:g} s; {logs} say why")
            time.sleep(0.5)
        yield link, look, supervisors


def _place(name: str) -> str:
    """The name of a data set for a client's file, with an absolute path: that file is in another folder."""
    path = Path(name).expanduser()
    return str(path.absolute()) if name not in sources() and path.exists() else name


def _equal(paths: DeploymentPaths, run_dir: Path, simulated: Path) -> bool:
    """Whether the server's last state, all accuracies and all private states are equal to the bit."""
    accuracies = [[record["per_client"] for record in RunFolder.open(folder).records()] for folder in (run_dir, simulated)]
    kept = {path.name: path.read_bytes() for path in paths.path.glob("client-*/state/runs/*/states/client-*")}
    private = all(kept.get(path.name) == path.read_bytes() for path in simulated.glob("clients/client-*"))
    return _last_state(run_dir) == _last_state(simulated) and accuracies[0] == accuracies[1] and private


def _last_state(run_dir: Path) -> bytes:
    return max((run_dir / "checkpoints").glob("server-*.safetensors")).read_bytes()
