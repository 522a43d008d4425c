"""The results beside the experiments' YAMLs count: an option that is resolved otherwise than before would leave them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.experiments import describes_cells, read
from fedpriv.experiments.stored import stored_results

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FILES = sorted(file for file in EXPERIMENTS.glob("*/*.yaml") if (file.parent / "results" / file.stem).is_dir())


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_no_committed_result_is_left_out(file: Path) -> None:
    if describes_cells(file):
        pytest.skip("cells are told by their own report")
    results, _, complaints = stored_results(read(file))
    assert any(results.values()) and not [complaint for complaint in complaints if "is left out" in complaint]
