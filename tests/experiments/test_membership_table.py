"""The table of membership by gradients: what is missing is said, and rows become cells."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from fedpriv.errors import UsageError

FILE = Path(__file__).parents[2] / "experiments" / "attacks" / "membership.py"


@pytest.fixture
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attacks_membership", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_the_data_it_says_what_is_missing(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no fashion_mnist/train\.parquet"):
        module.measure(str(tmp_path))


def test_a_row_has_the_best_attack_before_and_the_regression(module: ModuleType) -> None:
    figures = {"auc": 0.9512, "low": 0.9, "high": 1.0, "tpr": 0.431}
    rows = [
        {"setting": "ten", "before": {"attack": "LiRA", "auc": 0.683}, "regression": {"gradient regression": figures}},
        {"setting": "none", "before": {"attack": "FedMIA", "auc": 0.5}, "regression": {}},
    ]
    shown = module.render(rows)
    assert shown.startswith("## ") and "| ten | 0.68 (LiRA) | 0.951 | 0.43 | – | – |" in shown
    assert "| none | 0.50 (FedMIA) | – | – | – | – |" in shown
