"""The label of one sample behind a head that the attacker knows: try all of them (section 3.3 of the method card).

With the head hidden, no sign of a shared gradient tells the label. But whoever knows the head (it was broadcast in round 0) can
compute what each of the C labels would have sent back, and compare.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from attacks.analytic import leaky_layers
from attacks.linear import known_net
from attacks.multistep import as_gradient
from attacks.observation import Observation
from attacks.reconstruction import Inapplicable


def try_labels(classes: int, distance: Callable[[int], float]) -> Tensor:
    """``(C,)`` how badly each label explains the message; the smallest is the guess.

    Args:
        distance: label -> matching loss, e.g. of a short gradient-matching run with that label fixed.
    """
    return torch.tensor([distance(label) for label in range(classes)], dtype=torch.float64)


def try_labels_at_layer(observation: Observation, layer: str | None = None) -> Tensor:
    """The same without any optimisation, for one sample: ``(C,)`` cosine distances in [0, 2]; about 0 at the true label.

    A shared linear layer with a bias gives its input (weight over bias gradient), hence its output ``a``, and the back-propagated
    signal ``dL/da`` (the bias gradient). Through the known rest of the net ``a`` can send back only C different signals.

    Args:
        layer: default the last shared one, which leaves the least of the net to be known.

    Raises:
        Inapplicable: if no such layer was shared, or weights behind it are not known.
    """
    observation = as_gradient(observation)
    layers = {found.name: found for found in leaky_layers(observation)}
    if not layers:
        raise Inapplicable("no linear layer with a bias was shared: there is no back-propagated signal to compare")
    leak = layers[layer or list(layers)[-1]]
    net, weights = known_net(observation)
    missing = [name for name, _ in net.named_parameters() if name not in weights]
    if missing:
        raise Inapplicable(f"trying all labels needs the weights behind the shared layers; {missing[0]!r} is not known")
    assert leak.bias is not None
    bias, weight = leak.bias, weights[f"{leak.name}.weight"]
    fed = bias @ leak.weight / bias.square().sum().clamp(min=1e-30)
    output = (weight @ fed + weights[f"{leak.name}.bias"]).expand(observation.classes, -1).clone().requires_grad_()

    def put_in(_: nn.Module, __: object, ___: object) -> Tensor:
        return output

    net.get_submodule(leak.name).register_forward_hook(put_in)
    # What is fed in does not matter: from the layer on, the net sees `output`, once for each label.
    nothing = torch.zeros(observation.classes, *observation.input_shape, dtype=output.dtype, device=output.device)
    logits = functional_call(net, weights, (nothing,))
    loss = F.cross_entropy(logits, torch.arange(observation.classes, device=output.device), reduction="sum")
    (signals,) = torch.autograd.grad(loss, output)
    return 1 - F.cosine_similarity(signals, bias[None], dim=1)
