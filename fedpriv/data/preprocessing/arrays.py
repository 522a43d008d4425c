"""New arrays, such as time series, as a run's inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.data.preprocessing.stored import ScaledForm
from fedpriv.errors import UsageError


def read_arrays(data: Any, form: ScaledForm) -> Tensor:
    """Inputs ``(N, C, ...)`` float32 of arrays that are given as an array, a tensor or a list, or as a parquet file with a column
    of them.

    Raises:
        UsageError: they are none of these, of another shape than in training, or hold a NaN or an infinity.
    """
    if isinstance(data, str | Path):
        values = _of_file(Path(data).expanduser())
    else:
        try:
            values = np.asarray(data.detach().cpu() if isinstance(data, Tensor) else data)
        except ValueError:
            raise UsageError("arrays of several shapes; bring them to one shape first") from None
    if values.dtype.kind not in "fiu" or values.shape[1:] != form.shape or not len(values):
        shape = ", ".join(map(str, form.shape))
        raise UsageError(f"arrays of shape {values.shape} and type {values.dtype}; expected numbers of shape (N, {shape})")
    if (odd := np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(1))).size:
        raise UsageError(f"sample {odd[0]} (from 0) holds a NaN or an infinity; mend it, or leave it out")
    mean, std = (np.array(numbers).reshape(1, -1, *[1] * (values.ndim - 2)) for numbers in (form.mean, form.std))
    return torch.from_numpy(((values - mean) / std).astype(np.float32))


def _of_file(path: Path) -> Any:
    from fedpriv.data.tables.files import open_file
    from fedpriv.data.user_data.vectors import array_shape, arrays_of

    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    table = open_file(path)
    columns = [name for name in table.features if array_shape(table, name)]
    if not columns:
        raise UsageError(f"{path} has no column of arrays; its columns are: {', '.join(table.features)}")
    return arrays_of((table, np.arange(len(table.column(columns[0])))), columns[0])
