"""Simulated messages: what the client would have sent for other samples, from the weights that it was sent."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedpriv.attacks.core.labels import targets as targets_of
from fedpriv.attacks.core.observation import Observation, Public, Schedule, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.batching import vmap_or_loop
from fedpriv.attacks.gradients.linear import normalise_images, training_net, weight_dtype
from fedpriv.attacks.gradients.local_update import simulate_local_update

MAX_BATCH, MAX_ENTRIES = 50, 2**22
"""Largest number of samples per batch, and of entries in their messages together."""


def check_simulation(observation: Observation) -> None:
    """Check that the attacker knows what a simulation of the client needs.

    Raises:
        Inapplicable: some weights of the net, or the schedule of a weight change, are not known.
    """
    if unknown := [name for name in state_names(observation.net) if name not in observation.weights]:
        raise Inapplicable(f"simulating the client needs all of its net, and these weights are not known: {', '.join(unknown)}")
    if observation.kind == "change" and observation.schedule is None:
        raise Inapplicable("simulating the client needs its schedule, which is not known")


def simulate_messages(observation: Observation, public: Public) -> Iterator[dict[str, Tensor]]:
    """Messages of clients that hold one public sample each, without any defence: batches of tensors by name ``(b, ...)``.

    Layers that are not shared keep their weights, as in :class:`fedpriv.attacks.image.direct.Unrolled`.

    Raises:
        Inapplicable: see :func:`check_simulation`.
    """
    check_simulation(observation)
    net, known = training_net(observation)
    device, dtype = weight_dtype(observation)
    schedule, sign = observation.schedule, 1.0
    if observation.kind == "gradient" or schedule is None:
        schedule, sign = Schedule(lr=1.0), -1.0  # one step at this rate changes the weights by the negative gradient
    trained = [name for name, _ in net.named_parameters() if name in observation.shared]

    def message(sample: Tensor, label: Tensor) -> dict[str, Tensor]:
        change = simulate_local_update(net, known, trained, sample[None], label[None], schedule)
        return {name: sign * change[name] for name in trained}

    inputs = normalise_images(observation, public.images.to(device, dtype))
    labels = targets_of(public.labels.to(device), observation.classes, dtype)
    entries = sum(tensor.numel() for tensor in observation.shared.values())
    size = max(1, min(MAX_BATCH, MAX_ENTRIES // entries))
    for batch, targets in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
        messages: dict[str, Tensor] = vmap_or_loop(message, batch, targets)
        yield {name: tensor.detach() for name, tensor in messages.items()}
