"""How often a batch holds each of some rows, and with which labels: the mixture of their gradients that is the message.

The gradient of a mean cross-entropy is ``sum c_{x,y} g(x, y) / n`` over rows ``x`` and labels ``y`` with counts ``c >= 0``. The
attacker can compute every ``g(x, y)``, and few counts explain a gradient with many entries (non-negative least squares).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable, require_labels
from fedpriv.attacks.gradients.analytic import require_invertible_layers
from fedpriv.attacks.gradients.linear import training_net
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.gradients.per_sample import LabelledSamples, per_sample
from fedpriv.attacks.gradients.simulated_messages import check_simulation

UNEXPLAINED = 0.02
"""Largest share of the gradient that counts leave unexplained, if it is the mixture of these rows' gradients."""
MEMORY = 2**27
"""Bytes of a batch of gradients."""


def label_counts(observation: Observation, rows: Tensor) -> Tensor:
    """How often each row ``(k, F)`` with each label is behind a message: ``(k, classes)``, not rounded.

    Only the first linear layer's gradient is used. With two classes, the gradients of both labels of a row are opposite: of a row
    that occurs with both, only their difference is counted, so that it is no whole number. Where the number of rows or the
    gradient's scale is not known, counts are relative to the largest.

    Raises:
        Inapplicable: labels are numbers, the attacker does not know all of the net, or no counts explain the gradient: rows are
            missing, or it is that of several steps.
    """
    require_labels(observation)
    check_simulation(observation)
    from scipy.optimize import nnls

    gradient, classes = as_gradient(observation), observation.classes
    first = require_invertible_layers(gradient)[0][0].name
    names = [f"{first}.weight", f"{first}.bias"]
    net, weights = training_net(observation)
    labels = torch.arange(classes).repeat(len(rows))
    samples = LabelledSamples({"row": rows.repeat_interleave(classes, 0)}, labels, lambda inputs: inputs["row"])
    parts = [torch.cat([part[name] for name in names], 1) for part in per_sample(net, weights, names, samples, MEMORY)]
    orthogonal, triangle = torch.linalg.qr(torch.cat(parts).double().T)
    observed = torch.cat([gradient.shared[name].flatten() for name in names]).double()
    solution, _ = nnls(triangle.numpy(), (orthogonal.T @ observed).numpy())
    counts = torch.from_numpy(solution)
    left = float((observed - orthogonal @ (triangle @ counts)).norm() / observed.norm().clamp_min(1e-300))
    if left > UNEXPLAINED:
        raise Inapplicable(f"no counts of the rows explain the gradient: {left:.0%} of it are left")
    counts = counts.view(len(rows), classes)
    known = observation.num_examples is not None and not gradient.altered.rescaled
    return counts * (observation.num_examples or 1) if known else counts / counts.max().clamp_min(1e-30)
