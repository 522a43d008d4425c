"""Unrolled local training (Geiping et al. 2020, section 6; Dimitrov et al. 2022, "Data leakage in federated averaging").

Gradient matching for several local steps: the attacker simulates the client's SGD on dummy images, and optimises them until the
simulated weight change agrees with the observed one. It knows the net, the client's schedule and number of samples. Which samples
share a batch is a guess (consecutive, the same in every epoch), exact if one batch holds all of them. Cost and memory grow with
the number of steps.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, require_labels
from fedpriv.attacks.gradients.distances import matching_loss, per_layer
from fedpriv.attacks.gradients.linear import denormalise_images, training_net, weight_dtype
from fedpriv.attacks.gradients.local_update import simulate_local_update
from fedpriv.attacks.gradients.matching import observed_gradient
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.optimise.lbfgs import SAFE_SCALE
from fedpriv.attacks.optimise.search import STALLED

HISTORY = 50
"""Of L-BFGS."""


@dataclass(frozen=True)
class UnrolledOptions:
    """
    Attributes:
        iterations: outer L-BFGS steps.
        restarts: largest number of further starts, while the smallest matching loss is above ``failed``.
        train_top: whether the client trained the hidden layers too (FedPer) or froze them (FedRep, MpFedcon).
        stop: matching loss at which a start ends.
        failed: matching loss above which a start has failed.
    """

    iterations: int = 100
    restarts: int = ranged(1)
    train_top: bool = False
    stop: float = 1e-12
    failed: float = 1e-3


@dataclass(frozen=True)
class Recovered:
    """
    Attributes:
        images: ``(n, C, H, W)`` in [0, 1].
        labels: ``(n, classes)`` label probabilities, known or optimised.
        loss: matching loss of the best start: mean over tensors of the unexplained share of the change's squared norm.
        losses: of every start.
        curve: the best start's loss after every outer step.
    """

    images: Tensor
    labels: Tensor
    loss: float
    losses: tuple[float, ...]
    curve: tuple[float, ...]


def unroll(observation: Observation, options: UnrolledOptions, seed: int = 0) -> Recovered:
    """Optimise dummy images until their simulated local update changes the shared weights as observed.

    The first start has the labels that the last layer's gradient shows. The others optimise the labels with the images, which
    ends in wrong minima for nets with convolutions. Unknown weights of hidden layers are optimised, too.

    Raises:
        Inapplicable: the schedule or the number of samples is not known, the message is a gradient, or the client's loss used no
            labels.
    """
    require_labels(observation)
    if observation.schedule is None or observation.num_examples is None:
        raise Inapplicable("the unrolled attack needs the client's schedule and its number of samples")
    if observation.kind == "gradient":
        raise Inapplicable("the unrolled attack needs a weight change; for a gradient there is gradient matching")
    first = observation
    if observation.labels is None:
        with suppress(Inapplicable):
            first = replace(observation, labels=batch_labels(observation))
    starts = [_one_start(first, options, seed)]
    while len(starts) <= options.restarts and not min(start[2] for start in starts) <= options.failed:
        starts.append(_one_start(observation, options, seed + len(starts)))
    images, labels, best, curve = min(starts, key=lambda start: start[2])
    return Recovered(images, labels, best, tuple(start[2] for start in starts), tuple(curve))


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    """Initial values of a hidden tensor: weights as torch draws them, biases 0."""
    if like.ndim <= 1:
        return torch.zeros(like.shape)
    bound = like[0].numel() ** -0.5
    weights: Tensor = (2 * torch.rand(like.shape, generator=generator) - 1) * bound
    return weights


def _one_start(observation: Observation, options: UnrolledOptions, seed: int) -> tuple[Tensor, Tensor, float, list[float]]:
    n, schedule = observation.num_examples, observation.schedule
    assert n is not None and schedule is not None
    device, dtype = weight_dtype(observation)
    generator = torch.Generator().manual_seed(seed)
    # A sigmoid keeps the images in [0, 1]; unbounded ones diverge, which would look like protection.
    raw = torch.randn(n, *observation.input_shape, generator=generator, dtype=dtype).to(device).requires_grad_()
    unknowns = [raw]
    if observation.labels is not None:
        known = F.one_hot(observation.labels.to(device), observation.classes).to(dtype)
    else:
        known = None
        label_logits = torch.randn(n, observation.classes, generator=generator, dtype=dtype).to(device).requires_grad_()
        unknowns.append(label_logits)
    net, start = training_net(observation)
    hidden = {name: _drawn(p, generator).to(device, dtype) for name, p in net.named_parameters() if name not in start}
    unknowns += [weight.requires_grad_() for weight in hidden.values()]
    start |= hidden
    if unknown := [name for name in state_names(net) if name not in start]:
        raise Inapplicable(f"this attack cannot optimise hidden layers with buffers ({unknown[0]})")
    sent = observation.shared
    observed = observed_gradient(observation, [name for name, _ in net.named_parameters() if name in sent])
    trained = [name for name, _ in net.named_parameters() if name in sent or options.train_top]
    mean, std = (
        denormalise_images(observation, torch.full((observation.input_shape[0], 1, 1), v, device=device, dtype=dtype))
        for v in (0, 1)
    )
    std = std - mean

    def labels() -> Tensor:
        return known if known is not None else label_logits.softmax(dim=1)

    def objective() -> Tensor:
        images = raw.sigmoid()
        simulated = simulate_local_update(net, start, trained, (images - mean) / std, labels(), schedule)
        return matching_loss(per_layer, simulated, images, observed)

    optimiser = torch.optim.LBFGS(unknowns, lr=1, history_size=HISTORY, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = SAFE_SCALE * objective()
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    curve, (steps, share) = list[float](), STALLED
    for _ in range(options.iterations):
        value = float(optimiser.step(closure)) / SAFE_SCALE  # type: ignore[no-untyped-call]
        curve.append(value)
        if not value > options.stop or (len(curve) > steps and value > (1 - share) * curve[-1 - steps]):
            break
    with torch.no_grad():
        final = float(objective())
        return raw.sigmoid(), labels(), final if final == final else float("inf"), curve
