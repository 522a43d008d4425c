"""The configs of a sweep: every combination of the values of some keys, scored on the clients' validation data."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.api.keys import KEYS, SHORTHANDS, config_of, dotted, parsed
from fedpriv.api.request import check_names
from fedpriv.errors import UsageError
from fedpriv.scores.catalogue import score_named
from fedpriv.untrusted import plain_yaml
from fedpriv.untrusted.kinds import brief

if TYPE_CHECKING:
    from fedpriv.config import RunConfig

VALIDATION = 0.2
"""Share of each client's training data that is held out, if the config holds none out."""
_VALIDATED = ("eval.split", "data.validation_fraction")
_BY_VALIDATION = (*_VALIDATED, "train.patience")
"""Keys that a run on all training data does not have."""
_OF_TRAINING = {f"data.{key}" for key in ("augment", "image_size", "pixels", "max_tokens", "min_level", "features", "drop")}
_ELSEWHERE = ("data.", "eval.", "tracking.", "executor.", "run_dir", "device", "threads", "plugins")
_FLAGS = {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items() if name != "roles"}


@dataclass(frozen=True)
class Cell:
    """A combination of values.

    Attributes:
        values: by dotted key, as it was given.
        config: with the seed still open.
    """

    values: Mapping[str, Any]
    config: RunConfig

    @property
    def name(self) -> str:
        """For people: ``train.lr=0.01, method.mu=1``."""
        return ", ".join(f"{key}={_text(value)}" for key, value in self.values.items())

    @property
    def label(self) -> str:
        """For file names: ``lr=0.01+mu=1``, with a hash where characters are left out."""
        whole = "+".join(f"{key.rpartition('.')[2]}={_text(value)}" for key, value in self.values.items())
        short = re.sub(r"[^\w.=+-]+", "-", whole)[:80]
        return short if short == whole else f"{short}-{_hash(self.name)}"


@dataclass(frozen=True)
class Grid:
    """What a sweep trains.

    Attributes:
        cells: in the order of the values, the last key's changing first.
        name: of its folder: the same for the same config and keys, whatever their values and seeds, so that these can be added.
    """

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    name: str
    base: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None
    fixed: Mapping[str, Any]

    def train_command(self, cell: Cell) -> str:
        """The ``fedpriv train`` command of a cell's runs on all training data, tested on the test data."""
        given = {key: value for key, value in {**self.fixed, **dict(cell.values)}.items() if key not in _BY_VALIDATION}
        if parsed(self.base, given | {"train.patience": None})[0].eval.split != "test":  # the config file says so
            given |= {"eval.split": "test", "data.validation_fraction": 0}
        if parsed(self.base, given | {"eval.split": "validation"})[0].train.patience is not None:
            given |= {"train.patience": None}
        words = ["fedpriv", "train"]
        if isinstance(self.base, str | os.PathLike):
            words += ["--config", os.fspath(self.base)]
        elif self.base is not None:
            values = self.base if isinstance(self.base, Mapping) else self.base.chosen()
            given = {
                key: value for key, value in dotted(values).items() if key not in (*_BY_VALIDATION, "seed", "run_dir")
            } | given
        for key, value in given.items():
            words += _option(key, value)
        several = len(self.seeds) > 1
        return shlex.join([*words, "--seeds" if several else "--seed", ",".join(map(str, self.seeds))])


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds: so many from 0 on, or those that are named.

    Raises:
        UsageError: there is none, one is negative, or one is there twice.
    """
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers or min(numbers) < 0:
        raise UsageError(f"seeds {brief(seeds)}: at least 1 seed, and none below 0, such as 3 (0, 1 and 2) or 0,1,5")
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise UsageError(f"seeds: {twice[0]} is there twice")
    return numbers


def values_of(text: str) -> tuple[str, list[Any]]:
    """``"train.lr=0.01,0.1"`` -> ``("train.lr", [0.01, 0.1])``; values are read as YAML, and a comma in brackets or quotes
    belongs to a value.

    Raises:
        UsageError: there is no value, or one that cannot be read.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    example = "such as train.lr=0.01,0.1"
    if not equals or not key:
        raise UsageError(f"--set {brief(text)}: expected key=value or key=value,value, {example}")
    if not values or values.endswith(","):
        raise UsageError(f"--set {key}: a value is missing; a key has values with commas between them, {example}")
    try:
        return key, list(plain_yaml.load(f"[{values}]"))
    except plain_yaml.PlainYamlError as error:
        raise UsageError(f"--set {key}: the values are not YAML that can be read: {error}") from None


