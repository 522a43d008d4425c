"""A client is removed and another added while a real server plays a run."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.deployed import REAL, deployed

pytestmark = REAL


def test_clients_come_and_go_while_a_run_goes_on(tmp_path: Path) -> None:
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.paths import add_client
    from fedpriv.deploy.operation.measuring import of_server
    from fedpriv.deploy.operation.metrics import served
    from fedpriv.errors import FedprivError
    from fedpriv.storage.run_folder import RunFolder

    with deployed(tmp_path / "d", 2) as deployment:
        paths, link, stays = deployment.paths, deployment.link, deployment.supervisors[:2]
        deployment.look = lambda: [supervisor.look() for supervisor in stays]  # type: ignore[assignment, return-value]

        def change(record: dict[str, Any]) -> None:
            if record["round"] == 1:
                member = add_client(paths, "late")
                link.register(member.node, paths.public_key(member.number))
                paths.members.remove(paths.members.named("client-1"))
                link.unregister("client-1")

        two = {"data.clients": 2, "train.max_update_norm": 100.0}
        first = deployment.play("first", "fedavg", change, **{**two, "train.rounds": 4})
        missing = [record.get("missing", []) for record in RunFolder.open(first).records()]
        assert missing[1] == [] and [entry["client"] for entry in missing[4]] == [1]
        assert "it was removed at" in missing[4][0]["reason"]
        until = time.monotonic() + 180
        with pytest.raises(FedprivError, match="the server does not admit this node"):
            deployment.supervisors[2].watch(lambda: time.monotonic() > until)
        file = paths.client_file(2)
        file.write_text(file.read_text().replace("  share: own", "  share: partition").replace("poll: 1", "poll: 0.2"))

        def nodes() -> list[tuple[str, str]]:
            return [(node.name, node.status) for node in link.nodes()]

        with machines.client(file, patience=60):
            until = time.monotonic() + 300
            while ("client-2", "online") not in nodes() and time.monotonic() < until:
                time.sleep(1)
            second = deployment.play("second", "fedavg", **{**two, "data.clients": 3, "train.rounds": 2})

            with served(0, lambda: of_server(paths.runs, paths.counters, nodes), lambda: None) as port:
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        facts = json.loads((second / "run.json").read_text(encoding="utf-8"))
        assert [client["name"] for client in facts["deployed"]["clients"]] == ["client-0", "late"]
        assert RunFolder.open(second).records()[2]["metrics"]["participants"] == 2
        for line in ("fedpriv_clients_online 2.0", 'fedpriv_run_round{run="second"} 2.0', 'fedpriv_requests_total{status="200"}'):
            assert line in page
