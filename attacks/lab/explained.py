"""Whether a client's steps, as attacks simulate them, explain its message: held against the true samples, which no attack sees.

Where they do not (a loss with further terms, a step that a plug-in changes), no attack that matches its simulation to the message
can succeed, and its failure says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, Schedule, in_clients_mode
from fedpriv.attacks.gradients.linear import normalise_images, weight_dtype
from fedpriv.attacks.gradients.local_update import simulate_local_update
from fedpriv.attacks.gradients.multistep import as_gradient, is_bias, penalties, response

LEAST, LEAST_EXACT = 0.9, 0.995
"""Cosine from which a message counts as explained: where batches may be in another order, or many steps are read as one, which
leave it above the first; and where the simulation is exact. There, DLG on its reference net recovers half of the images at 0.996,
and none at 0.985."""
MOST, MOST_EXACT = 1.25, 1.1
"""Factor up to which a tensor's length may differ from the simulated one's; attacks compare lengths, too."""
QUIET = 1e-3
"""Share of the message's squared norm up to which known noise leaves the agreement exact."""
TELLING = 0.05
"""Share of the squared norm from which a tensor's length is looked at."""
CLEAR = 0.1
"""Standard deviation of an entry's noise, as a share of a tensor's length, up to which this length is looked at."""
LOUD = 0.05
"""Standard deviation of an entry's noise, as a share of the message's norm, from which the cosine says little."""

UNKNOWN_RATE = 0.1
"""Learning rate of the simulated step where the schedule is not known. Not 1, at which a change has the length of its gradient:
then a control would also pass for attacks that take it for that."""

SIMULATED = "the steps that it simulates do not give the message"
ONE_STEP = "the single step as which it reads the message does not give it"


