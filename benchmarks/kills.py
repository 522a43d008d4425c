"""Random kills of a deployment's processes: is a run lost, is a client counted twice, and are the results the same bits?

A server and some clients on this machine, connected by Flower with TLS and node authentication, play one run after another. At
seeded random times one random process gets SIGKILL:

    server app    plays the run; it is resumed at once, as `fedpriv deploy resume` does
    SuperLink     Flower's server; its supervisor restarts it. If that takes a minute, it has forgotten the server app; the run
                  ends with a message, and is resumed too
    SuperNode     Flower's process at a client; its supervisor restarts it
    client        the client's resident process, with its data and net; its supervisor restarts it

A run must reach its next round after each kill, before the next one. After half of the kills, in the middle of a run, one client
is added and another one removed, whose node goes on trying to connect. Every run is compared with a simulation of its config, or,
where not all clients took part, with the same run in this process, in which the same clients answer in the same rounds. The last
run has the new client.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
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
JOIN = 300.0
"""Seconds for all clients to be connected before a run begins."""


class AppKilled(Exception):
    """The run has to be resumed."""


@dataclass
class Killer:
    """Kills processes of a deployment.

    Attributes:
        server: supervisor of the server's processes.
        clients: number of a client -> supervisor of its processes.
        spread: largest time in seconds from the end of a round to a kill.
        left: number of kills to come; 0 once the time is over.
        until: time of the last possible kill.
        after: by process, the seconds from each of its kills to the end of the next round.
        calm: seconds of the rounds without a kill.
        killed: number of kills.
    """

    draw: random.Random
    server: Any
    clients: dict[int, Any]
    spread: float
    left: int
    until: float
    after: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PROCESSES})
    calm: list[float] = field(default_factory=list)
    killed: int = 0
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

    def look(self, begun: bool) -> None:
        """Kill a process if it is time.

        Args:
            begun: whether the run has begun, so that it can be resumed.

        Raises:
            AppKilled: the server's app was killed.
        """
        if self._due is None or time.monotonic() < self._due:
            return
        name, client = self.draw.choice(PROCESSES), self.draw.choice(sorted(self.clients))
        which = name, client if name in ("SuperNode", "client") else -1
        if name == "server app" and not begun:
            return
        if time.monotonic() < self._spared.get(which, 0.0) or (pid := self._pid(name, client)) is None:
            return
        os.kill(pid, signal.SIGKILL)
        self._spared[which] = time.monotonic() + APART
        self._due, self._killed = None, (name, time.monotonic())
        self.left -= 1
        self.killed += 1
        print(f"  killed: {name}", file=sys.stderr, flush=True)
        if name == "server app":
            raise AppKilled

    def _pid(self, name: str, client: int) -> int | None:
        if name == "server app":
            return next(iter(children(self.server.pid("the SuperExec"))), None)
        if name == "SuperLink":
            return int(self.server.pid("the SuperLink"))
        return int(self.clients[client].pid("its SuperNode" if name == "SuperNode" else f"client {client}"))


@dataclass
class Change:
    """One client is added to a deployment, and another one removed, at the end of a round in the middle of a run.

    Attributes:
        supervisors: those that are looked after.
        within: ends the processes of the new client.
        at: number of kills left at which it is time.
        rounds: of the run.
        made: run and round of the change; ``None``: not yet.
        refused: why the removed client's node was not admitted; ``None``: it has not been refused.
    """

    home: Any
    link: Any
    supervisors: list[Any]
    killer: Killer
    within: ExitStack
    at: int
    rounds: int
    made: tuple[str, int] | None = None
    refused: str | None = None
    _gone: Any = None

    def round_ended(self, run: str, round: int) -> None:
        """Make the change if it is time."""
        from fedpriv.deploy.flower import machines
        from fedpriv.deploy.flower.paths import add_client

        if self.made is not None or self.killer.left > self.at or not self.rounds // 3 <= round <= 2 * self.rounds // 3:
            return
        self.made = run, round
        member, gone = add_client(self.home, "late"), self.home.members.named("client-1")
        self.link.register(member.node, self.home.public_key(member.number))
        self.home.members.remove(gone)
        self.link.unregister(gone.node)
        self._gone = self.killer.clients.pop(gone.number)
        self.supervisors.remove(self._gone)
        prepare(self.home.client_file(member.number))
        added = self.within.enter_context(machines.client(self.home.client_file(member.number), patience=machines.START))
        self.killer.clients[member.number] = added
        self.supervisors.append(added)
        print(f"  round {round}: {member.name} was added, {gone.name} was removed", file=sys.stderr, flush=True)

    def look(self) -> None:
        """Keep the removed client's processes running until its node is refused."""
        from fedpriv.errors import FedprivError

        if self._gone is not None:
            try:
                self._gone.look()
            except FedprivError as error:
                self.refused = str(error)
                self._gone.close()
                self._gone = None


