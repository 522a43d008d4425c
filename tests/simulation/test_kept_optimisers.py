"""Schedules, optimisers by name, and optimisers that go on between rounds, in whole runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from fedpriv.files import load_tensors
from fedpriv.simulation import run
from fedpriv.simulation.simulation import Simulation
from tests.deploy.apart import agree, play_apart
from tests.marks import federated, quick_first, slow_but
from tests.optim.test_by_name import MANY
from tests.simulation.small import FEW_STEPS, SILENT, computed, config, play, resume, simulation

Simulate = Callable[..., Simulation]
ONE: dict[str, Any] = {
    "data.clients": 1, "data.limit": 100, "train.participation": 1.0, "train.batch_size": 1000, "train.weight_decay": 1e-3,
}  # fmt: skip
"""One client with a single batch, so that the order of its samples is that of a sum."""
KEEPS: dict[str, Any] = {**FEW_STEPS, "train.keep_optimizer": True, "train.selection": "window"}


def in_one_go(simulation: Simulation, make: Callable[[Any], torch.optim.Optimizer], epochs: int) -> Tensor:
    """The row after so many epochs of client 0 with one optimiser of torch's own, over the net's own tensors."""
    fed = simulation.federation
    net, data = copy.deepcopy(fed.resident.net), fed.data.train(0)
    net.load_state_dict(fed.resident.space.unpack(fed.initial.clone()), strict=False)
    for parameter in net.parameters():
        parameter.data, parameter.grad = parameter.data.clone(), None
        parameter.requires_grad_(True)
    net.train()
    decayed, free = [p for p in net.parameters() if p.ndim > 1], [p for p in net.parameters() if p.ndim < 2]
    optimiser = make([{"params": decayed, "weight_decay": 1e-3}, {"params": free, "weight_decay": 0.0}])
    for _ in range(epochs):
        optimiser.zero_grad()
        F.cross_entropy(net(data.inputs).logits, data.labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return fed.resident.space.row_of(net)


@pytest.mark.parametrize(
    ("options", "make"),
    quick_first(
        [
            ({"train.momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
            ({"train.optimizer": "adam", "train.lr": 0.003}, lambda p: torch.optim.Adam(p, lr=0.003)),
            (
                {"train.optimizer": "rmsprop", "train.lr": 0.003, "train.optimizer_options": {"alpha": 0.9, "momentum": 0.5}},
                lambda p: torch.optim.RMSprop(p, lr=0.003, alpha=0.9, momentum=0.5),
            ),
        ],
        2,
    ),
    ids=["sgd", "adam", "rmsprop"],
)
def test_kept_over_the_rounds_it_is_one_training(simulate: Simulate, options: dict[str, Any], make: Any) -> None:
    """Three rounds of two epochs with one client: six epochs in one go."""
    rounds = {**ONE, "train.rounds": 3, "train.local_epochs": 2, **options}
    kept = simulate("fedavg", **rounds, **{"train.keep_optimizer": True})
    expected = in_one_go(kept, make, 6)
    torch.testing.assert_close(kept.state.row, expected, rtol=1e-4, atol=2e-5)
    anew = simulate("fedavg", **rounds)
    assert float((anew.state.row - expected).abs().max()) > 1e-3, "the control: an optimiser that begins anew ends elsewhere"


SCHEDULED: dict[str, Any] = {
    **KEEPS, "train.optimizer": "adam", "train.lr": 0.003, "train.rounds": 4, "train.lr_schedule": "cosine",
    "train.local_lr_schedule": "polynomial", "wire.keep_payloads": "all",
}  # fmt: skip


@pytest.mark.parametrize("method", slow_but(["fedavg"], federated()))
def test_what_is_kept_is_private_and_survives_an_interruption(tmp_path: Path, method: str) -> None:
    """The interrupted run is at the end the same bit for bit, and no message has anything of an optimiser."""
    options = {**SCHEDULED, **({"train.local_lr_schedule": None} if method == "fednova" else {})}  # which refuses one
    play(tmp_path / "whole", method, **options)
    rounds = run.start_by_round(config(method, **options, run_dir=str(tmp_path / "stopped")), tmp_path, *SILENT[::2])
    next(rounds), next(rounds)
    rounds.close()
    resume(tmp_path / "stopped")
    assert computed(tmp_path / "stopped") == computed(tmp_path / "whole")

    states = [load_tensors(path) for path in (tmp_path / "whole" / "clients").glob("client-*")]
    kept = {name for state in states for name in state if name.startswith("optimizer/")}
    assert {"exp_avg", "exp_avg_sq", "step"} == {name.rpartition("/")[2] for name in kept}
    if method == "apfl":
        assert any("/companion/" in name for name in kept)
    sent = [load_file(path) for path in (tmp_path / "whole" / "payloads").rglob("*.safetensors")]
    assert sent and not [name for tensors in sent for name in tensors if "optimizer" in name or "exp_avg" in name]


@pytest.mark.parametrize("others", quick_first(["over frames", "in processes"]))
def test_clients_elsewhere_train_at_the_same_rates(tmp_path: Path, others: str) -> None:
    options = {**SCHEDULED, "train.participation": 1.0, "train.selection": "uniform", "train.rounds": 2}
    play(tmp_path / "whole", "fedavg", **options)
    if others == "over frames":
        play_apart(tmp_path / "others", "fedavg", **options)
        agree(tmp_path / "others", tmp_path / "whole")
    else:
        play(tmp_path / "others", "fedavg", **options, **{"executor.workers": 2})
        assert computed(tmp_path / "others") == computed(tmp_path / "whole")
    records = [json.loads(line) for line in (tmp_path / "others" / "metrics.jsonl").read_text().splitlines()]
    rates = [record["metrics"]["lr"] for record in records if record["round"]]
    assert rates == pytest.approx([0.003, 0.0015]), "as torch's cosine over two rounds"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), MANY, ids=[f"{name} {' '.join(options)}" for name, options in MANY])
def test_in_groups_as_alone(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    rate = {"train.lr": 0.05 if name in ("sgd", "adadelta", "asgd") else 1e-3}
    more = {
        **KEEPS, **rate, "train.optimizer": name, "train.optimizer_options": options, "train.lr_schedule": "one_cycle",
        "data.partition.alpha": 0.5,
    }  # fmt: skip
    if name not in ("rprop", "asgd"):  # the one reads its rate once, the other a step late
        more |= {"train.local_lr_schedule": "linear:start_factor=1,end_factor=0.1", "train.warmup_steps": 1}
    rows = []
    for executor in ("sequential", "vectorized"):
        played = simulation(tmp_path / executor, "fedavg", **more, **{"executor.name": executor})
        played.start()
        for _ in played.rounds():
            pass
        rows.append(played.state.row - played.federation.initial)
    assert 1e-5 < float(rows[0].norm()) < 100
    torch.testing.assert_close(rows[1], rows[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("more", quick_first([{}, {"train.optimizer": "rmsprop", "train.lr": 1e-3}, {"train.optimizer": "sgd"}]))
def test_private_steps_go_by_every_optimiser_and_schedule(tmp_path: Path, more: dict[str, Any]) -> None:
    """Epsilon covers the gradient that an optimiser gets, so the ledger is the same whatever it does with it."""
    private = {**FEW_STEPS, "privacy.level": "sample", "privacy.noise": 1.0, "train.rounds": 2, "train.batch_size": 5}
    options = {
        "train.optimizer": "adam", "train.lr": 0.003, "train.lr_schedule": "cosine", "train.keep_optimizer": True,
        "train.local_lr_schedule": "linear:start_factor=1,end_factor=0.1", **more,
    }  # fmt: skip
    plain, other = tmp_path / "plain", tmp_path / "other"
    play(plain, "fedavg", **private)
    play(other, "fedavg", **private, **options)
    epsilons = [json.loads((folder / "summary.json").read_text())["privacy"]["epsilon"] for folder in (plain, other)]
    assert epsilons[0] == epsilons[1] > 0
    assert computed(plain)["metrics"] != computed(other)["metrics"]


@pytest.mark.slow
def test_secure_sums_of_any_optimiser(tmp_path: Path) -> None:
    options = {**SCHEDULED, "train.participation": 1.0, "train.selection": "all", "train.rounds": 2, "data.clients": 4}
    rows = []
    for secure in (False, True):
        played = simulation(tmp_path / str(secure), "fedavg", **options, **{"wire.secure_aggregation": secure})
        played.start()
        for _ in played.rounds():
            pass
        rows.append(played.state.row)
    torch.testing.assert_close(rows[1], rows[0], rtol=1e-4, atol=1e-5)


def test_a_phase_of_its_own_roles_keeps_its_own_state(simulate: Simulate) -> None:
    """FedRep trains the head and then the encoder: two optimisers, whose moments are of different sizes."""
    options = {"train.optimizer": "adam", "train.keep_optimizer": True, "train.rounds": 1, "method.head_epochs": 1}
    played = simulate("fedrep", **FEW_STEPS, **options)
    client = played.participants(1)[0]
    state = load_tensors(next((played.folder.path / "clients").glob(f"client-{client:06d}-*")))
    names = {name.split("/")[1] for name in state if name.startswith("optimizer/")}
    assert len(names) == 2
    moments = sum(tensor.numel() for name, tensor in state.items() if name.endswith("/exp_avg_sq"))
    assert moments == sum(entry.stop - entry.start for entry in played.federation.resident.space.entries)