def grid_of(
    base: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None,
    keys: Mapping[str, Any],
    swept: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int],
) -> Grid:
    """The grid over values of keys.

    Args:
        base, keys: as for :func:`fedpriv.api.keys.config_of`; the same in all runs.
        swept: key -> values.

    Raises:
        UsageError: a key or a value that cannot be right, a key that is no choice, or a choice on test data; without loading
            PyTorch.
    """
    numbers, fixed, values = seeds_of(seeds), dotted(keys), dict[str, list[Any]]()
    for key, given in swept.items():
        (name,) = dotted({key: None})
        _check_swept(name, given)
        if name in values or name in fixed:
            raise UsageError(f"{name} is given twice; give its values together, such as {name}=A,B")
        values[name] = list(given)
    if not values:
        raise UsageError("no key has several values to choose from, such as train.lr=0.01,0.1; `fedpriv train` trains one config")
    if fixed.get("seed") is not None:
        raise UsageError("a sweep takes seeds, such as --seeds 3, no single seed")
    if fixed.get("run_dir") is not None:
        raise UsageError("run_dir names the folder of one run; --runs-dir says where the sweep's are")
    if fixed.get("eval.split") == "test" or fixed.get("data.validation_fraction") == 0:
        raise UsageError("a sweep chooses on validation data, never on the test set; leave eval.split and the fraction out")
    held_out = parsed(base, fixed | {"train.patience": None})[0].data.validation_fraction or VALIDATION
    validated = dict[str, Any](zip(_VALIDATED, ("validation", held_out), strict=True))
    whole = parsed(base, fixed | validated)[0].model_copy(update={"seed": 0, "run_dir": None})
    if whole.eval.metric is not None:
        score_named(whole.eval.metric)
    fixed |= {key: value for key, value in (("data.name", whole.data.name), ("model.name", whole.model.name)) if key in fixed}
    cells = []
    for combination in product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        config, _ = parsed(base, fixed | validated | chosen)
        if not config.plugins:  # which may register the name
            check_names(config)
        cells.append(Cell(chosen, config.model_copy(update={"seed": 0, "run_dir": None})))
    identity = _hash(json.dumps([parsed(base, fixed | validated)[0].fingerprint(), whole.eval.metric, sorted(values)]))
    return Grid(tuple(cells), numbers, f"{whole.called}-{Path(whole.data.name).name}-{identity}", base, fixed)


def check_cells(grid: Grid) -> None:
    """Check what loads PyTorch: names, options of methods, what has no effect, and that there is a score to choose by.

    Raises:
        UsageError: a cell cannot be right.
    """
    from fedpriv.methods.build import objective_of, with_options

    for cell in grid.cells:
        try:
            validated = dict(zip(_VALIDATED, (cell.config.eval.split, cell.config.data.validation_fraction), strict=True))
            config_of(grid.base, {**grid.fixed, **validated, **cell.values}, here=True)
            with_options(cell.config)
            if not objective_of(cell.config).labels:
                raise UsageError("it learns without labels, so there is no validation score to choose by")
        except UsageError as error:
            raise UsageError(f"{cell.name}: {error}") from None


def _check_swept(key: str, values: Sequence[Any]) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise UsageError(f"{key}: {brief(values)} is no list of values")
    if key == "seed":
        raise UsageError("seeds are no choice; --seeds names them, such as --seeds 3")
    if key.startswith(_ELSEWHERE) and key not in _OF_TRAINING:
        raise UsageError(f"{key} cannot be swept: runs that differ in it are scored on other samples, or are equal")
    texts = [_text(value) for value in values]
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise UsageError(f"{key}: the value {twice[0]} is there twice")


def _option(key: str, value: Any) -> list[str]:
    flag = f"--{key.replace('_', '-')}" if key in SHORTHANDS else _FLAGS.get(key)
    if value is True and key == "wire.secure_aggregation":
        return ["--secure-aggregation"]
    if key == "defense" and not isinstance(value, str):
        return [word for defence in value or () for word in ("--defense", defence)]
    if flag is not None and isinstance(value, str | int | float) and not isinstance(value, bool):
        return [flag, str(value)]
    return ["--set", f"{key}={_text(value)}"]


def _text(value: Any) -> str:
    """A value as ``--set`` reads it."""
    if isinstance(value, str) and value.isprintable() and not re.search(r"[\s,\[\]{}#'\":&*!|>%@`]", value):
        try:
            return value if plain_yaml.load(value) == value else json.dumps(value)
        except plain_yaml.PlainYamlError:
            pass
    return json.dumps(value, default=str)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
