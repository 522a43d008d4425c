"""Spectral norms are those of the merged weight: in evaluation, u^T W v is W's largest singular value."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import fedpriv
from fedpriv.models.user_net import build_user_net
from fedpriv.parameters import ParameterSpace

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "clients": 4,
    "partition": "classes",
    "rounds": 2,
    "local_epochs": 2,
    "lr": 0.3,
    "participation": 1.0,
    "data.limit": 100,
    "tracking_uri": "none",
}


def by_hook(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.spectral_norm(layer)


class Spectral(nn.Module):
    """Both of torch's forms, a convolution, and one whose rows are the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.back = spectral_norm(nn.Conv2d(1, 4, 3)), spectral_norm(nn.ConvTranspose2d(4, 2, 3))
        self.fc, self.head = by_hook(nn.Linear(128, 8)), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.back(self.first(x).relu()).relu()
        logits: Tensor = self.head(self.fc(h.flatten(1)).relu())
        return logits


def used_in_evaluation(net: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The weights as matrices, as a pass in evaluation mode uses them."""
    encoder = net.eval().encoder
    net(torch.rand(2, 1, 8, 8))  # the older form sets its weight in a pass
    weights = {"first": encoder.first.weight, "back": encoder.back.weight.transpose(0, 1), "fc": encoder.fc.weight}
    return {name: weight.detach().flatten(1).numpy().astype(np.float64) for name, weight in weights.items()}


@pytest.mark.parametrize(
    ("method", "more"),
    [("fedavg", {}), pytest.param("apfl", {}, marks=pytest.mark.slow), pytest.param("fedopt", {}, marks=pytest.mark.slow)],
)
def test_merged_spectral_norm_uses_the_largest_singular_value(
    method: str, more: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fedpriv.train(model=Spectral, method=method, **SMALL, **more)
        net = build_user_net(run.config.model.name or "", (1, 8, 8), 10, None)
    before = dict(net.named_parameters())["encoder.first.parametrizations.weight.original"].detach().clone()
    net.load_state_dict(run.weights(), strict=False)
    after = dict(net.named_parameters())["encoder.first.parametrizations.weight.original"]
    assert not torch.equal(before, after)
    for name, matrix in used_in_evaluation(net).items():
        assert abs(np.linalg.norm(matrix, 2) - 1) < 1e-3, name


def moved(net: nn.Module) -> tuple[ParameterSpace, Tensor]:
    space = ParameterSpace.of(net)
    row = space.row_of(net)
    return space, row + torch.randn(row.shape, generator=torch.Generator().manual_seed(0))


def test_any_row_gets_the_singular_vectors_of_its_weights() -> None:
    net = build_user_net(f"{__name__}:Spectral", (1, 8, 8), 10, None)
    space, row = moved(net)
    others = row.clone()
    space.renew_spectral_norms(row)
    space.bind(net, row)
    for name, matrix in used_in_evaluation(net).items():
        assert abs(np.linalg.norm(matrix, 2) - 1) < 1e-5, name
    changed = {name for name in space.names if not torch.equal(space.view(row, name), space.view(others, name))}
    assert changed == {name for norm in space.spectral for name in (norm.u, norm.v)} and len(changed) == 6


def test_zero_weight_keeps_its_singular_vectors() -> None:
    net = build_user_net(f"{__name__}:Spectral", (1, 8, 8), 10, None)
    space = ParameterSpace.of(net)
    row = torch.zeros(space.size)
    space.renew_spectral_norms(row)
    assert not row.any()


def frozen(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    return layer


@pytest.mark.parametrize(
    ("layer", "known"),
    [
        (lambda: spectral_norm(nn.Linear(64, 16)), True),
        (lambda: frozen(spectral_norm(nn.Linear(64, 16))), False),
        (lambda: spectral_norm(torch.nn.utils.parametrizations.weight_norm(nn.Linear(64, 16))), False),
    ],
)
def test_only_the_norms_of_trained_weights_are_part_of_the_state(layer: Callable[[], nn.Module], known: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = layer(), nn.Linear(16, 10)

    space = ParameterSpace.of(Net())
    assert bool(space.spectral) == known == any(name.endswith("._u") for name in space.names)
