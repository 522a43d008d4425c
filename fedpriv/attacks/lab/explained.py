"""Whether a client's steps, as attacks simulate them, reproduce its message when they are taken on the true samples.

If the steps do not (because of a loss with further terms, or a step that a plug-in changes), no attack that matches its
simulation to the message can succeed, and its failure is no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.core.labels import targets
from fedpriv.attacks.core.observation import Observation, Schedule, in_clients_mode
from fedpriv.attacks.gradients.linear import normalise_images, weight_dtype
from fedpriv.attacks.gradients.local_update import simulate_local_update
from fedpriv.attacks.gradients.multistep import as_gradient, is_bias, penalties, response

LEAST, LEAST_EXACT = 0.9, 0.995
"""Smallest cosine of an explained message. ``LEAST``: if batch order is unknown or steps are merged. ``LEAST_EXACT``: if the
simulation is exact, where DLG on its reference net recovers half of the images at a cosine of 0.996, and none at 0.985."""
MOST, MOST_EXACT = 1.25, 1.1
"""Largest factor by which a tensor's length may differ from the simulated one's; attacks compare lengths, too."""
MAX_EXACT_NOISE = 1e-3
"""Share of known noise in the message's squared norm; above it, the simulation is not required to match exactly."""
MIN_SHARE = 0.05
"""Smallest share of the squared norm at which a tensor's length is compared."""
MAX_LENGTH_NOISE = 0.1
"""Largest standard deviation of an entry's noise, as a share of a tensor's length, at which the length is compared."""
MAX_NOISE = 0.05
"""Largest standard deviation of an entry's noise, as a share of the message's norm, at which the cosine is meaningful."""

UNKNOWN_RATE = 0.1
"""Learning rate of the simulated step where the schedule is not known. At 1 the change has the gradient's length, so attacks that
confuse the two would pass the control."""

SIMULATED = "the steps that the attack simulates do not reproduce the message"
ONE_STEP = "one step, which the attack assumes, does not reproduce the message"


class Agreement(NamedTuple):
    """How a message agrees with that of a simulated client.

    Attributes:
        cosine: between the two, corrected for known noise.
        factor: the worst length mismatch of a tensor with the simulated one, as a factor of at least 1. For a clipped message
            or an unknown schedule, after dividing by the mismatch of the whole message.
        exact: whether the simulation must give just this message, as the client took one step or has one sample.
        error: two standard deviations of the cosine, where the message's scale is not known; else 0.
    """

    cosine: float
    factor: float
    exact: bool = False
    error: float = 0.0

    @property
    def doubt(self) -> str | None:
        """Why an attack that matches its simulation to the message could not succeed; ``None``: it could."""
        return self.doubt_of(SIMULATED)

    def doubt_of(self, what: str) -> str | None:
        """As :attr:`doubt`.

        Args:
            what: the clause to use in the reason: which steps do not reproduce the message.
        """
        least, most = (LEAST_EXACT, MOST_EXACT) if self.exact else (LEAST, MOST)
        alike = self.cosine + self.error >= least
        if alike and self.factor <= most:
            return None
        far = f"a tensor's length differs by a factor of {self.factor:.3g}, at most {most} is allowed"
        why = far if alike else f"cosine {self.cosine:.3f}, {least} needed"
        return f"even with the true samples, {what} ({why})"


def as_one_step(observation: Observation) -> Observation | None:
    """A change of several steps, read as the gradient of one; ``None``: it was one step, or was sent as a gradient."""
    if observation.kind == "gradient" or (observation.schedule is not None and observation.schedule.steps == 1):
        return None
    return replace(as_gradient(observation), schedule=None)


