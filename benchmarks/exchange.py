"""The overhead of a round of a deployment: an exchange without work, over Flower on this machine with TLS.

Two deployments of the same clients, one after the other. In each, the server's app sends every client a frame without tasks and
waits for all answers:

    fedpriv     its transport, and nodes that poll as often as `fedpriv deploy init` configures
    Flower      `Grid.send_and_receive`, and nodes that poll every 3 s, Flower's default
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import facts, parser_of, report, spread

CLIENTS = 3
FLOWERS_POLL = 3.0
"""Seconds between polls of Flower's nodes, and of its `send_and_receive`."""
STARTED = 120.0
"""Seconds that the server's app may take to start."""


def play(grid: Any, context: Any) -> None:
    """The server's app: write the seconds of each exchange to the file that the run's config names."""
    from fedpriv.deploy.flower.apps import FlowerNetwork
    from fedpriv.deploy.frames import Frame
    from fedpriv.deploy.transport import Transport

    ours, times = bool(context.run_config["ours"]), []
    post = FlowerNetwork(grid, CLIENTS)
    transport, frame = Transport(post), Frame({"run": "no run", "said": []})
    for number in range(int(context.run_config["exchanges"]) + 1):  # the first warms up
        began = time.monotonic()
        if ours:
            answers = list(transport.exchange(dict.fromkeys(range(CLIENTS), frame), 60.0, number))
        else:
            answers = list(grid.send_and_receive(flowers_messages(post, frame, number), timeout=60.0))
        assert len(answers) == CLIENTS, answers
        times.append(time.monotonic() - began)
    draft = Path(f"{context.run_config['out']}.new")
    draft.write_text(json.dumps(times[1:]), encoding="utf-8")
    draft.rename(str(context.run_config["out"]))


def flowers_messages(post: Any, frame: Any, number: int) -> list[Any]:
    """The same frame for each node, as Flower's messages."""
    from fedpriv.deploy.flower.apps import _message

    while len(post.connected()) < CLIENTS:
        time.sleep(0.1)
    return [_message(frame, node, 60.0, number) for node in post._nodes.values()]


def measure(ours: bool, exchanges: int, place: Path) -> list[float]:
    """Seconds of each exchange in a new deployment."""
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    from fedpriv.deploy.flower import control, machines
    from fedpriv.deploy.flower.demo import running_deployment
    from fedpriv.deploy.flower.paths import make

    port = machines.free_port()
    home = make(place / "deployment", CLIENTS, "127.0.0.1", port, inner_port=port)
    for number in range(CLIENTS):
        file = home.client_file(number)
        text = file.read_text(encoding="utf-8").replace("  share: own", "  share: partition")
        file.write_text(text if ours else text.replace("poll: 1", f"poll: {FLOWERS_POLL:g}"), encoding="utf-8")
    server = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom flwr.serverapp import ServerApp\n"
    server += "from exchange import play\n\napp = ServerApp()\napp.main()(play)\n"
    options = b'request = ""\nours = false\nexchanges = 1\nout = ""\n'
    files = {**control._APP, "fedpriv_app/server.py": server.encode()}
    files["pyproject.toml"] = files["pyproject.toml"].replace(b'request = ""\n', options)
    bundle, _facts = build_fab_from_files(files)
    fab, out = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}), place / "seconds.json"
    config: dict[str, Any] = {"ours": ours, "exchanges": exchanges, "out": str(out)}
    with running_deployment(home) as (link, look, _keepers):
        with link._client() as client:
            client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(config)))
        until = time.monotonic() + STARTED + 20 * exchanges
        while not out.exists():
            look()
            if time.monotonic() > until:
                sys.exit(
                    f"the server's app did not end in time; {home.log} says why:\n{home.log.read_text(encoding='utf-8')[-3000:]}"
                )
            time.sleep(0.2)
    return list(json.loads(out.read_text(encoding="utf-8")))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--exchanges", type=int, default=20, help="of each deployment")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name, ours in (("fedpriv", True), ("flower", False)):
        with tempfile.TemporaryDirectory() as place:
            results[name] = spread(measure(ours, options.exchanges, Path(place)), 2)
    ratio = round(results["fedpriv"]["median"] / FLOWERS_POLL, 2)
    print(f"{'seconds an exchange':24}{'min':>8}{'median':>8}{'max':>8}")
    for name, times in results.items():
        print(f"{name:24}" + "".join(f"{times[part]:8.2f}" for part in ("min", "median", "max")))
    print(f"fedpriv's median is {ratio:.2f} of Flower's polling time of {FLOWERS_POLL:g} s")
    results |= {"clients": CLIENTS, "exchanges": options.exchanges, "over_flowers_poll": ratio}
    report({"benchmark": "exchange", **facts(["fedpriv", "flwr"]), **results}, options.json)


if __name__ == "__main__":
    main()
