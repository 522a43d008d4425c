"""Predictions for new samples: read, prepared as in training, and classified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpriv.data.preprocessing.arrays import read_arrays
from fedpriv.data.preprocessing.images import read_images, scaled
from fedpriv.data.preprocessing.rows import Frame, encode_rows, open_rows
from fedpriv.data.preprocessing.stored import Preprocessing
from fedpriv.data.preprocessing.texts import read_texts
from fedpriv.data.tokens import tokenise
from fedpriv.errors import FedprivError, UsageError
from fedpriv.samples import Inputs, in_chunks

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

CHUNK = 128
"""Samples per pass."""
PREDICTION, PROBABILITY = "prediction", "probability_"
"""The column of the predicted class, and what the names of the columns of probabilities begin with."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Samples as inputs of a net.

    Attributes:
        inputs: images ``(N, C, H, W)``, rows ``(N, F)`` or token ids ``(N, L)``.
        index: of the DataFrame or Series that they were given as, or the names of images' files; ``None``: they have none.
        lengths: ``(N,)`` of texts.
    """

    inputs: Tensor
    index: pd.Index | None = None
    lengths: Tensor | None = None


def encode(
    samples: Any,
    preprocessing: Preprocessing,
    tokenizer: PreTrainedTokenizerBase | None,
    warn: Callable[[str], None],
) -> Encoded:
    """Samples as a run's inputs; :mod:`fedpriv.data.preprocessing` says in which forms they may be given.

    Args:
        tokenizer: of texts.
        warn: called with lines on how they were read.

    Raises:
        UsageError: they are not as the run's samples were.
        FedprivError: a file cannot be read.
    """
    import pandas as pd

    kind = preprocessing.kind
    if kind == "rows":
        rows = open_rows(samples)
        inputs, notes = encode_rows(rows, preprocessing.columns)
        for note in notes:
            warn(note)
        return Encoded(inputs, rows.frame.index if isinstance(rows, Frame) else None)
    if kind == "images":
        assert preprocessing.image is not None
        images = read_images(samples, preprocessing.image)
        if images.resized:
            _, height, width = preprocessing.image.shape
            warn(f"{images.resized:,} of {len(images.pixels):,} images had another size, and are resized to {width} x {height}")
        names = None if images.names is None else pd.Index(images.names, name="image")
        return Encoded(scaled(images.pixels, preprocessing.image), names)
    if kind == "texts":
        assert preprocessing.text is not None and tokenizer is not None
        texts, index = read_texts(samples)
        ids, cut = tokenise(texts, tokenizer, preprocessing.text.max_tokens)
        if cut:
            warn(f"{cut:,} of {len(texts):,} texts were cut to {preprocessing.text.max_tokens} tokens")
        return Encoded(ids.long(), index, ids.ne(int(tokenizer.pad_token_id)).sum(1))
    if kind == "arrays":
        assert preprocessing.array is not None
        return Encoded(read_arrays(samples, preprocessing.array))
    raise UsageError("predictions are for rows of a table, images, texts and arrays, and this run's samples are image-text pairs")


def predict(logits: Callable[[Inputs], Tensor], encoded: Encoded, classes: tuple[str, ...]) -> pd.DataFrame:
    """The predicted class of each sample, and the probability of each class.

    Args:
        logits: inputs -> ``(B, C)``.

    Raises:
        FedprivError: the model's outputs are not finite.
    """
    import pandas as pd

    with torch.no_grad():
        outputs = in_chunks(encoded.inputs, CHUNK, logits, encoded.lengths)
    if not bool(outputs.isfinite().all()):
        raise FedprivError("the model's outputs are not finite")
    probabilities = outputs.double().softmax(1).numpy()
    columns: dict[str, Any] = {PREDICTION: [classes[number] for number in outputs.argmax(1).tolist()]}
    columns |= {f"{PROBABILITY}{name}": probabilities[:, number] for number, name in enumerate(classes)}
    return pd.DataFrame(columns, index=encoded.index)