class SameClients:
    """A grid of clients in this process, of whom those do not answer that did not answer in a deployed run.

    Args:
        records: of the deployed run.
    """

    def __init__(self, nodes: Mapping[int, Any], records: list[dict[str, Any]]) -> None:
        self._nodes = nodes
        self._absent = defaultdict[tuple[str, int], set[int]](set)
        for record in records:
            for what, how in (("train", "missing"), ("test", "untested")):
                self._absent[what, record["round"]] = {entry["client"] for entry in record.get(how, ())}

    def exchange(self, frames: Mapping[int, Any], seconds: float, round: int) -> Iterator[tuple[int, Any]]:
        """As :meth:`fedpriv.deploy.remote_clients.Grid.exchange`."""
        from fedpriv.deploy.transport import NotSent

        for client, frame in frames.items():
            absent = client in self._absent[frame.entries[-1]["do"], round]
            yield client, NotSent("it did not answer") if absent else self._nodes[client].answer(frame)


def children(pid: int) -> list[int]:
    """Ids of the running children of a process."""
    pids = [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text(encoding="utf-8").split()]
    return [
        int(child)
        for child in pids
        if Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    ]


def play(
    home: Any, link: Any, run_dir: Path, config: Any, look: Callable[[], None], killer: Killer, change: Change
) -> str | None:
    """Play a run to its end under kills; the reason why it was lost, or ``None``."""
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.errors import FedprivError

    seen, resumed = [-1, time.monotonic(), 0.0], 0

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] > seen[0]:
            seen[:2] = record["round"], time.monotonic()
            killer.round_ended(record)
            change.round_ended(run_dir.name, record["round"])

    def alive() -> None:
        look()
        change.look()
        if time.monotonic() > seen[2] + 5:
            link.check(number)
            seen[2] = time.monotonic()
        killer.look(seen[0] >= 0)
        if time.monotonic() > seen[1] + STUCK:
            raise FedprivError(f"no round has ended in {STUCK:g} s")

    while True:
        request = Request.write(home.requests, run_dir, config, len(home.members.all()), ANSWER)
        while not link.answers():
            look()
        number = link.start(request.path)
        try:
            request.follow(alive, on_round)
        except AppKilled:
            config = None
        except FedprivError as error:
            if config is None and finished(run_dir):  # its app was killed after the last round
                return None
            if not any(hint in str(error) for hint in RESUMABLE) or (resumed := resumed + 1) > MOST_RESUMED:
                return str(error)
            print(f"  resumed: {error}", file=sys.stderr, flush=True)
            config = None
            time.sleep(5)
        else:
            return None


def silent(*of: object) -> None:
    """Say nothing."""


def finished(run_dir: Path) -> bool:
    """Whether a run has come to its end."""
    from fedpriv.storage.run_folder import RunFolder

    return bool(RunFolder.open(run_dir).facts.get("status") == "finished")


def simulated(config: Any, run_dir: Path) -> Path:
    """A simulation of a config, which is played if it has not been."""
    from fedpriv.simulation import run

    if not run_dir.exists():
        run.start(config.model_copy(update={"run_dir": run_dir}), run_dir.parent, silent, silent, silent)
    return run_dir


def played_again(config: Any, run_dir: Path, folder: Path) -> Path:
    """A deployed run once more, in this process, with the clients that took part in each of its rounds."""
    from fedpriv.deploy.client.client_node import ClientNode
    from fedpriv.deploy.client.source import Source
    from fedpriv.deploy.operation.members import Member
    from fedpriv.deploy.server_run import start
    from fedpriv.storage.run_folder import RunFolder

    deployed = RunFolder.open(run_dir)
    members = [Member(**member) for member in deployed.facts["deployed"]["clients"]]
    nodes = {
        member.number: ClientNode(member.number, Source(share="partition"), folder / f"client-{member.number}")
        for member in members
    }
    config = config.model_copy(update={"run_dir": folder / "run"})
    start(config, folder, SameClients(nodes, deployed.records()), ANSWER, silent, silent, silent, members)
    return folder / "run"


