"""A run's final model as an MLflow model: raw samples -> predictions, with a signature and an example."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedpriv
from fedpriv.data.encoding import Column, NumberColumn
from fedpriv.data.preprocessing.stored import Preprocessing
from fedpriv.data.user_data.numbers import DATED
from fedpriv.tracking.store import quiet_mlflow

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

LOADER = "fedpriv.prediction.served"
"""The module that MLflow loads the model with. It comes with the model, as fedpriv is on no package index."""
TEXT = "text"
"""The column of a model's input that has texts."""
TAKEN = ("rows", "images", "texts")
"""The kinds of samples that MLflow's models take."""
_PACKAGES = ("mlflow", "torch", "numpy", "pandas", "pyarrow", "pydantic", "pyyaml")
_FOR_TEXTS = ("transformers", "tokenizers")
_FOR_IMAGES = ("pillow",)


def save_mlflow_model(
    path: Path, content: Path, preprocessing: Preprocessing, about: str, run_id: str | None = None, model_id: str | None = None
) -> None:
    """Write an MLflow model into a new folder.

    Its flavours are ``python_function``, from raw samples to predictions, and ``pytorch``, from the net's inputs to logits.

    Args:
        content: a folder with the exported program ``model.pt2``, the preprocessing and, for texts, the tokenizer.
        about: a line on what the model is.
        run_id, model_id: of a model that is logged.
    """
    quiet_mlflow()
    from mlflow import pyfunc
    from mlflow.models import Model

    more = {"texts": _FOR_TEXTS, "images": _FOR_IMAGES}.get(preprocessing.kind, ())
    requirements = [f"{package}=={version(package).partition('+')[0]}" for package in (*_PACKAGES, *more)]
    columns = {column.name: _about(column) for column in preprocessing.columns}
    predicted = {"classes": list(preprocessing.classes)}
    if preprocessing.target is not None:
        predicted = {"target": [preprocessing.target.name, _about(preprocessing.target)]}
    metadata = {"description": about, **predicted, **({"columns": columns} if columns else {})}
    model = Model(metadata=metadata, run_id=run_id, model_id=model_id)
    model.add_flavor("pytorch", model_data=f"data/{content.name}", pytorch_version=version("torch"), code=None)
    pyfunc.save_model(
        path,
        loader_module=LOADER,
        data_path=str(content),
        code_paths=[str(Path(fedpriv.__file__).parent)],
        mlflow_model=model,
        signature=_signature(preprocessing),
        input_example=_example(preprocessing),
        pip_requirements=requirements,
    )


def _signature(preprocessing: Preprocessing) -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    if preprocessing.image is not None:
        channels, height, width = preprocessing.image.shape
        shape = (-1, height, width) if channels == 1 else (-1, height, width, channels)
        inputs = Schema([TensorSpec(np.dtype(np.uint8), shape)])
    elif preprocessing.text is not None:
        inputs = Schema([ColSpec("string", TEXT)])
    else:
        # MLflow takes no column of whole numbers as doubles, and none with gaps as whole numbers; of a CSV file it has both.
        anything = AnyType()  # type: ignore[no-untyped-call]
        inputs = Schema([ColSpec(anything, column.name) for column in preprocessing.columns])
    first, *probabilities = preprocessing.output_columns
    kind = "string" if preprocessing.target is None else "double"
    return ModelSignature(inputs, Schema([ColSpec(kind, first), *(ColSpec("double", name) for name in probabilities)]))


def _about(column: Column) -> str:
    """What a column holds, which the signature does not say."""
    if isinstance(column, NumberColumn):
        return column.unit if column.unit in DATED else f"number, written with {column.unit}" if column.unit else "number"
    return f"one of {', '.join(map(repr, column.levels))}"


def _example(preprocessing: Preprocessing) -> Any:
    """A sample that is no client's: the means and the most frequent levels, a black image, or a word."""
    import pandas as pd

    if preprocessing.image is not None:
        channels, height, width = preprocessing.image.shape
        return np.zeros((1, height, width) if channels == 1 else (1, height, width, channels), np.uint8)
    if preprocessing.text is not None:
        return pd.DataFrame({TEXT: ["text"]})
    return pd.DataFrame({column.name: [_typical(column)] for column in preprocessing.columns})


def _typical(column: Column) -> object:
    import pandas as pd

    if not isinstance(column, NumberColumn):
        return column.levels[0]
    if column.unit in DATED:
        return pd.Timestamp(column.mean, unit="us") if column.unit == "date" else None
    return column.mean if column.unit is None else f"{column.mean:g}{column.unit}"
