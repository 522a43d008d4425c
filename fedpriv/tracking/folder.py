"""Reading a run folder, also while the run is still writing it."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged, load_json, without_checksum
from fedpriv.storage.records import Record, Records, lines_of, parsed
from fedpriv.storage.run_folder import RunFolder

SWEEPS = "sweeps"
"""The folder of a runs folder that holds the sweeps, each with its runs in ``runs``."""


class _Form(BaseModel):
    """The keys of a file that are read; others are ignored."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Tracking(_Form):
    name: str
    uri: str | None
    experiment: str | None


class _Facts(_Form):
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


class _Score(_Form):
    mean: float | None
    weighted: float | None
    worst_tenth: float | None
    best: float | None
    std: float | None
    pooled: float | None
    on_server: float | None
    per_client: list[float | None]


class _Summary(_Form):
    """``summary.json``."""

    rounds: int
    accuracy: float | None
    accuracy_per_client: list[float | None]
    protocols: dict[str, Any]
    scores: dict[str, _Score] = {}
    bytes_up: float
    bytes_down: float
    seconds: float
    probe: dict[str, float] = {}
    privacy: dict[str, Any] | None = None
    model: _Model | None = None


class _Line(_Form):
    """A line of ``metrics.jsonl``."""

    round: int
    time_ms: float
    metrics: dict[str, float | None]
    per_client: dict[str, list[float | None]] | None = None
    payloads: str = ""


class _Cursor(_Form):
    """``tracking.json``."""

    uri: str
    experiment: str


class _Probe(_Form):
    """A file of ``probe/``."""

    run_id: str
    dataset: str
    fraction: float
    features: str
    accuracy: float
    accuracy_as_is: float | None
    accuracy_logistic: float | None


def read_run(run_dir: Path) -> dict[str, Any]:
    """The facts of a run (``run.json``).

    Raises:
        UsageError: the folder is not a run folder.
        Damaged: the file is.
    """
    if not (run_dir / "run.json").is_file():
        raise UsageError(f"{run_dir} is not a run folder (it holds no run.json)")
    return load_json(run_dir / "run.json")


def read_lines(run_dir: Path, skip: int = 0) -> tuple[list[Record], int]:
    """The records in ``metrics.jsonl`` after the first ``skip`` lines, and the total number of complete lines.

    An incomplete last line, which is being written or was truncated by a kill, is left out, as are damaged lines.
    """
    lines, records = lines_of(run_dir / "metrics.jsonl"), list[Record]()
    for line in lines[skip:]:
        with suppress(ValueError):
            records.append(parsed(line))
    return records, len(lines)


def read_records(run_dir: Path) -> list[Record]:
    """All records of a run, one per round in order; :class:`Damaged` if one is lost."""
    return RunFolder(run_dir).records()


