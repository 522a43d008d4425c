"""The inputs of a run's nets, and how its nets are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpriv.config import ModelConfig, RunConfig
from fedpriv.data.pools import Pool
from fedpriv.models.net import HeadOn, Net
from fedpriv.models.registry import Projector
from fedpriv.models.text.pretrained import Encoder


@dataclass(frozen=True)
class Prepared:
    """The inputs of a run's nets.

    Attributes:
        config: with the keys that the data and the encoder determine.
        build: builds a new net with weights drawn from torch's global generator.
        encoder: of the texts, if there are any.
        notes: for the user, a line each.
    """

    config: RunConfig
    train: Pool
    test: Pool
    build: Callable[[], Net]
    encoder: Encoder | None = None
    notes: Sequence[str] = ()


def upper(model: ModelConfig) -> tuple[int | None, bool | int, Projector, HeadOn]:
    """The arguments of :func:`fedpriv.models.registry.assemble` for the layers above the encoder, in order."""
    return model.projection, model.predictor or False, model.projector, model.head_on
