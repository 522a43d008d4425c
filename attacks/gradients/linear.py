"""The linear layers of a message: their gradients and their inputs. Several attacks start from these."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.core.observation import Observation, in_clients_mode, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable

RECTIFIED = 0.99
"""Least share of a layer's outputs that behave as if ReLU followed; others may be lost in later layers."""


@dataclass(frozen=True)
class SharedLinear:
    """A linear layer whose weight crossed the wire.

    Attributes:
        weight, bias: ``(out, in)`` and ``(out,)`` as sent (gradient or change); bias ``None`` where absent or masked.
        kept: ``(out, in)`` which entries of the weight were sent (1) or not (0); ``None``: all.
        error: standard deviation of the error (noise, rounding) of an entry of the bias.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    kept: Tensor | None = None
    error: float = 0.0


@dataclass(frozen=True)
class LayerInput:
    """The kind of a layer's input, found with random images.

    Attributes:
        is_image: the layer's input is the flattened image itself, as one vector for each sample.
        lowest: 0 where no input is negative (after ReLU or sigmoid), else minus infinity.
        once: whether the layer is fed one vector for each sample, and no other has its weight or its bias; otherwise its gradient
            is a sum over several vectors.
    """

    is_image: bool
    lowest: float
    once: bool = True


def shared_linears(observation: Observation) -> list[SharedLinear]:
    """All linear layers whose weight was shared, in the order of the net's modules (first layer first)."""
    found = []
    for name, module in observation.net.named_modules():
        weight = observation.shared.get(f"{name}.weight")
        if isinstance(module, nn.Linear) and weight is not None:
            bias, altered = f"{name}.bias", observation.altered
            error = altered.variance.get(bias, 0.0) ** 0.5
            found.append(SharedLinear(name, weight, observation.shared.get(bias), altered.kept.get(f"{name}.weight"), error))
    return found


def output_layer(observation: Observation) -> SharedLinear:
    """The layer whose outputs are the logits.

    Raises:
        Inapplicable: if its weight was not shared.
    """
    names = [name for name, module in observation.net.named_modules() if isinstance(module, nn.Linear)]
    layers = [layer for layer in shared_linears(observation) if layer.name == names[-1]] if names else []
    if not layers or len(layers[0].weight) != observation.classes:
        raise Inapplicable(
            "the last layer, whose outputs are the logits, was not shared: the rules for its gradient do not apply"
        )
    return layers[0]


def single_sample_input(layer: SharedLinear) -> Tensor:
    """The layer's input ``(in,)`` if there was one sample, whose weight and bias gradient together have rank one.

    Without noise, by least squares of the weight gradient on the bias gradient. With noise, which is in both, by their largest
    singular vector (total least squares), which all entries determine. Only entries that were sent are used; an input none of
    whose entries was sent is small, and 0 here.
    """
    assert layer.bias is not None
    bias, tiny = layer.bias, torch.finfo(layer.bias.dtype).tiny
    if layer.kept is not None:
        kept = layer.kept.to(bias)
        return bias @ (layer.weight * kept) / (bias.square() @ kept).clamp(min=tiny)
    if not layer.error:
        return bias @ layer.weight / bias.square().sum().clamp(min=tiny)
    both = torch.cat([layer.weight, bias[:, None]], 1).double()
    leading: Tensor = torch.linalg.svd(both, full_matrices=False).Vh[0]
    scale = leading[-1].abs().clamp(min=1e-12).copysign(leading[-1])
    return (leading[:-1] / scale).to(bias)


def weight_dtype(observation: Observation) -> tuple[torch.device, torch.dtype]:
    """Device and floating type of the message."""
    tensor = next(iter(observation.shared.values()))
    return tensor.device, tensor.dtype


def known_net(observation: Observation) -> tuple[nn.Module, dict[str, Tensor]]:
    """The architecture in evaluation mode (a copy), and the weights that the attacker knows for it."""
    return copy.deepcopy(observation.net).eval(), dict(observation.weights)


def training_net(observation: Observation) -> tuple[nn.Module, dict[str, Tensor]]:
    """As :func:`known_net`, in the mode in which the client trained (:func:`in_clients_mode`)."""
    return in_clients_mode(observation.net), dict(observation.weights)


@torch.no_grad()
def layer_inputs(observation: Observation, images: int = 64, seed: int = 0) -> dict[str, LayerInput]:
    """The kind of each linear layer's input, by name, in the order in which the net calls them.

    Found by passing random images through the net, so that it works for any architecture. Layers that the net does not call, such
    as the projection of torch's attention, whose weight it reads, are left out.
    """
    net, weights = known_net(observation)
    device, dtype = weight_dtype(observation)
    x = torch.rand(images, *observation.input_shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
    x = (x - 0.5) / 0.25
    seen: dict[str, LayerInput] = {}
    every = [id(parameter) for module in net.modules() for parameter in module.parameters(recurse=False)]
    tied = {one for one in every if every.count(one) > 1}

    def watch(name: str, module: nn.Linear) -> None:
        alone = tied.isdisjoint(map(id, module.parameters(recurse=False)))

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            fed = args[0]
            same = fed.shape[-1] == x[0].numel() and torch.equal(fed.flatten(), x.flatten())
            once = alone and name not in seen and fed.numel() == images * fed.shape[-1]
            seen[name] = LayerInput(same, 0.0 if fed.min() >= 0 else -torch.inf, once)

        module.register_forward_pre_hook(hook)

    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            watch(name, module)
    functional_call(net, weights, (x,))
    return seen


def is_rectified(observation: Observation, layer: str, images: int = 64, seed: int = 0) -> bool:
    """Whether ReLU follows the layer: what is not positive in its output has no effect on the logits, and all else has.

    Found by random images, and random values for the weights that the attacker does not know.
    """
    net, weights = known_net(observation)
    device, dtype = weight_dtype(observation)
    draw = torch.Generator().manual_seed(seed)
    parameters = dict(net.named_parameters())
    for name in state_names(net):
        if name not in weights:
            drawn = torch.rand(net.state_dict()[name].shape, generator=draw).to(device, dtype)
            weights[name] = drawn - 0.5 if name in parameters else drawn
    outputs: list[Tensor] = []
    net.get_submodule(layer).register_forward_hook(lambda module, args, output: outputs.append(output))
    x = (torch.rand(images, *observation.input_shape, generator=draw).to(device, dtype) - 0.5) / 0.25
    logits = functional_call(
        net, {name: tensor.requires_grad_(name in parameters) for name, tensor in _own(weights).items()}, (x,)
    )
    (slope,) = torch.autograd.grad((logits * torch.rand(logits.shape, generator=draw).to(logits)).sum(), outputs[0])
    return bool(((slope != 0) == (outputs[0] > 0)).double().mean() >= RECTIFIED)


def _own(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def per_channel(observation: Observation, values: tuple[float, ...], like: Tensor) -> Tensor:
    """Mean or standard deviation ``(C, 1, 1)``, to be broadcast over ``(…, C, H, W)``."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).expand(observation.input_shape[0]).reshape(-1, 1, 1)


def denormalise_images(observation: Observation, x: Tensor) -> Tensor:
    """The net's inputs ``(…, C, H, W)`` -> images in [0, 1] (not clipped): undoes the client's normalisation."""
    return x * per_channel(observation, observation.std, x) + per_channel(observation, observation.mean, x)


def normalise_images(observation: Observation, image: Tensor) -> Tensor:
    """Images in [0, 1] ``(…, C, H, W)`` -> the net's inputs: the client's normalisation."""
    return (image - per_channel(observation, observation.mean, image)) / per_channel(observation, observation.std, image)
