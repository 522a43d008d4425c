"""The default number of participants in a round of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.deploy.deployable import deployable
from fedpriv.deploy.introductions import Introductions, agreement_of
from fedpriv.server.sampling import participants
from fedpriv.simulation.setup import build
from tests.deploy.apart import client_nodes
from tests.deploy.loopback import Loopback
from tests.simulation.small import config

SOME_ARE_EMPTY: dict[str, Any] = {
    "data.clients": 24,
    "data.partition.name": "class_dir",
    "data.partition.alpha": 0.02,
    "data.partition.min_samples": 0,
    "train.participation": None,
}


def test_the_default_participation_equals_a_simulations(tmp_path: Path) -> None:
    asked = deployable(config("fedavg", **SOME_ARE_EMPTY))
    facts = Introductions(asked, dict.fromkeys(range(24), ""), Loopback(client_nodes(tmp_path, asked)), 60).facts()
    holders = sum(client.train > 0 for client in facts)
    assert 10 < holders < 24
    apart, whole = agreement_of(asked, facts, None), build(asked).agreement
    assert apart.config.train.participation == whole.config.train.participation == 10 / holders
    assert len(participants(apart, 1)) == 10 and participants(apart, 1) == participants(whole, 1)
    assert apart.method.context.registered == whole.method.context.registered == holders
