"""The final model of a run as files that other programs take: a PyTorch program, or a model of MLflow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import Tensor

from fedpriv.data.preprocessing.stored import FILE, MODEL, TOKENIZER
from fedpriv.errors import FedprivError, UsageError, in_a_line
from fedpriv.files import write_atomically
from fedpriv.prediction.restored import FinalModel
from fedpriv.simulation.finished.final_model import exported
from fedpriv.tracking.packaged import TAKEN, save_mlflow_model

Format = Literal["pt2", "mlflow"]


def export_model(final: FinalModel, path: Path, format: Format = "pt2") -> Path:
    """Write a model, and return where.

    Args:
        path: a new file; for MLflow, a new folder.
        format: ``pt2``: inputs -> logits, by ``torch.export``, with the preprocessing as the extra file ``preprocessing.json``;
            ``mlflow``: raw samples -> predictions.

    Raises:
        UsageError: the path is taken, or has no folder that can be written; or the samples are pairs, and MLflow takes none.
        FedprivError: the net cannot be exported.
    """
    check_path(path, format)
    if format == "pt2":
        _write(path, _program(final))
        return path
    preprocessing = final.preprocessing
    if preprocessing.kind not in TAKEN:
        raise UsageError(
            f"--format mlflow is for rows of a table, images and texts, and this run's samples are {preprocessing.kind}"
        )
    with TemporaryDirectory() as folder:
        content = Path(folder) / "model"
        content.mkdir()
        (content / MODEL).write_bytes(_program(final))
        preprocessing.save(content / FILE)
        if final.tokenizer is not None:
            final.tokenizer.save_pretrained(content / TOKENIZER)
        part = path.with_name(path.name + ".part")
        try:
            save_mlflow_model(part, content, preprocessing, final.about)
            part.replace(path)
        except OSError as error:
            raise FedprivError(f"cannot write {path}: {error.strerror}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return path


def check_path(path: Path, format: Format) -> None:
    """Check that a model can be written to a path, before it is made; raises :class:`UsageError`."""
    if format == "pt2" and path.suffix != ".pt2":
        raise UsageError(f"{path}: the name of a PyTorch program ends in .pt2, such as {path.with_suffix('.pt2').name}")
    if path.exists() and (format == "mlflow" or path.is_dir()):
        raise UsageError(f"{path} is there already")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.absolute().parent}")


def _program(final: FinalModel) -> bytes:
    files = {FILE: json.dumps(final.preprocessing.to_json())}
    try:
        return exported(final.net, _example(final), files)
    except Exception as error:  # of any kind, depending on the layers
        raise FedprivError(f"the net cannot be exported: {in_a_line(error)[:200]}") from None


def _example(final: FinalModel) -> tuple[Tensor, ...]:
    """Inputs of two samples, which are no client's."""
    preprocessing, shape = final.preprocessing, final.preprocessing.input_shape
    parts = [] if shape is None else [torch.zeros(2, *shape)]
    if preprocessing.text is not None:
        assert final.tokenizer is not None
        ids = torch.tensor(final.tokenizer("text")["input_ids"])
        parts.append(ids.repeat(2, 8)[:, : min(8, preprocessing.text.max_tokens)].clone())  # of a view, views would be required
    return tuple(parts)


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise FedprivError(f"cannot write {path}: {error.strerror}") from None
