"""Loads an exported model in MLflow, without the run or its config."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpriv.data.preprocessing.stored import FILE, MODEL, TOKENIZER, Preprocessing
from fedpriv.prediction.predictor import encode, predict
from fedpriv.samples import Inputs

if TYPE_CHECKING:
    import pandas as pd


class Served:
    """A model that takes raw samples.

    Args:
        folder: with the exported program, the preprocessing and, for texts, the tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        self._preprocessing = Preprocessing.load(folder / FILE)
        self._program = torch.export.load(folder / MODEL).module()
        self._tokenizer = None
        if (folder / TOKENIZER).is_dir():
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(folder / TOKENIZER)

    def predict(self, samples: Any, params: Any = None) -> pd.DataFrame:
        """As ``Run.predict``."""
        encoded = encode(samples, self._preprocessing, self._tokenizer, warnings.warn)
        return predict(self._logits, encoded, self._preprocessing)

    def _logits(self, inputs: Inputs) -> Tensor:
        logits: Tensor = self._program(inputs)
        return logits


def _load_pyfunc(path: str) -> Served:
    """MLflow calls this by its name."""
    return Served(Path(path))
