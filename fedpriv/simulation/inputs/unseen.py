"""The net of a run whose samples are on other machines: it depends only on the form of the samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.statistics.cells import ArrayCells
from fedpriv.models.net import Net
from fedpriv.models.text.pretrained import Encoder, find_encoder
from fedpriv.models.text.tiny import made_up_texts
from fedpriv.simulation.inputs.from_dataset import image_net
from fedpriv.simulation.inputs.pairs import pair_net
from fedpriv.simulation.inputs.texts import Tokens, longest_of, text_net


@dataclass(frozen=True)
class SampleForm:
    """The form of a data set's samples.

    Attributes:
        shape: ``(C, H, W)`` of the images, ``(F,)`` of rows of a table; ``None``: the samples are texts, or rows that are not
            encoded yet.
        words: size of the text encoder's vocabulary; ``None``: the samples have no texts.
        tokenizer: SHA-256 (hex) of the vocabulary.
    """

    shape: tuple[int, ...] | None
    words: int | None = None
    tokenizer: str | None = None

    @classmethod
    def of(cls, dataset: Dataset, encoder: Encoder | None) -> SampleForm:
        """The form of a data set's samples.

        Args:
            encoder: of the texts, if there are any.
        """
        arrays = bool(dataset.cells) and isinstance(dataset.cells[0], ArrayCells)
        shape = dataset.input_shape if dataset.images is not None or dataset.vectors is not None or arrays else None
        if encoder is None:
            return cls(shape)
        vocabulary = json.dumps(encoder.tokenizer.get_vocab(), sort_keys=True).encode()
        return cls(shape, len(encoder.tokenizer), hashlib.sha256(vocabulary).hexdigest())

    def net(self, config: RunConfig, classes: int) -> tuple[RunConfig, Callable[[], Net]]:
        """The config with keys that the encoders determine, and a factory of the run's nets.

        Raises:
            UsageError: the options do not fit such samples, or an encoder is not available.
        """
        if self.words is None:
            assert self.shape is not None, "samples are images, texts or both, or encoded rows"
            return config, image_net(config, self.shape, classes)
        encoder = find_encoder(config.model.encoder, made_up_texts(self.words), config.model.pooling)
        empty = torch.empty(0, 0, dtype=torch.int32)
        tokens = Tokens(encoder, empty, empty, longest_of(config, encoder), ())
        if self.shape is None:
            return text_net(config, tokens, classes)
        return pair_net(config, tokens, self.shape, classes)[:2]
