"""A deployment's server has its own model, and no client's."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import fedpriv
from tests.deploy.apart import play_apart
from tests.deploy.test_tables import TRAINED, apart, hospitals, nodes, whole

__all__ = ["hospitals"]


@pytest.mark.slow
def test_a_deployment_of_tables_predicts_as_its_simulation(hospitals: Path, tmp_path: Path) -> None:
    deployed, simulated = (fedpriv.load(how(hospitals, tmp_path / how.__name__)) for how in (apart, whole))
    kept = [json.loads(run.folder.preprocessing_file.read_text()) for run in (deployed, simulated)]
    assert kept[0] == kept[1] and kept[0]["classes"] == ["no", "yes"]
    rows = pd.read_csv(hospitals / "north" / "test.csv")
    pd.testing.assert_frame_equal(deployed.predict(rows), simulated.predict(rows))
    assert deployed.predict(rows, client=1).equals(deployed.predict(rows))  # of a method whose clients keep nothing


@pytest.mark.slow
def test_a_personal_model_is_on_the_client_s_machine(hospitals: Path, tmp_path: Path) -> None:
    grid = nodes(hospitals, tmp_path / "clients")
    options = {"data.name": "patients.csv", "data.clients": 3, "data.partition.name": "iid", **TRAINED}
    run = fedpriv.load(play_apart(tmp_path / "apart", "fedper", None, grid, **options))
    with pytest.raises(fedpriv.UsageError, match="client 2 has its own projector, head, which is on the client's machine alone"):
        run.model(client=2)
