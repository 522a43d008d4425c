"""``fedpriv predict`` and ``fedpriv export``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from click.testing import Result

from fedpriv.config import load_config
from fedpriv.simulation import run

Fedpriv = Callable[..., Result]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("table") / "rows.csv"
    lines = [f"00{n},{'AB'[n % 2]},{n % 9},{'fm'[n % 2]},{'yes' if n % 9 > 4 else 'no'}" for n in range(80)]
    file.write_text("\n".join(["code,site,age,sex,ill", *lines]) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def trained(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose heads stay with its two clients."""
    folder = tmp_path_factory.mktemp("runs") / "table"
    values = {
        "method.name": "fedper",
        "data.name": str(rows),
        "data.label": "ill",
        "data.drop": ["code"],
        "data.partition.name": "by_column",
        "data.partition.column": "site",
        "train.rounds": 1,
        "train.local_epochs": 1,
        "tracking.uri": "none",
        "run_dir": str(folder),
    }
    silent = lambda *_: None  # noqa: E731
    run.start(load_config(None, values), folder.parent, silent, silent, silent)
    return folder


def test_predictions_are_written_and_printed(fedpriv: Fedpriv, trained: Path, rows: Path) -> None:
    written = fedpriv("predict", trained, rows, "--client", "A", "--keep", "code", "--output", "p.csv", "--json")
    assert written.exit_code == 0, written.output
    table = pd.read_csv("p.csv", dtype={"code": str})
    assert list(table.columns) == ["code", "prediction", "probability_no", "probability_yes"]
    assert list(table.code) == [f"00{n}" for n in range(80)]  # as they are in the file
    answer = json.loads(written.stdout.splitlines()[-1])
    assert answer == {"run": "table", "rows": 80, "predicted": dict(table.prediction.value_counts()), "output": "p.csv"}

    printed = fedpriv("predict", trained, rows, "--client", "0")
    assert printed.exit_code == 0, printed.output
    header, *lines = [line for line in printed.stdout.splitlines() if "," in line]
    assert header == "prediction,probability_no,probability_yes" and len(lines) == 80
    assert [line.partition(",")[0] for line in lines] == list(table.prediction)

    parquet = fedpriv("predict", trained, rows, "--client", "1", "--output", "p.parquet")
    assert parquet.exit_code == 0 and "80 predictions in p.parquet: " in parquet.stdout
    stored = pd.read_parquet("p.parquet")
    assert list(stored.columns) == list(table.columns)[1:] and not stored.probability_yes.equals(table.probability_yes)
    listed = json.loads(fedpriv("predict", trained, rows, "--client", "1", "--json").stdout.splitlines()[-1])
    assert listed["predictions"] == stored.to_dict("records")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rows"], "under fedper each client has its own projector, head"),
        (["rows", "--client", "C"], "there is no client 'C'; the clients are 0 to 1, or a name: A, B"),
        (["rows", "--client", "2"], "there is no client 2"),
        (["nowhere.csv", "--client", "0"], "there is no file nowhere.csv"),
        (
            ["lacking.csv", "--client", "0", "--output", "p.csv"],
            "lacking.csv lacks the column 'sex' of training; its columns are: age",
        ),
        (["rows", "--client", "0", "--keep", "id"], "has no column 'id'; its columns are: code, site, age, sex, ill"),
        (["rows", "--client", "0", "--output", "p.txt"], "p.txt is not the name of a .csv or .parquet file, such as p.csv"),
        (["rows", "--client", "0", "--output", "no/p.csv"], "cannot write no/p.csv: there is no folder"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    fedpriv: Fedpriv, trained: Path, rows: Path, arguments: list[str], message: str
) -> None:
    Path("lacking.csv").write_text("age\n3\n")
    done = fedpriv("predict", trained, *(rows if argument == "rows" else argument for argument in arguments))
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    assert [path.name for path in Path().iterdir()] == ["lacking.csv"]


def test_unknown_levels_are_said_beside_the_predictions(fedpriv: Fedpriv, trained: Path) -> None:
    Path("new.csv").write_text("age,sex\n3,f\n4,x\n")
    done = fedpriv("predict", trained, "new.csv", "--client", "0")
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 3
    assert "fedpriv: column 'sex': 1 of 2 values have no entry of their own" in done.stderr


def test_a_model_is_exported(fedpriv: Fedpriv, trained: Path) -> None:
    done = fedpriv("export", trained, "--output", "model.pt2", "--client", "B", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1]) == {"run": "table", "format": "pt2", "output": "model.pt2"}
    assert Path("model.pt2").stat().st_size > 1000
    refused = fedpriv("export", trained, "--output", "model.bin")
    assert refused.exit_code == 2 and "ends in .pt2, such as model.pt2" in refused.stderr