class Agreement(NamedTuple):
    """Of a message and that of a simulated client.

    Attributes:
        cosine: between the two, corrected for known noise.
        factor: by which the length of a tensor differs most, 1 or more. Of a clipped message, and where the schedule is not
            known, beside the factor by which all of it differs.
        exact: whether a client with that loss, and no other, gives just this message: in one step, or with one sample.
        error: of the cosine, two standard deviations: where any length counts and most is noise, the signal's is hardly known.
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
        """The same in other words."""
        least, most = (LEAST_EXACT, MOST_EXACT) if self.exact else (LEAST, MOST)
        alike = self.cosine + self.error >= least
        if alike and self.factor <= most:
            return None
        far = f"a tensor's length differs by a factor of {self.factor:.3g}, at most {most} is allowed"
        why = far if alike else f"cosine {self.cosine:.3f}, {least} needed"
        return f"even with the true images, {what} ({why})"


def as_one_step(observation: Observation) -> Observation | None:
    """A change as attacks see it that read it as the gradient of one step; ``None``: it is that, or was sent as a gradient."""
    if observation.kind == "gradient" or (observation.schedule is not None and observation.schedule.steps == 1):
        return None
    return replace(as_gradient(observation), schedule=None)


def explained(
    observation: Observation, weights: Mapping[str, Tensor], images: Tensor, labels: Tensor, one_step: bool = False
) -> Agreement | None:
    """How a message agrees with that of a simulated client with its samples.

    Where the schedule is not known, a change is taken as that of one step, as attacks take it.

    Args:
        weights: those that the client began with, by the net's names, hidden ones too.
        images, labels: the client's ``(n, C, H, W)`` in [0, 1] and ``(n,)``.
        one_step: the message is that of :func:`as_one_step`.

    Returns:
        ``None``: it cannot be told, as there is no change, or too much noise.
    """
    schedule = _schedule(observation, len(labels))
    names, device = list(observation.shared), weight_dtype(observation)[0]
    moved, added = simulated(observation, weights, images, labels), penalties(observation)
    seen, made, noise, squares = list[Tensor](), list[Tensor](), 0.0, 0.0
    for name in names:
        kept = observation.altered.kept.get(name, torch.ones_like(moved[name], dtype=torch.bool)).to(device)
        decayed = _decay(observation, schedule.of(name), weights[name])
        seen.append((observation.shared[name] - decayed - added.get(name, 0.0))[kept].double())
        made.append((moved[name].detach() - decayed)[kept].double())
        variance = observation.altered.variance.get(name, 0.0)
        noise += variance * int(kept.sum())
        squares += variance**2 * int(kept.sum())
    true, found = torch.cat(made), torch.cat(seen)
    # Clipping, or another learning rate, scales the message by a factor that is not known, and so its signal.
    any_length = observation.altered.rescaled or (observation.kind == "change" and observation.schedule is None)
    signal = math.sqrt(max(float(found.norm()) ** 2 - noise, 0.0)) if any_length else float(true.norm())
    loudest = math.sqrt(max(observation.altered.variance.values(), default=0.0))
    if float(true.norm()) > 0 and float(found.norm()) == 0 and not noise:  # the client took no step
        return Agreement(0.0, math.inf)
    if 0.0 in (signal, float(true.norm()), float(found.norm())) or loudest > LOUD * signal:
        return None
    cosine = math.sqrt(1 + noise / signal**2) * float(F.cosine_similarity(true, found, dim=0))
    # The signal's squared length is what is left without the noise's, which has this standard deviation.
    error = math.sqrt(2 * squares + (2 * signal * loudest) ** 2) / signal**2 if any_length else 0.0
    common = _length(found, true) if any_length else 1.0
    factors = [1.0]
    for name, *pair in zip(names, seen, made, strict=True):
        deviation, length = math.sqrt(observation.altered.variance.get(name, 0.0)), float(pair[1].norm())
        if length**2 >= TELLING * float(true.norm()) ** 2 and deviation <= CLEAR * common * length:
            one = _length(*pair) / common
            factors.append(max(one, 1 / one) if one > 0 else math.inf)
    steps = 1 if observation.kind == "gradient" else None if observation.schedule is None else observation.schedule.steps
    exact = steps is not None and not one_step and (steps == 1 or len(labels) == 1) and noise <= QUIET * signal**2
    return Agreement(cosine, max(factors), exact, error)


def simulated(
    observation: Observation,
    weights: Mapping[str, Tensor],
    samples: Tensor,
    labels: Tensor,
    shuffle: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """What a client with these samples would share, of the kind of the message and by its names, without a defence.

    Args:
        samples: images ``(n, C, H, W)`` in [0, 1], or token ids ``(n, L)`` of a net that reads text.
        shuffle: see :func:`fedpriv.attacks.gradients.local_update.simulate_local_update`; the others: see :func:`explained`.
    """
    schedule = _schedule(observation, len(labels))
    sign = -1.0 if observation.kind == "gradient" else 1.0
    device, dtype = weight_dtype(observation)
    is_text = observation.text is not None
    inputs = samples.to(device) if is_text else normalise_images(observation, samples.to(device, dtype))
    targets = F.one_hot(labels.to(device), observation.classes).to(dtype)
    steps = replace(schedule, batch_size=min(schedule.batch_size, len(labels)))
    net = in_clients_mode(observation.net)
    # A gradient does not have the rounding of weights, which would hide what small entries show.
    moved = simulate_local_update(
        net, weights, list(observation.shared), inputs, targets, steps, shuffle=shuffle, rounded=observation.kind == "change"
    )
    return {name: sign * change for name, change in moved.items()}


def _schedule(observation: Observation, samples: int) -> Schedule:
    """The client's or, where it is not known, one step on all samples; a gradient is a step of length 1."""
    lr = 1.0 if observation.kind == "gradient" else UNKNOWN_RATE
    return observation.schedule or Schedule(lr=lr, batch_size=samples)


def _length(found: Tensor, true: Tensor) -> float:
    """Of ``found`` along ``true``, over that of ``true``; noise moves it little."""
    return float(found @ true / (true @ true))


def _decay(observation: Observation, schedule: Schedule, weight: Tensor) -> Tensor | float:
    """What weight decay alone did to a tensor, which attacks subtract; left in where clipping rescaled it with the rest."""
    decay = schedule.weight_decay_bias if is_bias(weight) else schedule.weight_decay
    if observation.kind == "gradient" or observation.altered.rescaled:
        return 0.0
    return response(schedule, decay).shrink * weight