def compared(run_dir: Path, other: Path) -> dict[str, Any]:
    """Compare a run with one in this process: missing answers, by client; answers counted twice; same bits."""
    from fedpriv.storage.run_folder import RunFolder

    here, there = (RunFolder.open(folder).records() for folder in (run_dir, other))
    missing = Counter(entry["client"] for record in here for entry in record.get("missing", ()))
    more = [record["round"] for record, other in zip(here, there, strict=True) if up(record) > up(other)]
    doubled = [answer["client"] for record in here for answer in record.get("refused", ()) if "before" in answer["reason"]]
    per_client = [[record["per_client"] for record in records] for records in (here, there)]
    equal = state(run_dir) == state(other) and per_client[0] == per_client[1]
    return {"missing": dict(missing), "twice": len(more) + len(doubled), "equal": equal}


def prepare(file: Path) -> None:
    """Have a client take its share of the run's data, and look for messages often."""
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("  share: own", "  share: partition").replace("poll: 1", "poll: 0.2"), encoding="utf-8")


def await_clients(home: Any, link: Any, look: Callable[[], None]) -> None:
    """Wait until all clients of a deployment are connected."""
    until, expected = time.monotonic() + JOIN, {member.node for member in home.members.present()}
    while not (link.answers() and expected <= {node.name for node in link.nodes() if node.status == "online"}):
        look()
        if time.monotonic() > until:
            raise SystemExit(f"not all of {', '.join(sorted(expected))} are connected after {JOIN:g} s")
        time.sleep(1)


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

    began = time.monotonic()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        port = machines.free_port()
        home = make(Path(place) / "deployment", options.clients, "127.0.0.1", port, inner_port=port)
        for number in range(options.clients):
            prepare(home.client_file(number))
        with running_deployment(home) as (link, look, supervisors), ExitStack() as added:
            until, clients = began + 60 * options.minutes, dict(enumerate(supervisors[1:]))
            killer = Killer(random.Random(options.seed), supervisors[0], clients, options.spread, options.kills, until)
            change = Change(home, link, supervisors, killer, added, options.kills // 2, options.rounds)
            while killer.left or (
                change.made is not None and change.made[0] == f"run-{len(runs) - 1}"
            ):  # one with the new client
                method, before = METHODS[len(runs) % len(METHODS)], killer.killed
                await_clients(home, link, look)
                clients_then = len(home.members.all())
                config = load_config(None, {"method.name": method, **settings(clients_then, options.rounds)})
                run_dir = home.runs / f"run-{len(runs)}"
                lost = play(home, link, run_dir, config, look, killer, change)
                row: dict[str, Any] = {"method": method, "kills": killer.killed - before, "lost": lost}
                if lost is None:
                    whole = change.made is None
                    place_of = Path(place) / (f"simulated-{method}" if whole else f"again-{len(runs)}")
                    other = simulated(config, place_of) if whole else played_again(config, run_dir, place_of)
                    row |= {"compared_with": "a simulation" if whole else "the same clients", **compared(run_dir, other)}
                runs.append(row)
                print(f"run {len(runs)}: {row}", file=sys.stderr, flush=True)
            made, refused = change.made, change.refused
    results = shown(runs, killer)
    given = {name: getattr(options, name) for name in ("clients", "rounds", "spread", "seed")}
    given["seconds"] = round(time.monotonic() - began)
    changed = {"run": made[0], "round": made[1], "removed_node": refused} if made is not None else None
    failures = [f"{results[name]} {name}" for name in ("lost", "twice", "differing") if results[name]]
    failures += [] if made is not None and refused is not None else ["a client was not added and another removed"]
    report(
        {"benchmark": "kills", **facts(["fedpriv", "torch", "flwr"]), **given, "members": changed, **results},
        options.json,
        failures,
    )


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
        "equal": sum(run.get("equal") is True for run in runs),
        "differing": sum(run.get("equal") is False for run in runs),
    }
    print("\n" + ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in totals.items()))
    return {"processes": rows, **totals, "each_run": runs}


if __name__ == "__main__":
    main()
