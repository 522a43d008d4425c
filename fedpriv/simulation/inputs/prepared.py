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
        config: with keys filled in that the data and the encoder determine.
        build: a factory of new nets, drawn from torch's global generator.
        encoder: of the texts, if there are any.
        said: what the user should know, a line each.
    """

    config: RunConfig
    train: Pool
    test: Pool
    build: Callable[[], Net]
    encoder: Encoder | None = None
    said: Sequence[str] = ()


def upper(model: ModelConfig) -> tuple[int | None, bool | int, Projector, HeadOn]:
    """Arguments of :func:`fedpriv.models.registry.assemble` on the layers above the encoder, in their order."""
    return model.projection, model.predictor or False, model.projector, model.head_on
