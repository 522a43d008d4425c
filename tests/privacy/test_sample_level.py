"""Per-sample gradients against autograd and Opacus; a private local update against plain SGD; the noise it adds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.client.receiving import Received
from fedpriv.errors import UsageError
from fedpriv.interfaces import Loss, Step
from fedpriv.methods.base import phase
from fedpriv.models.net import ROLES, Outputs
from fedpriv.models.registry import build_model
from fedpriv.objectives.cross_entropy import cross_entropy
from fedpriv.privacy import per_sample
from fedpriv.privacy.ghost import GhostGradients
from fedpriv.privacy.per_sample import PerSampleGradients
from fedpriv.server.clients import Instruction
from fedpriv.wire.report import Report
from tests.simulation.small import simulation

LENET = {"name": "lenet5", "input_shape": (1, 16, 16), "classes": 4, "projection": 8}


def batch(count: int = 7) -> tuple[Any, dict[str, Tensor], Tensor, Tensor]:
    torch.manual_seed(3)
    net = build_model(**LENET)  # type: ignore[arg-type]
    return net, dict(net.named_parameters()), torch.randn(count, 1, 16, 16), torch.randint(0, 4, (count,))


def sums(
    net: Any, clip: float, x: Tensor, y: Tensor, loss: Loss = cross_entropy, kind: Any = PerSampleGradients, **teachers: Outputs
) -> dict[str, Tensor]:
    parameters = dict(net.named_parameters())
    gradients = kind(net, parameters, {}, phase(*ROLES, epochs=1), loss, from_features=False, clip=clip)
    total: dict[str, Tensor] = gradients(x, y, teachers)[0]
    return total


def test_unclipped_it_is_the_gradient_of_the_summed_loss() -> None:
    net, parameters, x, y = batch()
    expected = torch.autograd.grad(F.cross_entropy(net(x).logits, y, reduction="sum"), list(parameters.values()))
    total = sums(net, 1e9, x, y)
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(total[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [0.1, 1.0, 2.5])
def test_clipped_it_is_opacus(clip: float) -> None:
    net, _, x, y = batch()
    model = nn.Sequential(net.encoder, net.projector, net.head)
    names = [role + "." + name for role in ("encoder", "projector", "head") for name, _ in getattr(net, role).named_parameters()]
    wrapped = GradSampleModule(model, loss_reduction="mean")
    F.cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad_sample.detach() for p in wrapped.parameters()]
    norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
    factors = (clip / (norms + 1e-6)).clamp(max=1.0)  # Opacus' DPOptimizer
    wrapped.to_standard_module() if hasattr(wrapped, "to_standard_module") else wrapped.remove_hooks()
    total = sums(net, clip, x, y)
    for name, gradient in zip(names, gradients, strict=True):
        torch.testing.assert_close(total[name], torch.einsum("i,i...->...", factors, gradient), rtol=1e-3, atol=1e-5)


def test_no_sample_has_more_than_the_bound() -> None:
    net, _, x, y = batch()
    single = sums(net, 0.3, 100 * x[:1], y[:1])
    assert float(torch.stack([g.square().sum() for g in single.values()]).sum().sqrt()) <= 0.3 * (1 + 1e-5)
    whole, without = sums(net, 0.3, x, y), sums(net, 0.3, x[1:], y[1:])
    assert float(torch.stack([(whole[n] - without[n]).square().sum() for n in whole]).sum().sqrt()) <= 0.3 * (1 + 1e-4)


def test_of_a_single_number_it_is_a_gradient_too() -> None:
    """As of a learnt temperature."""
    net, _, x, y = batch()
    net.head.scale = nn.Parameter(torch.tensor(2.0))
    net.head.forward = lambda z: nn.functional.linear(z, net.head.weight, net.head.bias) * net.head.scale
    expected = torch.autograd.grad(F.cross_entropy(net(x).logits, y, reduction="sum"), net.head.scale)[0]
    torch.testing.assert_close(sums(net, 1e9, x, y)["head.scale"], expected, rtol=1e-4, atol=1e-5)


def test_in_pieces_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net, _, x, y = batch()
    whole = sums(net, 0.5, x, y)
    monkeypatch.setattr(per_sample, "ENTRIES", 1)
    for name, gradient in sums(net, 0.5, x, y).items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [0.1, 1.0, 1e9])
def test_ghost_clipping_gives_the_same_sums(clip: float) -> None:
    net, parameters, x, y = batch()
    with torch.no_grad():
        old = build_model(**LENET)(x)  # type: ignore[arg-type]

    def loss(step: Step) -> Tensor:
        return F.mse_loss(step.outputs.projection, step.teacher("old").projection) + cross_entropy(step)

    before = {name: set(vars(p)) for name, p in parameters.items()}
    ghost, per_sample = (sums(net, clip, x, y, loss, kind, old=old) for kind in (GhostGradients, PerSampleGradients))
    assert ghost.keys() == per_sample.keys()
    for name, gradient in per_sample.items():
        torch.testing.assert_close(ghost[name], gradient, rtol=1e-3, atol=1e-5)
    assert {name: set(vars(p)) for name, p in parameters.items()} == before  # Opacus' marks are gone
    assert all(p.grad is None for p in parameters.values())
    nothing = sums(net, clip, x[:0], y[:0], loss, GhostGradients)
    assert all(not gradient.any() for gradient in nothing.values())


def test_ghost_clipping_refuses_a_loss_with_parameters() -> None:
    net, _, x, y = batch(2)
    with pytest.raises(UsageError, match="ghost clipping cannot handle"):
        sums(net, 1.0, x, y, lambda step: cross_entropy(step) + step.parameters["head.bias"].square().sum(), GhostGradients)


def test_a_private_update_with_ghost_clipping_is_that_without(tmp_path: Any) -> None:
    options = {"level": "sample", "noise": 0.5, "clip": 0.1}
    _, plain, _ = turned(tmp_path / "plain", **options)
    _, ghost, _ = turned(tmp_path / "ghost", **options, clipping="ghost")
    torch.testing.assert_close(ghost, plain, rtol=1e-4, atol=1e-6)


def test_a_loss_may_look_at_the_parameters_and_at_teachers() -> None:
    """What hooks on layers would miss: every sample's gradient has the proximal term, and its own row of the teacher."""
    net, parameters, x, y = batch(3)
    with torch.no_grad():
        out = build_model(**LENET)(x)  # type: ignore[arg-type]

    def loss(step: Step) -> Tensor:
        prox = step.parameters["head.bias"].square().sum()
        return F.mse_loss(step.outputs.logits, step.teacher("old").logits) + prox + cross_entropy(step)

    expected = torch.autograd.grad(
        3 * F.mse_loss(net(x).logits, out.logits)
        + 3 * parameters["head.bias"].square().sum()
        + F.cross_entropy(net(x).logits, y, reduction="sum"),
        list(parameters.values()),
    )
    total = sums(net, 1e9, x, y, loss, old=out)
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(total[name], gradient, rtol=1e-4, atol=1e-5)


