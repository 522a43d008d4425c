"""The linear layers of a message, their gradients and inputs, and the nets and images of an observation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, in_clients_mode, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable

PROBES = 64
"""Random images that are passed through a net."""
RECTIFIED = 0.99
"""Smallest share of a layer's outputs that must behave as if ReLU followed; later layers may hide some."""


@dataclass(frozen=True)
class SharedLinear:
    """A linear layer whose weight was sent.

    Attributes:
        weight, bias: ``(out, in)`` and ``(out,)`` as sent (gradient or change); bias ``None`` if absent or masked.
        kept: ``(out, in)``, 1 where an entry of the weight was sent, else 0; ``None``: all entries were sent.
        error: standard deviation of the error of an entry of the bias (noise, rounding).
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    kept: Tensor | None = None
    error: float = 0.0


@dataclass(frozen=True)
class LayerInput:
    """The kind of input that a layer gets.

    Attributes:
        is_image: whether it is the flattened image, or the row of a table, itself, one vector per sample.
        lowest: 0 if no input is negative (after ReLU or sigmoid), else minus infinity.
        once: whether the layer gets one vector per sample and shares its weight and bias with no other layer; otherwise its
            gradient is a sum over several vectors.
    """

    is_image: bool
    lowest: float
    once: bool = True


def shared_linears(observation: Observation) -> list[SharedLinear]:
    """All linear layers whose weight was shared, in the order of the net's modules."""
    layers = []
    for name, module in observation.net.named_modules():
        weight = observation.shared.get(f"{name}.weight")
        if isinstance(module, nn.Linear) and weight is not None:
            bias, altered = f"{name}.bias", observation.altered
            error = altered.variance.get(bias, 0.0) ** 0.5
            layers.append(SharedLinear(name, weight, observation.shared.get(bias), altered.kept.get(f"{name}.weight"), error))
    return layers


def output_layer(observation: Observation) -> SharedLinear:
    """The layer whose outputs are the logits.

    Raises:
        Inapplicable: its weight was not shared.
    """
    names = [name for name, module in observation.net.named_modules() if isinstance(module, nn.Linear)]
    layers = [layer for layer in shared_linears(observation) if layer.name == names[-1]] if names else []
    if not layers or len(layers[0].weight) != observation.classes:
        raise Inapplicable(
            "the last layer, whose outputs are the logits, was not shared: the rules for its gradient do not apply"
        )
    return layers[0]


def single_sample_input(layer: SharedLinear) -> Tensor:
    """The layer's input ``(in,)`` for a message of one sample, whose weight and bias gradients together have rank one.

    Without noise, least squares of the weight gradient on the bias gradient. With noise, total least squares: the leading
    singular vector of both. Only entries that were sent are used. An input of which no weight
    entry was sent is set to 0: pruning drops small entries.
    """
    assert layer.bias is not None
    bias, tiny = layer.bias, torch.finfo(layer.bias.dtype).tiny
    if layer.kept is not None:
        kept = layer.kept.to(bias)
        return bias @ (layer.weight * kept) / (bias.square() @ kept).clamp(min=tiny)
    if not layer.error:
        return bias @ layer.weight / bias.square().sum().clamp(min=tiny)
    joint = torch.cat([layer.weight, bias[:, None]], 1).double()
    leading: Tensor = torch.linalg.svd(joint, full_matrices=False).Vh[0]
    scale = leading[-1].abs().clamp(min=1e-12).copysign(leading[-1])
    return (leading[:-1] / scale).to(bias)


def weight_dtype(observation: Observation) -> tuple[torch.device, torch.dtype]:
    """Device and floating type of the message."""
    tensor = next(iter(observation.shared.values()))
    return tensor.device, tensor.dtype


def known_net(observation: Observation) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of the net in evaluation mode, and the weights that the attacker knows."""
    return copy.deepcopy(observation.net).eval(), dict(observation.weights)


def training_net(observation: Observation) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of the net in the client's training mode (:func:`in_clients_mode`), and the weights that the attacker knows."""
    return in_clients_mode(observation.net), dict(observation.weights)


_last: list[tuple[nn.Module, Mapping[str, Tensor], tuple[int, ...], dict[str, LayerInput]]] = []
"""The last net that :func:`layer_inputs` was asked for, its weights, the shape of its inputs, and the answer."""


def layer_inputs(observation: Observation) -> Mapping[str, LayerInput]:
    """The kind of each linear layer's input, by name, in the order in which the net calls them.

    Passes random images through the net, so it works for any architecture. Layers that are never called, such as the output
    projection of torch's attention, are left out. The last answer is kept, as many messages are of one net at equal weights.
    """
    net, weights, shape = observation.net, observation.weights, tuple(observation.input_shape)
    if not _last or _last[0][0] is not net or _last[0][2] != shape or not _equal(_last[0][1], weights):
        _last[:] = [(net, weights, shape, _layer_inputs(observation))]
    return _last[0][3]


