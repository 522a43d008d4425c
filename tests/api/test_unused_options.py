"""Keys without effect; the command line's are in ``tests/cli/test_bad_input.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fedpriv.methods
from fedpriv.api.unused_options import check_effects
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.methods.fedavg import FedAvg
from fedpriv.simulation.simulation import Simulation
from tests.marks import quick_first


def test_what_is_tested_of_a_method_that_keeps_its_buffers_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    class KeepsNorms(FedAvg):
        buffers = "local"

    asked = {"eval.state": "local_encoder"}
    config = load_config(None, {"method.name": "fedavg", **asked})
    with pytest.raises(UsageError, match=r"eval\.state has no effect under method fedavg"):
        check_effects(config, asked)
    monkeypatch.setattr(fedpriv.methods, "find_method", lambda name: KeepsNorms)
    check_effects(config, asked)


CLIENT = {"privacy.level": "client", "privacy.noise": 1.0, "privacy.delta": 1e-3}
IDLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("fedopt", {"method.rule": "adagrad"}, {"method.beta2": 0.5}),
    ("mpfedcon", {"method.mu": 0, "method.head_epochs": 1}, {"method.tau": 0.1}),
    ("feddual", {"method.dyn_layers": "none"}, {"method.eps": 0.1}),
    ("feddual", {"method.barycentre": "wb_quantile"}, {"method.iterations": 3}),
    ("feddual", {"method.barycentre": "wb_neurons"}, {"method.eps": 0.1}),
    ("feddual", {}, {"method.reg": 0.1}),
    ("perfedavg", {}, {"method.e": 0.1}),
    ("fedsiam-da", {"method.mu": 0, "model.projection": 8}, {"method.history": "step"}),
    ("l-dawa", {"method.divergence": "none"}, {"method.floor": 0.5}),
    ("l-dawa", {"method.divergence": "none"}, {"method.variant": "normalised"}),
    ("fedavg", {"aggregation.name": "fedu", "model.projection": 8}, {"aggregation.floor": 0.5}),
    ("fedavg", {"aggregation.name": "euc", "aggregation.euc": "weight"}, {"aggregation.weights": "uniform"}),
    ("scaffold", {"method.layers": 0}, {"method.variate": "I"}),
    ("fedavg-ft", {"method.ft_steps": 3}, {"method.ft_epochs": 2}),
    ("local", {"method.epochs": 2}, {"train.local_epochs": 4}),
    ("local", {}, {"train.min_uploads": 5}),
    ("local", {}, {"train.max_update_norm": 1e-3}),
    ("fedavg", CLIENT, {"method.weights": "samples"}),
    ("fedavg", {**CLIENT, "aggregation.name": "mean"}, {"aggregation.weights": "samples"}),
]
"""Method, what makes an option idle, and that option."""


@pytest.mark.parametrize(("method", "options", "idle"), IDLE)
def test_an_idle_option_is_refused(method: str, options: dict[str, Any], idle: dict[str, Any]) -> None:
    config = load_config(None, {"method.name": method, **options, **idle})
    with pytest.raises(UsageError, match=f"{next(iter(idle))} has no effect under "):
        check_effects(config, {**options, **idle})
    check_effects(config, options)  # a config file may set all options


@pytest.mark.parametrize(("method", "options", "idle"), quick_first(IDLE))
def test_an_idle_option_changes_nothing(
    simulate: Callable[..., Simulation], method: str, options: dict[str, Any], idle: dict[str, Any]
) -> None:
    short = {"train.rounds": 2, "data.limit": 200, "data.partition.name": "iid"}
    without, beside = (simulate(method, **short, **options, **more) for more in ({}, idle))
    assert torch.equal(without.state.row, beside.state.row)
    for client in without.progress.clients:
        kept, same = without.private(client), beside.private(client)
        assert all(torch.equal(tensor, same[name]) for name, tensor in kept.items())
    first, second = ([record["per_client"] for record in run.folder.records()] for run in (without, beside))
    assert first == second


@pytest.mark.parametrize(
    ("method", "options", "asked"),
    [
        ("mpfedcon", {}, {"method.tau": 0.1}),
        ("fedopt", {"method.rule": "yogi"}, {"method.beta2": 0.5}),
        ("feddual", {"method.barycentre": "wb_neurons"}, {"method.iterations": 3}),
        ("l-dawa", {"method.divergence": "none"}, {"method.variant": "authors_code"}),
        ("scaffold", {"method.layers": 1}, {"method.variate": "II"}),
        ("fedavg", {}, {"method.weights": "samples", "train.min_uploads": 2}),
        ("fedavg", CLIENT, {"method.weights": "uniform"}),
        ("local", {}, {"train.local_epochs": 4}),
    ],
)
def test_one_with_an_effect_is_not(method: str, options: dict[str, Any], asked: dict[str, Any]) -> None:
    check_effects(load_config(None, {"method.name": method, **options, **asked}), {**options, **asked})


def test_under_client_level_dp_all_clients_weigh_the_same(simulate: Callable[..., Simulation]) -> None:
    """And a run says so, of itself and where a config file says otherwise, as those of earlier versions do."""
    said = simulate("fedavg", play=False, **CLIENT).federation
    assert said.config.method.params["weights"] == "uniform" and not said.prepared.notes
    assert simulate("fedavg", play=False).federation.config.method.params["weights"] == "samples"
    other = simulate("fedavg", play=False, **CLIENT, **{"aggregation.name": "mean"}).federation
    assert other.config.aggregation is not None and other.config.aggregation.params["weights"] == "uniform"
    written = simulate("fedavg", play=False, **CLIENT, **{"method.weights": "samples"}).federation
    assert written.config.method.params["weights"] == "samples"
    assert written.prepared.notes == ("privacy.level client: weights=samples has no effect, as all clients have the same weight",)
