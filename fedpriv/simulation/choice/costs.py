"""What a client's local update costs: seconds, memory, and the parameters of a step. Estimates, from the net and its samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedpriv.config import RunConfig
from fedpriv.interfaces import Phase
from fedpriv.models.net import Net, describe
from fedpriv.samples import Inputs

STEP_SECONDS, PRODUCT_SECONDS = 2.5e-4, 1.5e-10
"""Least CPU seconds of a client's training step, and of a product of its net with a sample, gradients included
(``benchmarks/workers.py``)."""


def least_seconds(config: RunConfig, net: Net, samples: Inputs, sizes: Sequence[int], phases: Sequence[Phase]) -> float:
    """CPU seconds that the local training of all rounds takes at least, on the fastest processor that was measured.

    A low estimate: each step takes some time, and so does each product of a weight with a number of a sample. Steps on cached
    features have no products here.
    """
    epochs = sum(phase.epochs for phase in phases)
    steps = epochs * sum(-(-size // config.train.batch_size) for size in sizes)
    seconds = config.train.rounds * steps * STEP_SECONDS
    if isinstance(samples, Tensor):
        products = sum(
            output.numel() * module.weight[0].numel()
            for module, output in layers_of(net, samples)
            if isinstance(module, nn.Conv2d | nn.Linear)
        )
        whole = sum(phase.epochs for phase in phases if _passes_encoder(config, phase))
        seconds += config.train.rounds * whole * sum(sizes) * products * PRODUCT_SECONDS
    return seconds


def client_bytes(config: RunConfig, net: Net, samples: Tensor) -> int:
    """Approximate memory of a client's training in bytes: its state, and the activations of a batch.

    Args:
        samples: ``(n, ...)`` at least one of a client's samples.
    """
    outputs = [output.numel() for _, output in layers_of(net, samples)]
    state = sum(tensor.numel() for tensor in net.state_dict().values())
    # The row, its gradient, velocity and start; of each layer the output and its gradient.
    numbers: int = 4 * state + 2 * config.train.batch_size * sum(outputs)
    return samples.element_size() * numbers


def parameters_a_step(config: RunConfig, net: Net, phases: Sequence[Phase]) -> int:
    """Mean number of parameters that a training step computes with: without the encoder's if its features are cached."""
    size = {part.role: part.parameters for part in describe(net)}
    whole = sum(size.values())
    total = sum(phase.epochs * (whole if _passes_encoder(config, phase) else whole - size["encoder"]) for phase in phases)
    return total // max(1, sum(phase.epochs for phase in phases))


def _passes_encoder(config: RunConfig, phase: Phase) -> bool:
    """Whether each step of a phase computes the encoder, and has no cached features of it."""
    caches = config.train.cache_features and config.data.augment in (None, "none")
    return not caches or "encoder" in phase.trains


@torch.no_grad()
def layers_of(net: Net, samples: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """The layers of a forward pass of one sample, with their outputs."""
    layers: list[tuple[nn.Module, Tensor]] = []

    def record(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            layers.append((module, output))

    hooks = [module.register_forward_hook(record) for module in net.modules() if not list(module.children())]
    modes = [module.training for module in net.modules()]
    try:
        net.eval()(samples[:1])
    finally:
        for module, training in zip(net.modules(), modes, strict=True):
            module.training = training
        for hook in hooks:
            hook.remove()
    return layers
