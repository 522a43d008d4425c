"""The inputs of a run's nets, and how its nets are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpriv.config import ModelConfig, RunConfig
from fedpriv.data.pools import Pool
from fedpriv.models.encoders import Encoder
from fedpriv.models.net import Net
from fedpriv.models.registry import Projector


@dataclass(frozen=True)
class Prepared:
    """The samples of a run as its nets get them.

    Attributes:
        config: with what the data and the encoder leave no choice in filled in.
        build: a new net, drawn from torch's global generator.
        encoder: of the texts, where there are any.
        said: what the user should know, a line each.
    """

    config: RunConfig
    train: Pool
    test: Pool
    build: Callable[[], Net]
    encoder: Encoder | None = None
    said: Sequence[str] = ()


def upper(model: ModelConfig) -> tuple[int | None, bool | int, Projector]:
    """The layers above the encoder, as :func:`fedpriv.models.registry.assemble` takes it: projection, predictor and projector."""
    return model.projection, model.predictor or False, model.projector
