"""The preprocessing of a run: all that is needed of the training data to encode new samples and to name what is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from fedpriv.data.encoding import Column, NumberColumn
from fedpriv.files import Damaged, load_json, save_json

if TYPE_CHECKING:
    from fedpriv.data.dataset import Dataset

FILE = "preprocessing.json"
"""Its file in a run's folder, and beside an exported model."""
MODEL, TOKENIZER = "model.pt2", "tokenizer"
"""Beside it: the exported program, and the folder of the tokenizer of texts."""
PREDICTION = "prediction"
"""The column of the predicted class, or number."""
Kind = Literal["rows", "images", "texts", "pairs", "arrays"]


@dataclass(frozen=True)
class ScaledForm:
    """How images, or arrays such as time series, become inputs.

    Attributes:
        shape: of a sample: ``(C, H, W)`` of images, ``(C, ...)`` of arrays.
        mean, std: of each channel; of images on the [0, 1] scale.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class TextForm:
    """How texts become inputs.

    Attributes:
        max_tokens: number of tokens to which a text is cut.
        words: size of the vocabulary.
        tokenizer: the tokenizer of an encoder whose vocabulary is that of the training texts, as the `tokenizers` library writes
            it; ``None``: the tokenizer of the encoder that the config names.
    """

    max_tokens: int
    words: int
    tokenizer: str | None = None


@dataclass(frozen=True)
class Preprocessing:
    """How the samples of a run become inputs of its net, and what its outputs are.

    Attributes:
        classes: the names of the classes, in the order of the logits.
        columns: of the rows of a table, in their order.
        image: of images and of pairs.
        text: of texts and of pairs.
        array: of arrays.
        target: of a regression, the column of the labels, in whose unit a model's output is; there are then no classes.
    """

    classes: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    image: ScaledForm | None = None
    text: TextForm | None = None
    array: ScaledForm | None = None
    target: NumberColumn | None = None

    @classmethod
    def of(cls, dataset: Dataset, text: TextForm | None) -> Preprocessing:
        """The preprocessing of a run on a data set.

        Args:
            text: of its texts, if there are any.
        """
        image = array = None
        if dataset.images is not None:
            image = ScaledForm(dataset.input_shape, dataset.mean, dataset.std)
        elif text is None and not dataset.columns:
            array = ScaledForm(dataset.input_shape, dataset.mean, dataset.std)
        return cls(dataset.classes, dataset.columns, image, text, array, dataset.target)

    @property
    def kind(self) -> Kind:
        """What the samples are."""
        if self.image is not None:
            return "images" if self.text is None else "pairs"
        return "texts" if self.text is not None else "rows" if self.array is None else "arrays"

    @property
    def output_columns(self) -> tuple[str, ...]:
        """The columns of predictions: the predicted class, and the probability of each class; or the predicted number."""
        return PREDICTION, *(f"probability_{name}" for name in self.classes)

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """``(C, H, W)`` of images, ``(F,)`` of rows, the shape of arrays; ``None``: the samples are texts."""
        if (form := self.image or self.array) is not None:
            return form.shape
        return (sum(column.width for column in self.columns),) if self.columns else None

    def to_json(self) -> dict[str, Any]:
        """The preprocessing as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: Path | str) -> Preprocessing:
        """The inverse of :meth:`to_json`; raises :class:`Damaged` where the values are no preprocessing."""
        try:
            return TypeAdapter(cls).validate_python(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            raise Damaged(f"{where} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def save(self, path: Path) -> None:
        """Write it as a JSON file."""
        save_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Preprocessing:
        """Read a file of :meth:`save`; raises :class:`Damaged` where it is missing or something else."""
        return cls.from_json(load_json(path), path)