def turned(tmp_path: Any, method: str = "fedavg", **privacy: Any) -> tuple[Tensor, Tensor, Any]:
    """The row before and after the first client's private local update in round 1."""
    overrides = {f"privacy.{key}": value for key, value in privacy.items()}
    run = simulation(tmp_path / "run", method, **{"train.batch_size": 1000, "train.momentum": 0.0, **overrides})
    before = run.federation.resident.row.clone()
    (answer,) = run.executor.train(Instruction(1, [0], None))
    assert Report.of(answer.report).spent == [(1.0, 1)] and run.store.spent(0) == {1: [(1.0, 1)]}
    return before, run.federation.resident.row.clone(), run


def test_without_clipping_and_noise_a_update_is_full_batch_sgd(tmp_path: Any) -> None:
    before, after, run = turned(tmp_path, level="sample", noise=1e-9, clip=1e3)
    fed = run.federation
    fed.resident.row.copy_(before)
    fed.resident.set_trained(frozenset(ROLES))
    x, y = fed.data.train(0)
    weights = [p for p in fed.resident.net.parameters() if p.ndim > 1]
    biases = [p for p in fed.resident.net.parameters() if p.ndim == 1]
    fed.resident.grad.zero_()
    F.cross_entropy(fed.resident.net(x).logits, y).backward()  # type: ignore[no-untyped-call]
    groups = [{"params": weights, "weight_decay": run.config.train.weight_decay}, {"params": biases}]
    torch.optim.SGD(groups, lr=run.config.train.lr).step()
    torch.testing.assert_close(after, fed.resident.row, rtol=1e-4, atol=2e-6)


def test_the_noise_of_a_step(tmp_path: Any) -> None:
    """lr Z C / n per entry, when it drowns the gradient."""
    before, after, run = turned(tmp_path, level="sample", noise=50.0, clip=0.01)
    noise = (after - before).double()
    n = run.federation.data.size(0)
    sigma = run.config.train.lr * 50.0 * 0.01 / n
    assert abs(noise.mean()) < 5 * sigma / math.sqrt(len(noise))
    assert noise.var() == pytest.approx(sigma**2, rel=5 * math.sqrt(2 / len(noise)))


def test_augmentation_is_drawn_from_the_clients_secret(tmp_path: Any) -> None:
    """By the seed alone an observer would know it, and a sample's place in its batch says whether those before it were drawn."""
    rows = []
    for name, secret in (("seed", None), ("one", b"1" * 32), ("other", b"2" * 32)):
        private = {"privacy.level": "sample", "privacy.noise": 1e-9, "privacy.clip": 1e3}
        run = simulation(tmp_path / name, "fedavg", **{"train.batch_size": 1000, "data.augment": "crop_flip", **private})
        federation = run.federation
        client = federation.client(0, run.store)
        client.secret = secret
        initial = federation.initial
        client.train(federation.resident, Received(1, {}, initial, initial.clone()), None)
        rows.append(federation.resident.row.clone())
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert float((rows[i] - rows[j]).abs().max()) > 1e-4
