"""Reading a run folder, also while the run is still writing it."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged, load_json, without_checksum
from fedpriv.storage.records import Record, Records, lines_of, parsed
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.forms import Cursor, Facts, Line, Probe, Summary, check_form, check_links


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
    """The complete lines of ``metrics.jsonl`` after the first ``skip``, and the number of complete lines in all.

    Text after the last newline is a line that is still being written, or was truncated by a kill, and is left out, like lines
    that are damaged.
    """
    lines = lines_of(run_dir / "metrics.jsonl")
    return list(_sound(lines[skip:])), len(lines)


def _sound(lines: Sequence[bytes]) -> Iterator[Record]:
    for line in lines:
        with suppress(ValueError):
            yield parsed(line)


def read_records(run_dir: Path) -> list[Record]:
    """All records of a run, one per round in order; ``Damaged`` where one is not known any more."""
    return RunFolder(run_dir).records()


def audit_metrics(run_dir: Path) -> dict[str, float]:
    """The numbers in which an audit gives a run's leakage, by name; empty: it was not audited.

    Raises:
        Damaged: the report is not what this version of fedpriv writes.
    """
    path = run_dir / "audit" / "audit.json"
    if not path.exists():
        return {}
    run_id = read_run(run_dir).get("run_id")
    try:
        runs = [one for one in load_json(path)["runs"] if one["run_id"] == run_id]
        return {str(name): float(value) for one in runs for name, value in one["metrics"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path} is not what fedpriv writes; `fedpriv audit` writes it anew") from error


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``{"a": {"b": 1}}`` -> ``("a.b", 1)``; lists stay whole."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def find_run(run: str, runs_dir: Path = Path("runs")) -> Path:
    """The folder of a run given by a path, a run id, or a unique prefix of a folder's name under ``runs_dir``.

    Raises:
        UsageError: the path is not a run folder, the prefix is not unique, or there is no such run; or what :func:`check_run`
            says of the folder.
    """
    folder = _find_folder(run, runs_dir)
    check_run(folder)
    return folder


def check_run(folder: Path) -> None:
    """Check a run folder, which may come from elsewhere: no links that lead out, and files of the form that fedpriv writes.

    A truncated line of ``metrics.jsonl`` is skipped, and files that are not there yet are allowed.

    Raises:
        UsageError: a link leads out; Damaged: a file is of another form. In one line, the first thing wrong.
    """
    check_links(folder)
    for name, form in (("run.json", Facts), ("summary.json", Summary), ("tracking.json", Cursor)):
        if (path := folder / name).exists():
            check_form(form, load_json(path), path)
    for path in folder.glob("probe/*.json"):
        check_form(Probe, load_json(path), path)
    for number, line in enumerate(lines_of(folder / "metrics.jsonl"), 1):
        try:
            record = json.loads(line)
            record = without_checksum(record, "the line") if isinstance(record, dict) else record
        except (ValueError, Damaged):  # a record that is lost is named where it is needed
            continue
        except RecursionError:
            record = None
        check_form(Line, record, f"{folder / 'metrics.jsonl'}, line {number}")
    for number, record in Records(folder).committed().items():
        check_form(Line, record, f"the checkpoint of round {number} in {folder}")


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
    matches = [folder for folder in folders if beginning and folder.name.startswith(beginning)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(folder.name for folder in matches[:4]) + (", …" if len(matches) > 4 else "")
        raise UsageError(f"{run!r} fits {len(matches)} runs: {shown}")
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
    except FedprivError:  # another run's folder, and not the one that is sought
        return None
