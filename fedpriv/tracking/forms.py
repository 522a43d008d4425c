"""The forms of a run folder's files, so that a folder from elsewhere is refused before anything is done with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedpriv.errors import UsageError
from fedpriv.files import Damaged


class _Form(BaseModel):
    """What is read of a file; whatever else it says is let be."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Tracking(_Form):
    name: str = "mlflow"
    uri: str | None
    experiment: str | None


class Facts(_Form):
    """``run.json``."""

    run_id: str
    method: str
    dataset: str
    seed: int
    created_ms: int
    status: Literal["running", "finished", "interrupted", "failed"]
    versions: dict[str, str] | None = None
    git_commit: str | None = None
    partition_hash: str
    data_hash: str = ""
    config_fingerprint: str = ""
    device: str | None = None
    processor: str | None = None
    plugins: dict[str, str] = {}
    changed_options: dict[str, Any] = {}
    continued: list[dict[str, Any]] = []
    diverged: dict[str, int] | None = None
    tracking: _Tracking


class _Tensor(_Form):
    shape: list[int]
    dtype: str


class _Model(_Form):
    part: Literal["classifier", "encoder"]
    inputs: dict[str, _Tensor]
    output: list[int]
    classes: list[str]


class Summary(_Form):
    """``summary.json``."""

    rounds: int
    accuracy: float | None
    accuracy_per_client: list[float | None]
    protocols: dict[str, Any]
    bytes_up: float
    bytes_down: float
    seconds: float
    probe: dict[str, float] = {}
    privacy: dict[str, Any] | None = None
    model: _Model | None = None


class Line(_Form):
    """A line of ``metrics.jsonl``."""

    round: int
    time_ms: float
    metrics: dict[str, float | None]
    per_client: dict[str, list[float | None]] | None = None
    payloads: str = ""


class Cursor(_Form):
    """``tracking.json``."""

    uri: str
    experiment: str


class Probe(_Form):
    """A file of ``probe/``."""

    run_id: str
    dataset: str
    fraction: float
    features: str
    accuracy: float
    accuracy_as_is: float | None
    accuracy_logistic: float | None


def check_form(form: type[_Form], values: Any, path: Path | str) -> None:
    """Check the values of a file.

    Raises:
        Damaged: they have another form; in one line.
    """
    try:
        TypeAdapter(form).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise Damaged(f"{path} is not what fedpriv writes: {where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def check_links(folder: Path) -> None:
    """Check that what is read and written in the folder lies in it.

    Raises:
        UsageError: a symbolic link in the folder leads out of it. What it leads to would be read, uploaded or overwritten.
    """
    root = folder.resolve()
    for path in _links(folder):
        if not path.resolve().is_relative_to(root):
            raise UsageError(f"{path} is a symbolic link out of the run folder, which is not followed; put a copy in its place")


def _links(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        yield from (path for name in (*folders, *files) if (path := Path(where) / name).is_symlink())
