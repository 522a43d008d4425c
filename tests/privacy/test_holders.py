"""A sample's epsilon is that of what all clients that hold it spend, whichever partition dealt it."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.config import PrivacyConfig, load_config
from fedpriv.data.partition_rules import PartitionIndices, PartitionTask, partitions
from fedpriv.data.partitions.partition import Partition, make_partition
from fedpriv.errors import UsageError
from fedpriv.privacy.accountant import _cost, epsilon, epsilon_rdp, epsilons_rdp, history_of, largest_epsilon, noise_for
from fedpriv.privacy.ledger import Ledger
from fedpriv.simulation.setup import build
from tests.privacy.test_private_runs import SAMPLE, oracle, played_with_uploads
from tests.simulation.small import settings

CLIENTS = 6
OPTIONS: dict[str, dict[str, Any]] = {"one_class": {"data.clients": CLIENTS}, "lognormal": {"data.partition.size_mean": 2.0}}
CASES = [
    *((name, {}) for name in sorted(partitions().keys() - {"given", "by_column"})),
    ("lognormal", {"data.partition.reuse": True}),
]


def deal(name: str, options: dict[str, Any]) -> Partition:
    labels = np.random.default_rng(0).integers(0, 3, 90)
    given = {"data.clients": CLIENTS, "data.partition.name": name, **OPTIONS.get(name, {}), **options}
    return make_partition(labels, labels, 3, load_config(None, given).data, seed=1)


def holders_by_sample(partition: Partition) -> dict[int, list[int]]:
    """Sample -> the clients that hold it, counted one by one."""
    holders: dict[int, list[int]] = defaultdict(list)
    for client, held in enumerate(partition.train):
        for sample in held.tolist():
            holders[sample].append(client)
    return holders


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda case: case if isinstance(case, str) else "-reuse" if case else "")
def test_the_ledger_composes_over_the_holders_of_every_sample(name: str, options: dict[str, Any]) -> None:
    partition = deal(name, options)
    holders = holders_by_sample(partition)
    assert {tuple(clients) for clients in holders.values()} == set(partition.holders())
    several = name == "class_dir_min1" or bool(options)
    assert (max(map(len, holders.values())) > 1) == several

    ledger = Ledger(PrivacyConfig(level="sample", noise=1.0), {}, partition.holders())
    for client, held in enumerate(partition.train):
        if len(held):
            ledger.spend(str(client), 0.02 * (1 + client % 2), 10 + client)
    spent = {client: [(1.0, 0.02 * (1 + client % 2), 10 + client)] for client in range(CLIENTS)}
    by_sample = {
        sample: epsilon_rdp([spending for client in clients for spending in spent[client]], 1e-5)
        for sample, clients in holders.items()
    }
    assert ledger.epsilon == pytest.approx(max(by_sample.values()), rel=1e-12)
    for client, epsilon_ in enumerate(ledger.per_client(CLIENTS)):
        own = [by_sample[sample] for sample in partition.train[client].tolist()]
        assert epsilon_ == pytest.approx(max(own, default=0.0), rel=1e-12)
        assert ledger.spent(str(client)) == pytest.approx(epsilon_, rel=1e-12)


def test_a_whole_run_in_which_clients_share_samples(tmp_path: Path) -> None:
    """Epsilon, the noise for it and the check before the run are those of the sample that its holders spend most on."""
    shared = {"data.partition.name": "class_dir_min1", "data.clients": 3, "train.rounds": 2, "train.participation": 1.0}
    asked = {"privacy.level": "sample", "privacy.target_epsilon": 0.5}
    played, uploads = played_with_uploads(tmp_path / "run", "fedavg", **asked, **shared)
    statement, data = played.statement(), played.federation.data
    updates = Counter(upload.client for upload in uploads)
    histories = {
        client: (statement["noise"], min(1.0, 20 / data.size(client)), updates[client] * -(-data.size(client) // 20))
        for client in updates
    }
    sets = {tuple(clients) for clients in holders_by_sample(data.partition).values()}
    assert max(map(len, sets)) > 2
    dearest_ = max(sets, key=lambda clients: epsilon_rdp([histories[client] for client in clients], 1e-5))
    assert statement["epsilon"] == pytest.approx(oracle(*(histories[client] for client in dearest_)), rel=1e-9)
    assert 0.488 < statement["epsilon"] <= 0.5
    assert statement["epsilon"] > 1.2 * max(oracle(history) for history in histories.values()), "one client's alone is far less"

    too_little = {**asked, "privacy.noise": statement["noise"] * 0.98}
    with pytest.raises(UsageError, match="leave the noise out"):
        build(load_config(None, settings("fedavg", **too_little, **shared)))


def test_a_sample_dealt_to_one_client_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.data.partition_rules import REGISTRY, NamedPartition

    def twice(task: PartitionTask) -> PartitionIndices:
        parts = np.array_split(np.arange(len(task.labels)), task.clients)
        return PartitionIndices([*parts[:-1], np.concatenate([parts[-1], parts[-1][:1]])])

    monkeypatch.setitem(REGISTRY._known, "iid", NamedPartition(twice, frozenset()))
    with pytest.raises(UsageError, match="gives client 4 a sample several times"):
        build(load_config(None, settings("fedavg", **SAMPLE, **{"data.partition.name": "iid"})))


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_the_noise_for_an_epsilon_of_several_holders(accountant: Any) -> None:
    """Of all, none spends more, and one spends nearly as much; the hardest is not the one that a first guess would take."""
    plans = [((0.1, 20), (0.1, 25)), ((0.3, 5),), ((0.05, 40), (0.1, 20), (0.02, 100)), ((0.2, 12),), ((0.02, 900),)]
    plans = plans if accountant == "rdp" else plans[1:4]
    noise = noise_for(1.0, 1e-5, plans, accountant)
    spent = [epsilon(history_of(noise, plan), 1e-5, accountant) for plan in plans]
    assert 1.0 - 0.011 <= max(spent) <= 1.0
    assert spent.index(max(spent)) != plans.index(max(plans, key=_cost))


def test_no_history_spends_more_than_the_dearest_by_prv() -> None:
    histories = [((3.0, rate, 30),) for rate in np.linspace(0.05, 0.06, 12).tolist()]
    most, history = largest_epsilon(histories, 1e-5, "prv")
    assert history == histories[-1] and most < epsilons_rdp(histories, 1e-5).max()
    assert all(epsilon(history, 1e-5, "prv") <= most for history in histories[::3])
