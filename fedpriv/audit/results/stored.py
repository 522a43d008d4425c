"""The JSON form of typed records, and the audit that a run's folder stores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedpriv.audit.results.audit import Audit, AuditedRun
from fedpriv.files import Damaged, load_json
from fedpriv.tracking.folder import read_run

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


@cache
def form_of(record: type[Any]) -> TypeAdapter[Any]:
    """The JSON form of a dataclass."""
    from pydantic import TypeAdapter

    return TypeAdapter(record)


def to_json(record: object) -> dict[str, Any]:
    """The JSON form of an instance of a dataclass."""
    data: dict[str, Any] = form_of(type(record)).dump_python(record, mode="json")  # type: ignore[arg-type]  # as below
    return data


def from_json(record: type[T], data: object) -> T:
    """The inverse of :func:`to_json`.

    Raises:
        ValueError: the data have another form.
    """
    read: T = form_of(record).validate_python(data)  # type: ignore[arg-type]  # for mypy, a class has no hash
    return read


def read_audit(run_dir: Path) -> Audit | None:
    """The audit in a run's folder; ``None``: the run was not audited.

    Raises:
        Damaged: the report is not what this version of fedpriv writes.
    """
    path = run_dir / "audit" / "audit.json"
    if not path.exists():
        return None
    try:
        return from_json(Audit, load_json(path))
    except ValueError as error:
        raise Damaged(f"{path} is not what fedpriv writes; `fedpriv audit` writes it anew") from error


def audit_of(run_dir: Path) -> tuple[AuditedRun, Mapping[str, int | float | None]] | None:
    """A run's results and the options of its audit; ``None``: it was not audited. Raises as :func:`read_audit`."""
    if (audit := read_audit(run_dir)) is None:
        return None
    run_id = read_run(run_dir).get("run_id")
    return next(((run, audit.options) for run in audit.runs if run.run_id == run_id), None)
