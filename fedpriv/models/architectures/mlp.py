"""Multilayer perceptrons on the flattened input.

The gradients of the first layer's weights and biases reveal a single sample exactly (dW / db), as the analytic attack shows.
"""

from collections import OrderedDict
from math import prod

from torch import nn

from fedpriv.models.registry import Shape, register_model


def mlp(input_shape: Shape, widths: tuple[int, ...]) -> tuple[nn.Module, int]:
    """(B, *input_shape) -> (B, widths[-1]); a ReLU after every layer. Without widths: the flattened input."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    sizes = (prod(input_shape), *widths)
    for i, (width_in, width_out) in enumerate(zip(sizes, widths, strict=False), start=1):
        layers[f"fc{i}"] = nn.Linear(width_in, width_out)
        layers[f"relu{i}"] = nn.ReLU()
    return nn.Sequential(layers), sizes[-1]


@register_model("mlp_lineage", input_shape=(1, 28, 28), classes=10, source="FedRep's released FEMNIST net, without its softmax")
def mlp_lineage(input_shape: Shape) -> tuple[nn.Module, int]:
    """in -> 512 -> 256 -> 64, without the released code's additional softmax before the cross-entropy."""
    return mlp(input_shape, (512, 256, 64))


@register_model("mlp", input_shape=(14,), classes=2, source="the default net for tables")
def table_mlp(input_shape: Shape) -> tuple[nn.Module, int]:
    """in -> 128 -> 64."""
    return mlp(input_shape, (128, 64))


@register_model("linear", input_shape=(14,), classes=2, source="logistic regression: a linear head on the columns or pixels")
def linear(input_shape: Shape) -> tuple[nn.Module, int]:
    """The flattened input, on which the head is a linear model."""
    return mlp(input_shape, ())


@register_model("mlp2", input_shape=(1, 28, 28), classes=10, source="MpFedcon's words 'two-layer MLP' taken literally")
def mlp2(input_shape: Shape) -> tuple[nn.Module, int]:
    """in -> 512 -> 256."""
    return mlp(input_shape, (512, 256))
