"""Predictions for new samples: read, prepared as in training, and classified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpriv.data.preprocessing.arrays import read_arrays
from fedpriv.data.preprocessing.images import read_images, scaled
from fedpriv.data.preprocessing.rows import Frame, encode_rows, open_rows
from fedpriv.data.preprocessing.stored import PREDICTION, Preprocessing
from fedpriv.data.preprocessing.texts import read_texts
from fedpriv.data.tokens import tokenise
from fedpriv.errors import FedprivError, UsageError
from fedpriv.samples import Inputs, Pairs, in_chunks, size

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

CHUNK = 128
"""Samples per pass."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Samples as inputs of a net.

    Attributes:
        inputs: images ``(N, C, H, W)``, rows ``(N, F)``, token ids ``(N, L)``, or images and token ids.
        index: of the DataFrame or Series that they were given as, or the names of images' files; ``None``: they have none.
        lengths: ``(N,)`` of texts.
    """

    inputs: Inputs
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
    images, texts = _of_pairs(samples)
    pictures = encode(images, replace(preprocessing, text=None), None, warn)
    written = encode(texts, replace(preprocessing, image=None), tokenizer, warn)
    if (images_given := size(pictures.inputs)) != (texts_given := size(written.inputs)):
        raise UsageError(f"{images_given:,} images and {texts_given:,} texts; a pair is one of each")
    assert isinstance(pictures.inputs, Tensor) and isinstance(written.inputs, Tensor)
    return Encoded(Pairs(pictures.inputs, written.inputs), pictures.index, written.lengths)


def _of_pairs(samples: Any) -> tuple[Any, Any]:
    """The images and the texts of image-text pairs."""
    if isinstance(samples, Mapping) and {"image", "text"} <= set(samples):
        return samples["image"], samples["text"]
    if isinstance(samples, tuple) and len(samples) == 2:
        return samples
    if isinstance(samples, str | Path):  # of a table, which has both
        return samples, samples
    raise UsageError(
        f"pairs of type {type(samples).__name__}; expected (images, texts), a mapping of image and text, or the path of a table "
        "with texts and names of images"
    )


def predict(logits: Callable[[Inputs], Tensor], encoded: Encoded, preprocessing: Preprocessing) -> pd.DataFrame:
    """The predicted class of each sample, and the probability of each class; of a regression the predicted number.

    Args:
        logits: inputs -> ``(B, C)``; of a regression ``(B, 1)``, in the label's unit.

    Raises:
        FedprivError: the model's outputs are not finite.
    """
    import pandas as pd

    with torch.no_grad():
        outputs = in_chunks(encoded.inputs, CHUNK, logits, encoded.lengths)
    if not bool(outputs.isfinite().all()):
        raise FedprivError("the model's outputs are not finite")
    if preprocessing.target is not None:
        return pd.DataFrame({PREDICTION: outputs[:, 0].double().numpy()}, index=encoded.index)
    probabilities = outputs.double().softmax(1).numpy()
    columns = [[preprocessing.classes[number] for number in outputs.argmax(1).tolist()], *probabilities.T]
    return pd.DataFrame(dict(zip(preprocessing.output_columns, columns, strict=True)), index=encoded.index)
