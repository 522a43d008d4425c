"""Cells that never were attacked, with numbers that can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedpriv.experiments.leakage import CellResult, read_leakage

FOUR = {"images": {"dataset": "digits", "n": 4}, "victim": {"layers": 1, "masked": 1}}


def write_cells(folder: Path, name: str = "leak", **values: Any) -> Path:
    """A leakage experiment's YAML in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"title": "Leaks", "base": FOUR, **values}, sort_keys=False))
    return path


def write_cell(
    yaml_file: Path,
    label: str,
    mse: Sequence[float],
    *,
    grey: Sequence[float] | None = None,
    labels_right: int | None = None,
    inapplicable: str | None = None,
) -> Path:
    """The result of a cell whose images have these errors."""
    experiment = read_leakage(yaml_file)
    n = len(mse) or experiment.cells[label].images.n
    result = CellResult(
        label=label,
        cell=experiment.cells[label].model_dump(mode="json"),
        inapplicable=inapplicable,
        mse=list(mse),
        psnr=[20.0] * len(mse),
        ssim=[0.5] * len(mse),
        grey=list(grey or [0.05] * n),
        labels_right=labels_right,
        loss=[0.1] * len(mse),
        steps=[7] * len(mse),
        curve={"step": [1, 7], "low": [0.5, 0.05], "median": [1.0, 0.1], "high": [2.0, 0.2]},
        reported={"snr_db/body.0": 12.4},
        cpu_seconds=6.0,
        versions={"fedpriv": "0"},
        git_commit=None,
    )
    path = experiment.result_file(label)
    result.write(path)
    return path
