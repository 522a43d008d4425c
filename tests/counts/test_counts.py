"""No count of a start, a round, an audit's controls or a copy to MLflow is over its bound in ``bounds.json``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.counts.measure import Counts, bounds, count_controls, count_deployment, count_queries, count_rounds, count_start

DEPLOYED = pytest.param(count_deployment, marks=[pytest.mark.slow, pytest.mark.extra("deploy")])


@pytest.mark.parametrize("count", [count_start, count_controls, count_rounds, count_queries, DEPLOYED])
def test_counts_are_within_their_bounds(
    count: Callable[[Path], Counts], tmp_path: Path, empty_store: Path, record_property: Callable[[str, object], None]
) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")  # where the queries are counted
    counts = count(tmp_path)
    record_property("counts", counts)
    table = bounds()
    over = {name: (value, table[name]) for name, value in counts.items() if value > table[name].bound}
    assert not over, f"{over}; see by how much all differ: python -m tests.counts"


def test_each_bound_has_a_reason_and_is_near_its_count() -> None:
    for name, row in bounds().items():
        assert row.reason, name
        assert row.count <= row.bound <= max(1.1 * row.count, row.count + 2), name