def _equal(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    pairs = ((tensor, others.get(name)) for name, tensor in weights.items())
    alike = (other is not None and other.device == tensor.device and torch.equal(tensor, other) for tensor, other in pairs)
    return weights.keys() == others.keys() and all(alike)


@torch.no_grad()
def _layer_inputs(observation: Observation) -> dict[str, LayerInput]:
    net, weights = known_net(observation)
    x = _probes(observation, torch.Generator().manual_seed(0))
    inputs: dict[str, LayerInput] = {}
    identities = [id(parameter) for module in net.modules() for parameter in module.parameters(recurse=False)]
    tied = {identity for identity in identities if identities.count(identity) > 1}

    def watch(name: str, module: nn.Linear) -> None:
        untied = tied.isdisjoint(map(id, module.parameters(recurse=False)))

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            fed = args[0]
            is_image = fed.shape[-1] == x[0].numel() and torch.equal(fed.flatten(), x.flatten())
            once = untied and name not in inputs and fed.numel() == PROBES * fed.shape[-1]
            inputs[name] = LayerInput(is_image, 0.0 if fed.min() >= 0 else -torch.inf, once)

        module.register_forward_pre_hook(hook)

    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            watch(name, module)
    functional_call(net, weights, (x,))
    return inputs


def is_rectified(observation: Observation, layer: str) -> bool:
    """Whether ReLU follows the layer: exactly the positive entries of its output affect the logits.

    Tested with random images, and random values for the weights that the attacker does not know.
    """
    net, weights = known_net(observation)
    device, dtype = weight_dtype(observation)
    generator = torch.Generator().manual_seed(0)
    parameters = dict(net.named_parameters())
    for name in state_names(net):
        if name not in weights:
            values = torch.rand(net.state_dict()[name].shape, generator=generator).to(device, dtype)
            weights[name] = values - 0.5 if name in parameters else values
    outputs: list[Tensor] = []
    net.get_submodule(layer).register_forward_hook(lambda module, args, output: outputs.append(output))
    x = _probes(observation, generator)
    leaves = {name: tensor.detach().clone().requires_grad_(name in parameters) for name, tensor in weights.items()}
    logits = functional_call(net, leaves, (x,))
    (slope,) = torch.autograd.grad((logits * torch.rand(logits.shape, generator=generator).to(logits)).sum(), outputs[0])
    return bool(((slope != 0) == (outputs[0] > 0)).double().mean() >= RECTIFIED)


def _probes(observation: Observation, generator: torch.Generator) -> Tensor:
    """Random images, normalised ``(PROBES, C, H, W)``."""
    device, dtype = weight_dtype(observation)
    return (torch.rand(PROBES, *observation.input_shape, generator=generator).to(device, dtype) - 0.5) / 0.25


class _Reached(Exception):
    """Ends a forward pass at the layer of interest."""


def layer_input(net: nn.Module, layer: str, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The (first) input of a layer when ``net`` gets ``inputs``; differentiable. The rest of the net is not computed.

    Raises:
        Inapplicable: the net does not call the layer.
    """
    reached: list[Tensor] = []

    def stop(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        reached.append(args[0])
        raise _Reached

    hook = net.get_submodule(layer).register_forward_pre_hook(stop)
    try:
        functional_call(net, dict(weights), (inputs,))
    except _Reached:
        return reached[0]
    finally:
        hook.remove()
    raise Inapplicable(f"the net does not call {layer!r}")


def per_channel(observation: Observation, values: tuple[float, ...], like: Tensor) -> Tensor:
    """A value per channel as ``(C, 1, 1)``, to be broadcast over ``(..., C, H, W)``; per entry of rows, as ``(F,)``."""
    first, *others = observation.input_shape
    return torch.tensor(values, dtype=like.dtype, device=like.device).expand(first).reshape(-1, *[1] * len(others))


def denormalise_images(observation: Observation, x: Tensor) -> Tensor:
    """Images in [0, 1], not clipped, from the net's inputs ``(..., C, H, W)``: undoes the client's normalisation."""
    return x * per_channel(observation, observation.std, x) + per_channel(observation, observation.mean, x)


def normalise_images(observation: Observation, image: Tensor) -> Tensor:
    """The net's inputs from images in [0, 1] ``(..., C, H, W)``: the client's normalisation."""
    return (image - per_channel(observation, observation.mean, image)) / per_channel(observation, observation.std, image)
