"""Random kills of a deployment's processes: is a run lost, is a client counted twice, and are the results the same bits?

A server and some clients on this machine, connected by Flower with TLS and node authentication, play one run after another. At
seeded random times one random process gets SIGKILL:

    server app    plays the run; it is resumed at once, as `fedpriv deploy resume` does
    SuperLink     Flower's server; its supervisor restarts it. If that takes a minute, it has forgotten the server app; the run
                  ends with a message, and is resumed too
    SuperNode     Flower's process at a client; its supervisor restarts it
    client        the client's resident process, with its data and net; its supervisor restarts it

A run must reach its next round after each kill, before the next one. Every run is compared with a simulation of its config.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from machine import facts, parser_of, report

PROCESSES = ("server app", "SuperLink", "SuperNode", "client")
METHODS = ("mpfedcon", "scaffold", "fedavg")
"""In turn: with private client states; with a server memory too; with neither."""
APART = 60.0
"""Smallest time in seconds between two kills of one process: a supervisor gives up a process that keeps ending."""
ANSWER = 300.0
"""Seconds that an answer of a client may take."""
RESUMABLE = ("app was ended", "is running the run")
"""Parts of the errors of a run that can be resumed, perhaps once its former app has noticed."""
MOST_RESUMED = 5
"""Largest number of times that a run is resumed without a kill of its app."""
STUCK = 600.0
"""Seconds without a new round after which a run counts as lost."""


class AppKilled(Exception):
    """The run has to be resumed."""


@dataclass
class Killer:
    """Kills processes of a deployment.

    Attributes:
        spread: largest time in seconds from the end of a round to a kill.
        left: number of kills to come.
        until: time of the last possible kill.
        after: by process, the seconds from each of its kills to the end of the next round.
        calm: seconds of the rounds without a kill.
    """

    draw: random.Random
    supervisors: list[Any]
    spread: float
    left: int
    until: float
    after: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PROCESSES})
    calm: list[float] = field(default_factory=list)
    _spared: dict[tuple[str, int], float] = field(default_factory=dict)
    _due: float | None = None
    _killed: tuple[str, float] | None = None
    _last: float = 0.0

    def round_ended(self, record: dict[str, Any]) -> None:
        """Note how long the round took, and schedule the next kill."""
        now = time.monotonic()
        if self._killed is not None:
            name, when = self._killed
            self.after[name].append(now - when)
        elif record["round"]:
            self.calm.append(now - self._last)
        self._last, self._killed = now, None
        if now > self.until:
            self.left = 0
        # no kill in the first round after a kill, and in a tenth of the others, for comparison
        self._due = now + self.draw.uniform(0, self.spread) if self.left and self.draw.random() < 0.9 else None

    def look(self) -> None:
        """Kill a process if it is time.

        Raises:
            AppKilled: the server's app was killed.
        """
        if self._due is None or time.monotonic() < self._due:
            return
        name, client = self.draw.choice(PROCESSES), self.draw.randrange(1, len(self.supervisors))
        which = name, client if name in ("SuperNode", "client") else 0
        if time.monotonic() < self._spared.get(which, 0.0) or (pid := self._pid(name, client)) is None:
            return
        os.kill(pid, signal.SIGKILL)
        self._spared[which] = time.monotonic() + APART
        self._due, self._killed = None, (name, time.monotonic())
        self.left -= 1
        print(f"  killed: {name}", file=sys.stderr, flush=True)
        if name == "server app":
            raise AppKilled

    def _pid(self, name: str, client: int) -> int | None:
        server = self.supervisors[0]
        if name == "server app":
            return next(iter(children(server.pid("the SuperExec"))), None)
        if name == "SuperLink":
            return int(server.pid("the SuperLink"))
        return int(self.supervisors[client].pid("its SuperNode" if name == "SuperNode" else f"client {client - 1}"))


def children(pid: int) -> list[int]:
    """Ids of the running children of a process."""
    pids = [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text(encoding="utf-8").split()]
    return [
        int(child)
        for child in pids
        if Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    ]


def play(home: Any, link: Any, run_dir: Path, config: Any, clients: int, look: Callable[[], None], killer: Killer) -> str | None:
    """Play a run to its end under kills; the reason why it was lost, or ``None``."""
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.errors import FedprivError

    seen, resumed = [-1, time.monotonic(), 0.0], 0

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] > seen[0]:
            seen[:2] = record["round"], time.monotonic()
            killer.round_ended(record)

    def alive() -> None:
        look()
        if time.monotonic() > seen[2] + 5:
            link.check(number)
            seen[2] = time.monotonic()
        killer.look()
        if time.monotonic() > seen[1] + STUCK:
            raise FedprivError(f"no round has ended in {STUCK:g} s")

    while True:
        request = Request.write(home.requests, run_dir, config, clients, ANSWER)
        while not link.answers():
            look()
        number = link.start(request.path)
        try:
            request.follow(alive, on_round)
        except AppKilled:
            config = None
        except FedprivError as error:
            if not any(hint in str(error) for hint in RESUMABLE) or (resumed := resumed + 1) > MOST_RESUMED:
                return str(error)
            print(f"  resumed: {error}", file=sys.stderr, flush=True)
            config = None
            time.sleep(5)
        else:
            return None


def compared(run_dir: Path, simulated: Path) -> dict[str, Any]:
    """Compare a run with its simulation: same bits, missing answers, answers counted twice."""
    from fedpriv.storage.run_folder import RunFolder

    here, there = (RunFolder.open(folder).records() for folder in (run_dir, simulated))
    missing = sum(len(record.get("missing", ())) for record in here)
    more = [record["round"] for record, other in zip(here, there, strict=True) if up(record) > up(other)]
    doubled = [answer["client"] for record in here for answer in record.get("refused", ()) if "before" in answer["reason"]]
    per_client = [[record["per_client"] for record in records] for records in (here, there)]
    equal = state(run_dir) == state(simulated) and per_client[0] == per_client[1]
    return {"missing": missing, "twice": len(more) + len(doubled), "bits": "participants differ" if missing else equal}


def up(record: dict[str, Any]) -> float:
    """Bytes of all answers of a round."""
    return float(record["metrics"]["bytes_up"])


def state(run_dir: Path) -> bytes:
    """The server's last state."""
    return max((run_dir / "checkpoints").glob("server-*.safetensors")).read_bytes()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12, help="of each run")
    parser.add_argument("--spread", type=float, default=3.0, help="largest time in seconds from the end of a round to a kill")
    parser.add_argument("--minutes", type=float, default=60.0, help="no kill after this time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    from fedpriv.config import load_config
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.demo import running_deployment
    from fedpriv.deploy.flower.paths import make
    from fedpriv.simulation import run

    began = time.monotonic()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        port = machines.free_port()
        home = make(Path(place) / "deployment", options.clients, "127.0.0.1", port, inner_port=port)
        for number in range(options.clients):
            file = home.client_file(number)
            file.write_text(
                file.read_text(encoding="utf-8").replace("  share: own", "  share: partition").replace("poll: 1", "poll: 0.2"),
                encoding="utf-8",
            )
        with running_deployment(home) as (link, look, supervisors):
            killer = Killer(random.Random(options.seed), supervisors, options.spread, options.kills, began + 60 * options.minutes)
            while killer.left:
                method, before = METHODS[len(runs) % len(METHODS)], killer.left
                config = load_config(None, {"method.name": method, **settings(options.clients, options.rounds)})
                simulated = Path(place) / f"simulated-{method}"
                if not simulated.exists():
                    silent: Any = (lambda *of: None, lambda record: None, lambda text: None)
                    run.start(config.model_copy(update={"run_dir": simulated}), Path(place), *silent)
                run_dir = home.runs / f"run-{len(runs)}"
                lost = play(home, link, run_dir, config, options.clients, look, killer)
                row = {"method": method, "kills": before - killer.left, "lost": lost}
                runs.append(row | (compared(run_dir, simulated) if lost is None else {}))
                print(f"run {len(runs)}: {runs[-1]}", file=sys.stderr, flush=True)
    results = shown(runs, killer)
    given = {name: getattr(options, name) for name in ("clients", "rounds", "spread", "seed")}
    given["seconds"] = round(time.monotonic() - began)
    failures = [f"{results[name]} {name}" for name in ("lost", "twice", "differing") if results[name]]
    report({"benchmark": "kills", **facts(["fedpriv", "torch", "flwr"]), **given, **results}, options.json, failures)


def settings(clients: int, rounds: int) -> dict[str, Any]:
    """Config of a run with rounds of about a second."""
    return {
        "data.clients": clients,
        "data.limit": 300,
        "train.rounds": rounds,
        "train.participation": 1.0,
        "train.local_epochs": 1,
        "train.batch_size": 50,
        "model.projection": 8,
        "executor.name": "sequential",
        "tracking.uri": "none",
    }


def shown(runs: list[dict[str, Any]], killer: Killer) -> dict[str, Any]:
    """Print the results as tables, and return them."""
    rows: dict[str, dict[str, Any]] = {
        name: {"kills": len(times), "seconds_to_next_round": round(median(times), 1) if times else None}
        for name, times in killer.after.items()
    }
    rows["none"] = {"kills": 0, "seconds_to_next_round": round(median(killer.calm), 1) if killer.calm else None}
    print(f"\n{'killed':14}{'kills':>8}{'seconds to the next round (median)':>38}")
    for name, row in rows.items():
        print(f"{name:14}{row['kills']:8}{row['seconds_to_next_round'] or '':>38}")
    totals = {
        "runs": len(runs),
        "kills": sum(run["kills"] for run in runs),
        "lost": sum(run["lost"] is not None for run in runs),
        "twice": sum(run.get("twice", 0) for run in runs),
        "equal": sum(run.get("bits") is True for run in runs),
        "differing": sum(run.get("bits") is False for run in runs),
        "participants_differ": sum(run.get("bits") == "participants differ" for run in runs),
    }
    print("\n" + ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in totals.items()))
    return {"processes": rows, **totals, "each_run": runs}


if __name__ == "__main__":
    main()
