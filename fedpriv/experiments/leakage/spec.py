"""A leakage experiment's YAML: cells that share a base, tables of cells, and claims about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedpriv.config import parse, read_yaml
from fedpriv.defenses import build_transforms
from fedpriv.errors import UnknownName, UsageError
from fedpriv.experiments.leakage.cell import Cell
from fedpriv.experiments.spec import merge, read

Row = Mapping[str, str]
"""Column -> label of a cell."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Table(_Section):
    """A table of cells: row -> column -> label of a cell."""

    title: str
    rows: dict[str, dict[str, str]] = Field(min_length=1)


class Protection(_Section):
    """A protective measure: the cells that attack it, and the run of the cost experiment that measures its cost."""

    cells: tuple[str, ...] = Field(min_length=1)
    run: str | None = None


class Costs(_Section):
    """The experiment (a YAML beside this one) whose runs measure the cost of protections, and its undefended run."""

    file: str
    undefended: str


class LeakClaim(_Section):
    """A claim, and how it is tested by cells.

    ``cells`` with ``above`` or ``below``: a bound on the share of images that the best of these attackers recovers.
    ``compare: [A, B]``: the error of A is higher than that of B, image by image.
    """

    id: str
    statement: str
    cells: tuple[str, ...] = ()
    above: float | None = Field(None, ge=0, le=1)
    below: float | None = Field(None, ge=0, le=1)
    compare: tuple[str, str] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return self.compare or self.cells

    @model_validator(mode="after")
    def _is_computable(self) -> Self:
        bounds = [bound for bound in (self.above, self.below) if bound is not None]
        if bool(self.cells) == bool(self.compare) or len(bounds) != (1 if self.cells else 0):
            raise ValueError("give either cells and one of above, below (a share of images), or compare: [A, B]")
        return self


class _File(_Section):
    title: str
    section: int | None = None
    base: dict[str, Any] = {}
    cells: dict[str, dict[str, Any]] = Field(min_length=1)
    tables: tuple[Table, ...] = ()
    costs: Costs | None = None
    protections: dict[str, Protection] = {}
    claims: tuple[LeakClaim, ...] = ()
    recommendation: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leakage:
    """A leakage experiment, from a YAML with ``cells``; see ``experiments/README.md``."""

    path: Path
    title: str
    section: int | None
    cells: Mapping[str, Cell]
    tables: tuple[Table, ...]
    costs: Costs | None
    protections: Mapping[str, Protection]
    claims: tuple[LeakClaim, ...]
    recommendation: tuple[str, ...]
    notes: tuple[str, ...]

    def result_file(self, label: str) -> Path:
        """The committed result: ``results/<stem>/<label>.json`` beside the YAML."""
        return self.path.parent / "results" / self.path.stem / f"{label}.json"

    def select(self, labels: Sequence[str] = ()) -> list[str]:
        """The given labels, in the order of the YAML; all if none is given.

        Raises:
            UsageError: the YAML has no such label.
        """
        for label in labels:
            if label not in self.cells:
                raise UnknownName(f"cell in {self.path}", label, self.cells)
        return [label for label in self.cells if not labels or label in labels]


def describes_cells(path: Path) -> bool:
    """Whether the YAML is of this kind: ``cells`` in place of ``runs``."""
    return "cells" in read_yaml(path)


def read_leakage(path: Path) -> Leakage:
    """Read and check an experiment, including every cell's defence and attack.

    Raises:
        UsageError: the YAML is not valid; the message has the label of an invalid cell.
    """
    values = read_yaml(path)
    for key in ("title", "cells"):
        if key not in values:
            raise UsageError(f"experiment {path}: no {key!r}; it needs title and cells (label: what differs from base)")
    file = parse(_File, values, f"experiment {path}")
    cells = {label: _cell(path, label, merge(file.base, own)) for label, own in file.cells.items()}
    named = [
        *((f"table {table.title!r}", label) for table in file.tables for row in table.rows.values() for label in row.values()),
        *((f"protection {name!r}", label) for name, protection in file.protections.items() for label in protection.cells),
        *((f"claim {claim.id}", label) for claim in file.claims for label in claim.labels),
    ]
    for where, label in named:
        if label not in cells:
            raise UnknownName(f"cell in {where} of {path}", label, cells)
    _check_costs(path, file)
    fields = ("title", "section", "tables", "costs", "protections", "claims", "recommendation", "notes")
    return Leakage(path, cells=cells, **{name: getattr(file, name) for name in fields})


def _check_costs(path: Path, file: _File) -> None:
    """Check that the runs named by protections exist."""
    named = {name: protection.run for name, protection in file.protections.items() if protection.run}
    if file.costs is None:
        if named:
            raise UsageError(f"experiment {path}: protections name runs, but there is no costs: {{file: ..., undefended: ...}}")
        return
    runs = read(path.parent / file.costs.file).configs
    for where, run in {"costs.undefended": file.costs.undefended, **{f"protection {k!r}": v for k, v in named.items()}}.items():
        if run not in runs:
            raise UnknownName(f"run in {where} of {path}", run, runs)


def _cell(path: Path, label: str, values: dict[str, Any]) -> Cell:
    from fedpriv.experiments.leakage.attack import build_attack

    if not re.fullmatch(r"[\w.=+][\w.=+-]*", label):
        raise UsageError(f"experiment {path}: cell {label!r} names a file; use letters, digits and . _ = + -")
    where = f"cell {label} of {path}"
    if "attacker" not in values:
        raise UsageError(f"{where}: no attacker; such as attacker: {{name: head-free}}")
    cell = parse(Cell, values, where)
    if any(transform.get("name") == "mask" for transform in cell.defence):
        raise UsageError(f"{where}: set masked layers in the victim: victim: {{layers: 2, masked: 1}}")
    try:
        build_transforms(cell.defence)
    except UsageError as error:
        raise UsageError(f"{where}: {error}".replace("wire.transforms", "defence")) from None
    build_attack(cell.attacker, where)
    return cell
