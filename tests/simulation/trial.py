"""What tests of clients that train together need: nets of their own, and federations in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedpriv.client.resident import Resident
from fedpriv.models import registry
from fedpriv.simulation.setup import Federation


@contextmanager
def own_nets() -> Iterator[None]:
    """What is registered within is forgotten after it."""
    registry.list_models()  # or the built-in ones would be loaded on top
    known = dict(registry.REGISTRY._known)
    yield
    registry.REGISTRY._known.clear()
    registry.REGISTRY._known.update(known)


def in_float64(federation: Federation) -> None:
    """Its net and its initial model; the samples are the caller's to convert."""
    federation.resident = Resident(federation.resident.net.double(), federation.resident.space, torch.device("cpu"))
    federation.agreement.initial = federation.resident.row.clone()
