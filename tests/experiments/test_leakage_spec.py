"""The YAML of a leakage experiment, and the errors of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_cells import write_cells
from made_results import write_yaml

from fedpriv.errors import UsageError
from fedpriv.experiments.leakage import describes_cells, read_leakage

HEAD_FREE = {"attacker": {"name": "head-free"}}


def test_cells_are_laid_over_the_base(tmp_path: Path) -> None:
    path = write_cells(
        tmp_path, cells={"a": HEAD_FREE, "b": {**HEAD_FREE, "images": {"n": 2}, "defence": [{"name": "clip", "norm": 2}]}}
    )
    cells = read_leakage(path).cells
    assert describes_cells(path) and not describes_cells(write_yaml(tmp_path, runs={"fedavg": {}}))
    assert (cells["a"].images.n, cells["b"].images.n, cells["b"].images.dataset) == (4, 2, "digits")
    assert cells["b"].victim.masked == 1 and cells["b"].defence == ({"name": "clip", "norm": 2},)
    assert not cells["a"].attacker.threat.labels and cells["a"].attacker.threat.top == "unknown"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"attacker": {"name": "headfree"}}, r"unknown attacker in cell a of .*'headfree'.*head-free"),
        ({"attacker": {"name": "head-free", "options": {"step": 3}}}, r"unknown option of head-free in cell a .*'step'.*steps"),
        ({"attacker": {"name": "idlg-label", "options": {"steps": 3}}}, "idlg-label has no options"),
        ({}, "cell a of .*: no attacker"),
        ({**HEAD_FREE, "victim": {"layers": 1, "masked": 2}}, "cell a .*2 masked of 1 linear layers"),
        ({**HEAD_FREE, "victim": {"masked": 0, "convolutions": 1}}, "masked must equal layers"),
        ({**HEAD_FREE, "victim": {"batch": 3}}, "4 images cannot be divided into batches of 3"),
        ({"attacker": {"name": "idlg-label"}, "victim": {"batch": 2}}, "idlg-label infers the label of one image"),
        ({**HEAD_FREE, "defence": [{"name": "gaussian", "variance": -1}]}, r"cell a .*defence\[0\] \(gaussian\): variance = -1"),
        ({**HEAD_FREE, "defence": [{"name": "gauss"}]}, r"cell a .*'gauss'.*gaussian"),
        ({**HEAD_FREE, "defence": [{"name": "mask", "last": 1}]}, "set masked layers in the victim"),
        ({**HEAD_FREE, "victim": {"layer": 1}}, r"unknown key in cell a .*'victim.layer'.*victim.layers"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, cell: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        read_leakage(write_cells(tmp_path, cells={"a": cell}))
    assert len(str(error.value).splitlines()) <= 2 and "wire.transforms" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tables": [{"title": "T", "rows": {"r": {"c": "b"}}}]}, "unknown cell in table 'T'"),
        ({"claims": [{"id": "C", "statement": "s", "cells": ["b"], "above": 0.5}]}, "unknown cell in claim C"),
        ({"claims": [{"id": "C", "statement": "s", "cells": ["a"]}]}, "one of above, below"),
        ({"claims": [{"id": "C", "statement": "s", "compare": ["a", "a"], "above": 0.5}]}, "one of above, below"),
        ({"protections": {"p": {"cells": ["b"]}}}, "unknown cell in protection 'p'"),
        ({"protections": {"p": {"cells": ["a"], "run": "fedavg"}}}, "there is no costs"),
    ],
)
def test_labels_must_name_cells(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_leakage(write_cells(tmp_path, cells={"a": HEAD_FREE}, **values))


def test_costs_name_runs_of_their_experiment(tmp_path: Path) -> None:
    write_yaml(tmp_path, "cost", runs={"fedavg": {"method": {"name": "fedavg"}}})
    costs = {"file": "cost.yaml", "undefended": "fedavg"}
    path = write_cells(tmp_path, cells={"a": HEAD_FREE}, costs=costs, protections={"p": {"cells": ["a"], "run": "fedavg"}})
    assert read_leakage(path).file.costs is not None
    with pytest.raises(UsageError, match="unknown run in protection 'p'"):
        read_leakage(write_cells(tmp_path, cells={"a": HEAD_FREE}, costs=costs, protections={"p": {"cells": ["a"], "run": "x"}}))
