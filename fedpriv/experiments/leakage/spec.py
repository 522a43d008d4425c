"""A leakage experiment's YAML: cells that share a base, tables of cells, and claims about them.

A cell is a victim on images, the defences of its message, and the attack on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from fedpriv.attacks.attack import ImageAttack, image_attacks
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.options import defaults_of
from fedpriv.config import parse, read_yaml
from fedpriv.defenses import build_transforms
from fedpriv.errors import UnknownName, UsageError
from fedpriv.experiments.spec import check_label, merge, read

LABEL_RULE = "idlg-label"
"""The attacker that only infers the label; those of ``fedpriv attacks`` reconstruct images."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ImagesSpec(_Section):
    """Test images of a data set: the first ``n`` in an order drawn by the seed, so that a larger ``n`` adds to a smaller one."""

    dataset: str = "cifar10"
    n: PositiveInt = 50
    seed: NonNegativeInt = 0


class VictimSpec(_Section):
    """The LeNet of DLG, parameters U(-0.5, 0.5), trained by a client on ``batch`` images: ``steps`` full-batch steps of SGD.

    The message of one step is the gradient, that of several the change of the weights.
    """

    layers: Literal[1, 2, 3] = Field(1, description="linear layers at the end")
    masked: NonNegativeInt = Field(0, description="number of them, from the last, that are not sent")
    convolutions: Literal[0, 1] = Field(0, description="number of the three convolutions, from the last, that are not sent")
    bias: bool = Field(True, description="whether the linear layers that are sent have a bias")
    steps: PositiveInt = 1
    lr: PositiveFloat = Field(0.1, description="learning rate of the local steps; without effect for one step")
    batch: PositiveInt = Field(1, description="images of the client, all in every step")
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _hides_what_is_there(self) -> Self:
        if self.masked > self.layers:
            raise ValueError(f"{self.masked} masked of {self.layers} linear layers; at most all of them")
        if self.convolutions and self.masked < self.layers:
            raise ValueError("convolutions can be hidden only with all linear layers: masked must equal layers")
        return self


class AttackerSpec(_Section):
    """An attack of ``fedpriv attacks`` (or the label rule), its options, and what it knows besides the message."""

    name: str
    options: dict[str, Any] = {}
    top: Literal["unknown", "initial", "current"] = "unknown"
    seed: NonNegativeInt = 0

    @property
    def threat(self) -> ThreatModel:
        return ThreatModel(top=self.top)

    def attack(self, where: str) -> ImageAttack | None:
        """The attack with its options; ``None`` for the label rule.

        Raises:
            UsageError: there is no such attack, or it has no such option.
        """
        if self.name == LABEL_RULE:
            if self.options:
                raise UsageError(f"{where}: {self.name} has no options")
            return None
        known = image_attacks()
        if self.name not in known:
            raise UnknownName(f"attacker in {where}", self.name, [*known, LABEL_RULE])
        for option in self.options:
            if option not in (names := defaults_of(known[self.name])):
                raise UnknownName(f"option of {self.name} in {where}", option, names)
        return known[self.name](**self.options)


class Cell(_Section):
    """The victim and the attacker. ``defence``: transforms of the upload, as in ``wire.transforms`` of a run's config."""

    images: ImagesSpec = ImagesSpec()
    victim: VictimSpec = VictimSpec()
    defence: tuple[dict[str, Any], ...] = ()
    attacker: AttackerSpec

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.images.n % self.victim.batch:
            raise ValueError(f"{self.images.n} images cannot be divided into batches of {self.victim.batch}")
        if self.attacker.name == LABEL_RULE and self.victim.batch > 1:
            raise ValueError(f"{LABEL_RULE} infers the label of one image, but the victim's batch is {self.victim.batch}")
        return self


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
        """The cells that the claim names."""
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
    """A leakage experiment: a YAML with ``cells``; see ``experiments/README.md``.

    Attributes:
        file: what it says besides its cells.
    """

    path: Path
    cells: Mapping[str, Cell]
    file: _File

    @property
    def section(self) -> int | None:
        """Its place in the folder's report."""
        return self.file.section

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
    cells = {label: _cell(path, label, merge(file.base, changes)) for label, changes in file.cells.items()}
    named = [
        *((f"table {table.title!r}", label) for table in file.tables for row in table.rows.values() for label in row.values()),
        *((f"protection {name!r}", label) for name, protection in file.protections.items() for label in protection.cells),
        *((f"claim {claim.id}", label) for claim in file.claims for label in claim.labels),
    ]
    for where, label in named:
        if label not in cells:
            raise UnknownName(f"cell in {where} of {path}", label, cells)
    runs = {f"protection {name!r}": protection.run for name, protection in file.protections.items() if protection.run}
    if file.costs is not None:
        known = read(path.parent / file.costs.file).configs
        for where, run in {"costs.undefended": file.costs.undefended, **runs}.items():
            if run not in known:
                raise UnknownName(f"run in {where} of {path}", run, known)
    elif runs:
        raise UsageError(f"experiment {path}: protections name runs, but there is no costs: {{file: ..., undefended: ...}}")
    return Leakage(path, cells, file)


def _cell(path: Path, label: str, values: dict[str, Any]) -> Cell:
    check_label(path, "cell", label)
    where = f"cell {label} of {path}"
    if "attacker" not in values:
        raise UsageError(f"{where}: no attacker; such as attacker: {{name: head-free}}")
    cell: Cell = parse(Cell, values, where)
    if any(transform.get("name") == "mask" for transform in cell.defence):
        raise UsageError(f"{where}: set masked layers in the victim: victim: {{layers: 2, masked: 1}}")
    try:
        build_transforms(cell.defence)
    except UsageError as error:
        raise UsageError(f"{where}: {error}".replace("wire.transforms", "defence")) from None
    cell.attacker.attack(where)
    return cell
