"""The reference victims (the sigmoid LeNet of the DLG code with one to three linear layers, and others), and their gradients."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.labels import label_loss
from fedpriv.attacks.core.observation import Observation, SplitNet, ThreatModel, blank, in_clients_mode, state_names

FEATURES = 768
"""Output of the convolutions for 32x32 pixels: 12 channels of 8x8."""
HONEST = ThreatModel()
WIDTHS: dict[int, tuple[int, ...]] = {1: (), 2: (128,), 3: (256, 128)}
"""Widths between the features and the classes, by the number of linear layers."""


def linear_layers(features: int, classes: int, layers: int) -> list[nn.Module]:
    """``features -> … -> classes`` through 1, 2 or 3 linear layers with sigmoids between."""
    widths = (features, *WIDTHS[layers], classes)
    sequence: list[nn.Module] = []
    for i, o in pairwise(widths):
        sequence += [nn.Linear(i, o), nn.Sigmoid()]
    return sequence[:-1]


def lenet(
    classes: int = 10, layers: int = 1, masked: int = 0, channels: int = 3, features: int = FEATURES, batch_norm: bool = False
) -> SplitNet:
    """The net of DLG (Zhu et al. 2019) for ``(channels, 32, 32)``: three 5x5 convolutions of 12 channels, strides 2, 2, 1.

    Args:
        layers: linear layers at the end: ``768 -> C``, ``768 -> 128 -> C`` or ``768 -> 256 -> 128 -> C``.
        masked: how many of them, from the last, are ``top``; with 0 nothing is hidden, and ``top`` is the last one.
        features: 768 for 32x32 pixels; ``12 * ceil(height / 4) * ceil(width / 4)`` for others.
        batch_norm: with BatchNorm after each convolution.
    """
    if layers not in WIDTHS or not 0 <= masked <= layers:
        raise ValueError(f"{layers} linear layers, {masked} masked: there must be 1 to 3, and at most all of them masked")
    convolutions: list[nn.Module] = []
    for wide, stride in zip((channels, 12, 12), (2, 2, 1), strict=True):
        convolutions += [nn.Conv2d(wide, 12, 5, stride, 2), *([nn.BatchNorm2d(12)] if batch_norm else []), nn.Sigmoid()]
    whole = [*convolutions, nn.Flatten(), *linear_layers(features, classes, layers)]
    linear = [i for i, layer in enumerate(whole) if isinstance(layer, nn.Linear)]
    cut = linear[-max(1, masked)]
    return SplitNet(nn.Sequential(*whole[:cut]), nn.Sequential(*whole[cut:]))


def perceptron(
    seed: int, classes: int = 10, channels: int = 3, height: int = 32, width: int = 32, hidden: int = 64,
    activation: type[nn.Module] = nn.Sigmoid, then: int | None = None,
) -> SplitNet:  # fmt: skip
    """A net whose first layer is linear on the pixels: ``pixels -> hidden -> classes``; torch's initialisation.

    Args:
        then: units of a second layer before that of the classes.
    """
    layers = [nn.Flatten(), nn.Linear(channels * height * width, hidden), activation()]
    if then is not None:
        layers += [nn.Linear(hidden, then), activation()]
    net = SplitNet(nn.Sequential(*layers), nn.Linear(then or hidden, classes))
    generator = torch.Generator().manual_seed(seed)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            uniform_(layer, generator, layer.in_features**-0.5)
    return net


def one_for_each(images: Tensor, seed: int, classes: int = 10) -> SplitNet:
    """A net whose first layer is linear with ReLU, where each neuron is active for only one of the images ``(n, C, H, W)``.

    The gradient of such a neuron reveals its image exactly, however many images are in the batch (Boenisch et al. 2021, "When the
    curious abandon honesty", section 4); trained nets have some such neurons. Weights are random, and each bias lies between the
    neuron's two largest responses. An image that is no neuron's largest response is not revealed.
    """
    generator, pixels, n = torch.Generator().manual_seed(seed), images[0].numel(), len(images)
    first, top = nn.Linear(pixels, max(64, min(8 * n, 1024))), nn.Linear(max(64, min(8 * n, 1024)), classes)
    for layer in (first, top):
        uniform_(layer, generator, layer.in_features**-0.5)
    with torch.no_grad():
        largest = (images.flatten(1) @ first.weight.T).topk(min(2, n), dim=0).values
        first.bias.copy_(-largest.mean(0) if n > 1 else 0.1 - largest[0])
    return SplitNet(nn.Sequential(nn.Flatten(), first, nn.ReLU()), top)


def uniform_(net: nn.Module, generator: torch.Generator, bound: float = 0.5) -> None:
    """Draw all parameters uniformly in ``[-bound, bound]``, as the DLG code does (with 0.5)."""
    with torch.no_grad():
        for parameter in net.parameters():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_((2 * drawn - 1) * bound)


def reference_victim(
    seed: int, classes: int = 10, layers: int = 1, masked: int = 0, channels: int = 3, height: int = 32, width: int = 32,
    batch_norm: bool = False,
) -> SplitNet:  # fmt: skip
    """:func:`lenet` for images of the given size; parameters drawn from U(-0.5, 0.5), except BatchNorm's."""
    net = lenet(classes, layers, masked, channels, 12 * -(-height // 4) * -(-width // 4), batch_norm)
    generator = torch.Generator().manual_seed(seed)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            uniform_(layer, generator)
    return net


def observe(net: SplitNet, samples: Tensor, labels: Tensor, threat: ThreatModel = HONEST, *, hidden: bool = False) -> Observation:
    """The observation of one gradient step on images ``(n, C, H, W)`` in [0, 1], or other samples such as rows ``(n, F)``: the
    gradient of the mean loss (:func:`fedpriv.attacks.core.labels.label_loss`).

    Args:
        labels: ``(n,)``.
        hidden: ``top`` is masked: its gradient is absent, and its weights are known as far as ``threat`` says.
    """
    run = in_clients_mode(net)
    loss = label_loss(run(samples), labels)
    gradients = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(run.parameters())), strict=True))
    state, knows_top = net.state_dict(), not hidden or threat.top != "unknown"
    return Observation(
        shared={name: g.detach() for name, g in gradients.items() if not (hidden and name.startswith("top."))},
        kind="gradient",
        weights={name: state[name].detach().clone() for name in state_names(net) if knows_top or name.startswith("body.")},
        net=blank(net),
        input_shape=tuple(samples.shape[1:]),
        classes=_classes(net, samples),
        threat=threat,
        num_examples=len(samples) if threat.num_examples else None,
        labels=labels.clone() if threat.labels else None,
    )


def _classes(net: SplitNet, images: Tensor) -> int:
    with torch.no_grad():
        return int(net(images[:1]).shape[1])
