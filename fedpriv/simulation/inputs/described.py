"""What a run's folder keeps of the preparation of its samples, and the text encoder that belongs to it."""

from __future__ import annotations

from dataclasses import replace

from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.preprocessing.stored import Preprocessing, TextForm
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import Encoder, find_encoder
from fedpriv.models.text.tiny import made_up_texts, tokenizer_of
from fedpriv.simulation.inputs.texts import longest_of


def preprocessing_of(config: RunConfig, dataset: Dataset, encoder: Encoder | None) -> Preprocessing:
    """How the samples of a data set become inputs of a run's nets.

    Args:
        encoder: of the texts, if there are any.
    """
    if encoder is None:
        return Preprocessing.of(dataset, None)
    # A vocabulary of the training texts is gone with them; others come with the encoder's name.
    own = encoder.tokenizer.backend_tokenizer.to_str() if encoder.name == "tiny" else None
    return Preprocessing.of(dataset, TextForm(longest_of(config, encoder), len(encoder.tokenizer), own))


def encoder_of(config: RunConfig, text: TextForm) -> Encoder:
    """The encoder of a run's texts, with the tokenizer that it had.

    Raises:
        UsageError: it is not available.
    """
    encoder = find_encoder(config.model.encoder, made_up_texts(text.words), config.model.pooling)
    if text.tokenizer is None and encoder.name == "tiny":
        raise UsageError("the words of the encoder tiny are those of the clients' texts, which are on their own machines")
    return encoder if text.tokenizer is None else replace(encoder, tokenizer=tokenizer_of(text.tokenizer))