def audit_outcome(run_dir: Path) -> tuple[str | None, dict[str, float]]:
    """The answer of a run's audit in a few words (``Members were identified``; ``None``: it is in no audit), and its metrics.

    Raises:
        Damaged: the report does not have the expected form.
    """
    path = run_dir / "audit" / "audit.json"
    run_id = read_run(run_dir).get("run_id")
    try:
        run = next((run for run in load_json(path)["runs"] if run["run_id"] == run_id), None)
        if run is None:
            return None, {}
        return str(run["answer"]["words"]), {str(name): float(value) for name, value in run["metrics"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is not what fedpriv writes; `fedpriv audit` writes it anew") from error


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``{"a": {"b": 1}}`` -> ``("a.b", 1)``; lists stay whole."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def runs_dir_of(run_dir: Path) -> Path:
    """The runs folder that a run belongs to: the one it lies in; of a run of a sweep, the one that holds the sweep."""
    parents = run_dir.parents
    return parents[3] if len(parents) > 3 and (parents[0].name, parents[2].name) == ("runs", SWEEPS) else run_dir.parent


def find_run(run: str, runs_dir: Path = Path("runs")) -> Path:
    """Find a run folder by its path, its run id, or a unique prefix of its name under ``runs_dir``, and check it.

    A run of a sweep is found in the same ways; where two sweeps have one of its name, only by its path.

    Raises:
        UsageError: the path is not a run folder, the prefix is not unique, or there is no such run; or as :func:`check_run`.
    """
    folder = _find_folder(run, runs_dir)
    check_run(folder)
    return folder


def check_run(folder: Path) -> None:
    """Check a run folder, which may come from elsewhere: no links that lead out of it, and files as fedpriv writes them.

    Truncated lines of ``metrics.jsonl`` and missing files are allowed.

    Raises:
        UsageError: a link leads out.
        Damaged: a file has another form; the message names the first error.
    """
    _check_links(folder)
    for name, form in (("run.json", _Facts), ("summary.json", _Summary), ("tracking.json", _Cursor)):
        if (path := folder / name).exists():
            _check_form(form, load_json(path), path)
    for path in folder.glob("probe/*.json"):
        _check_form(_Probe, load_json(path), path)
    for number, line in enumerate(lines_of(folder / "metrics.jsonl"), 1):
        try:
            record = json.loads(line)
            record = without_checksum(record, "the line") if isinstance(record, dict) else record
        except (ValueError, Damaged):  # an error only where the record is needed
            continue
        except RecursionError:
            record = None
        _check_form(_Line, record, f"{folder / 'metrics.jsonl'}, line {number}")
    for number, record in Records(folder).committed().items():
        _check_form(_Line, record, f"the checkpoint of round {number} in {folder}")


def _find_folder(run: str, runs_dir: Path) -> Path:
    if (Path(run) / "config.yaml").is_file():  # the first file of a run, and the only one if it is killed at the start
        return Path(run)
    folders = sorted(path.parent for path in runs_dir.glob("*/config.yaml"))
    names = [folder.name for folder in folders]
    if run in names:
        return runs_dir / run
    for folder in folders:
        if _run_id(folder) == run:
            return folder
    beginning = run
    if os.sep in run and not Path(run).is_dir():  # of a path
        folders = sorted(path.parent for path in Path(run).parent.glob("*/config.yaml"))
        beginning = Path(run).name
    of_sweeps = sorted(path.parent for path in runs_dir.glob(f"{SWEEPS}/*/runs/*/config.yaml"))
    matches = (
        [folder for folder in folders if beginning and folder.name.startswith(beginning)]
        or [folder for folder in of_sweeps if run in (folder.name, _run_id(folder))]
        or [folder for folder in of_sweeps if run and folder.name.startswith(run)]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        named = [str(folder) if folder in of_sweeps else folder.name for folder in matches[:4]]
        shown = ", ".join(named) + (", …" if len(matches) > 4 else "")
        raise UsageError(f"{run!r} fits {len(matches)} runs: {shown}")
    from fedpriv.recorder.reader import is_record  # whose import takes as long as ten other modules

    if is_record(Path(run)):
        raise UsageError(f"{run} is a record of a federation elsewhere; `fedpriv audit` reads it, and this needs a run")
    if Path(run).is_dir():
        hint = next((f"; it holds runs, such as {path.parent}" for path in Path(run).glob("*/config.yaml")), "")
        raise UsageError(f"{run} is not a run folder (it holds no config.yaml){hint}")
    if os.sep in run:  # a path is compared with what lies beside it
        runs_dir = Path(run).parent
        names = sorted(str(path.parent) for path in runs_dir.glob("*/config.yaml"))
    if not names:
        raise UsageError(f"no run {run!r}: there are no runs in {runs_dir}; `fedpriv train` makes one")
    near = difflib.get_close_matches(run, names, n=1, cutoff=0.5)
    several = ", ".join([*names[:-4:-1], *(["..."] if len(names) > 3 else [])])
    hint = f"did you mean {near[0]!r}?" if near else f"{len(names)} are there: {several}"
    raise UsageError(f"no run {run!r} in {runs_dir}; {hint}")


def _run_id(folder: Path) -> Any:
    try:
        return read_run(folder).get("run_id")
    except FedprivError:  # a damaged folder, which is not the one that is sought
        return None


def _check_form(form: type[_Form], values: Any, path: Path | str) -> None:
    """Raise :class:`Damaged`, with the first error, if the values of a file have another form."""
    try:
        TypeAdapter(form).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise Damaged(f"{path} is not what fedpriv writes: {where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _check_links(folder: Path) -> None:
    """Raise :class:`UsageError` if a symbolic link leads out of the folder: its target would be read, uploaded or overwritten."""
    root = folder.resolve()
    for where, folders, files in os.walk(folder):
        for path in (Path(where) / name for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise UsageError(
                    f"{path} is a symbolic link out of the run folder, which is not followed; put a copy in its place"
                )