def explained(
    observation: Observation, weights: Mapping[str, Tensor], images: Tensor, labels: Tensor, one_step: bool = False
) -> Agreement | None:
    """Compare a message with that of a simulated client with the true samples.

    Where the schedule is not known, a change is read as that of one step, as attacks read it.

    Args:
        weights: the weights that the client began with, by the net's names, hidden ones too.
        images, labels: the client's ``(n, C, H, W)`` in [0, 1] and ``(n,)``.
        one_step: whether the message comes from :func:`as_one_step`.

    Returns:
        ``None`` if there is no change to compare, or too much noise.
    """
    schedule = _schedule(observation, len(labels))
    names, device = list(observation.shared), weight_dtype(observation)[0]
    moved, added = simulated(observation, weights, images, labels), penalties(observation)
    seen, moved_kept, noise, squares = list[Tensor](), list[Tensor](), 0.0, 0.0
    for name in names:
        kept = observation.altered.kept.get(name, torch.ones_like(moved[name], dtype=torch.bool)).to(device)
        decayed = _decay(observation, schedule.of(name), weights[name])
        seen.append((observation.shared[name] - decayed - added.get(name, 0.0))[kept].double())
        moved_kept.append((moved[name].detach() - decayed)[kept].double())
        variance = observation.altered.variance.get(name, 0.0)
        noise += variance * int(kept.sum())
        squares += variance**2 * int(kept.sum())
    true, received = torch.cat(moved_kept), torch.cat(seen)
    # Clipping, or an unknown learning rate, scales the message and so its signal by an unknown factor.
    any_length = observation.altered.rescaled or (observation.kind == "change" and observation.schedule is None)
    signal = math.sqrt(max(float(received.norm()) ** 2 - noise, 0.0)) if any_length else float(true.norm())
    loudest = math.sqrt(max(observation.altered.variance.values(), default=0.0))
    if float(true.norm()) > 0 and float(received.norm()) == 0 and not noise:  # the client took no step
        return Agreement(0.0, math.inf)
    if 0.0 in (signal, float(true.norm()), float(received.norm())) or loudest > MAX_NOISE * signal:
        return None
    cosine = math.sqrt(1 + noise / signal**2) * float(F.cosine_similarity(true, received, dim=0))
    # Standard deviation of the message's squared length due to noise, relative to the signal's squared length.
    error = math.sqrt(2 * squares + (2 * signal * loudest) ** 2) / signal**2 if any_length else 0.0
    common = _length(received, true) if any_length else 1.0
    factors = [1.0]
    for name, *pair in zip(names, seen, moved_kept, strict=True):
        deviation, length = math.sqrt(observation.altered.variance.get(name, 0.0)), float(pair[1].norm())
        if length**2 >= MIN_SHARE * float(true.norm()) ** 2 and deviation <= MAX_LENGTH_NOISE * common * length:
            ratio = _length(*pair) / common
            factors.append(max(ratio, 1 / ratio) if ratio > 0 else math.inf)
    steps = 1 if observation.kind == "gradient" else None if observation.schedule is None else observation.schedule.steps
    exact = steps is not None and not one_step and (steps == 1 or len(labels) == 1) and noise <= MAX_EXACT_NOISE * signal**2
    return Agreement(cosine, max(factors), exact, error)


def simulated(
    observation: Observation,
    weights: Mapping[str, Tensor],
    samples: Tensor,
    labels: Tensor,
    shuffle: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """Simulate what a client with these samples would share without a defence, by the names and of the kind of the message.

    Args:
        samples: images ``(n, C, H, W)`` in [0, 1], or token ids ``(n, L)`` of a net that reads text.
        shuffle: see :func:`fedpriv.attacks.gradients.local_update.simulate_local_update`; the others: see :func:`explained`.
    """
    schedule = _schedule(observation, len(labels))
    sign = -1.0 if observation.kind == "gradient" else 1.0
    device, dtype = weight_dtype(observation)
    is_text = observation.text is not None
    inputs = samples.to(device) if is_text else normalise_images(observation, samples.to(device, dtype))
    of_labels = targets(labels.to(device), observation.classes, dtype)
    steps = replace(schedule, batch_size=min(schedule.batch_size, len(labels)))
    net = in_clients_mode(observation.net)
    # A gradient does not have the rounding of weights, which would hide what small entries show.
    moved = simulate_local_update(
        net, weights, list(observation.shared), inputs, of_labels, steps, shuffle=shuffle, rounded=observation.kind == "change"
    )
    return {name: sign * change for name, change in moved.items()}


def _schedule(observation: Observation, samples: int) -> Schedule:
    """The client's schedule or, where it is not known, one step on all samples; a gradient is a step of length 1."""
    lr = 1.0 if observation.kind == "gradient" else UNKNOWN_RATE
    return observation.schedule or Schedule(lr=lr, batch_size=samples)


def _length(observed: Tensor, true: Tensor) -> float:
    """The length of ``observed`` along ``true`` over that of ``true``, which noise changes little."""
    return float(observed @ true / (true @ true))


def _decay(observation: Observation, schedule: Schedule, weight: Tensor) -> Tensor | float:
    """What weight decay alone did to a tensor, which attacks subtract; 0 where clipping rescaled it with the rest."""
    decay = schedule.weight_decay_bias if is_bias(weight) else schedule.weight_decay
    if observation.kind == "gradient" or observation.altered.rescaled:
        return 0.0
    return response(schedule, decay).shrink * weight
