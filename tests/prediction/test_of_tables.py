"""Models of runs on tables: they predict what the runs' own tests counted, also when the data are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedpriv
from tests.notes import no_notes, noted
from tests.prediction.conftest import OF_TABLE, Train


def accuracy(predictions: pd.DataFrame, rows: pd.DataFrame) -> float:
    return float((predictions.prediction == rows.readmitted).mean())


def read(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False, dtype=str)


def test_the_server_s_model_has_the_accuracy_that_the_run_reports(of_table: fedpriv.Run, table: Path) -> None:
    predictions = of_table.predict(table / "test.csv")
    assert of_table.summary is not None
    assert accuracy(predictions, read(table / "test.csv")) == of_table.summary["protocols"]["global_test_final"]
    assert list(predictions.columns) == ["prediction", "probability_no", "probability_yes"]
    assert predictions.iloc[:, 1:].sum(axis=1).to_numpy() == pytest.approx(1)
    likeliest = predictions.iloc[:, 1:].to_numpy().argmax(1)
    assert [("no", "yes")[number] for number in likeliest] == list(predictions.prediction)
    assert set(predictions.prediction) == {"no", "yes"}  # or the accuracy would say little


def test_a_client_s_model_has_the_accuracy_of_the_client_s_test(personal: fedpriv.Run, table: Path) -> None:
    rows = read(table / "test.csv")
    reported, predicted = personal.records[-1]["per_client"]["accuracy"], []
    for number, name in enumerate("ABC"):
        own = rows[rows.hospital == name]
        predictions = personal.predict(own, client=name)
        assert accuracy(predictions, own) == pytest.approx(reported[number], abs=1e-12)
        pd.testing.assert_frame_equal(predictions, personal.predict(own, client=number))
        predicted.append(personal.predict(rows, client=number).probability_yes.to_numpy())
    assert not np.allclose(predicted[0], predicted[1])


def test_a_frame_keeps_its_index_and_other_columns_and_their_order_do_not_matter(of_table: fedpriv.Run, table: Path) -> None:
    rows = pd.read_csv(table / "test.csv")
    rows.index = pd.Index([f"row {number}" for number in range(len(rows))])
    predictions = of_table.predict(rows.drop(columns=["readmitted", "hospital", "id"]).iloc[:, ::-1].assign(other=object()))
    assert predictions.index.equals(rows.index)
    pd.testing.assert_frame_equal(predictions.reset_index(drop=True), of_table.predict(table / "test.csv"))
    parquet = table.parent / "rows.parquet"
    rows.to_parquet(parquet)
    pd.testing.assert_frame_equal(of_table.predict(parquet), of_table.predict(table / "test.csv"))


def test_rows_are_encoded_as_in_training_one_by_one_and_together(of_table: fedpriv.Run, table: Path) -> None:
    from fedpriv.simulation.reopening import reopened

    dataset = reopened(of_table.folder).dataset
    assert dataset.vectors is not None
    rows = pd.read_csv(table / "test.csv")
    assert torch.equal(of_table.inputs(rows), dataset.vectors[1])
    assert torch.equal(torch.cat([of_table.inputs(rows.iloc[[row]]) for row in range(40)]), dataset.vectors[1][:40])
    with torch.no_grad():
        logits = of_table.model()(of_table.inputs(rows))
    assert logits.softmax(1)[:, 1].numpy() == pytest.approx(of_table.predict(rows).probability_yes.to_numpy(), abs=1e-6)


def test_the_data_may_be_gone(train: Train, table: Path, tmp_path: Path) -> None:
    import shutil

    own = tmp_path / "table"
    shutil.copytree(table, own)
    run = train(method="fedper", dataset=str(own), **OF_TABLE)
    before = run.predict(table / "test.csv", client="B")
    shutil.rmtree(own)
    pd.testing.assert_frame_equal(fedpriv.load(run.path).predict(table / "test.csv", client="B"), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": None}, "the DataFrame lacks the column 'age' of training; its columns are: id, hospital, sex, crp"),
        ({"age": "old"}, "row 0: column 'age' is 'old', and numbers in training; leave a cell empty"),
        ({"age": float("inf")}, "row 0: column 'age' is inf"),
        ({"share": 0.5}, "column 'share' is written as plain numbers, and as % in training"),
        ({"age": "30%"}, "column 'age' is written as %, and as plain numbers in training"),
        ({"age": pd.Timestamp("2026-01-01")}, "column 'age' is written as date, and as plain numbers in training"),
        ({"age": [[1]]}, r"column 'age' is list<.*>, and numbers in training"),
    ],
)
def test_what_does_not_fit_is_named(of_table: fedpriv.Run, table: Path, change: dict[str, Any], message: str) -> None:
    rows = pd.read_csv(table / "test.csv").head(1)
    for name, value in change.items():
        rows = rows.drop(columns=name) if value is None else rows.assign(**{name: value})
    with pytest.raises(fedpriv.UsageError, match=message):
        of_table.predict(rows)


def test_bad_rows(of_table: fedpriv.Run, table: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(table / "test.csv")
    with pytest.raises(fedpriv.UsageError, match="the DataFrame has no rows"):
        of_table.predict(rows.head(0))
    with pytest.raises(fedpriv.UsageError, match="has the column 'age' more than once"):
        of_table.predict(pd.concat([rows, rows[["age"]]], axis=1))
    with pytest.raises(fedpriv.UsageError, match="rows of type int; expected a pandas DataFrame"):
        of_table.predict(3)
    with pytest.raises(fedpriv.UsageError, match="there is no file"):
        of_table.predict(tmp_path / "nowhere.csv")
    lines = (table / "test.csv").read_text().splitlines()
    odd = lines[2].split(",")
    (tmp_path / "odd.csv").write_text("\n".join([lines[0], lines[1], ",".join([*odd[:2], "?", *odd[3:]])]))
    with pytest.raises(fedpriv.UsageError, match=r"odd\.csv, line 3: column 'age' is '\?', and numbers in training"):
        of_table.predict(tmp_path / "odd.csv")


def test_missing_cells_are_as_in_training_and_unknown_levels_are_said(of_table: fedpriv.Run, table: Path) -> None:
    rows = pd.read_csv(table / "test.csv").head(3)
    with no_notes():  # in training, crp and smoker had gaps
        of_table.inputs(rows.assign(crp=None, smoker=None))
    with noted(r"column 'age': 3 of 3 values are missing, which none was in training, and are read as the mean there \("):
        missing = of_table.inputs(rows.assign(crp=None, age=float("nan"), smoker=None))
    columns = {column.name: column for column in _columns(of_table)}
    places = dict(zip(columns, np.cumsum([0, *(column.width for column in columns.values())]), strict=False))
    assert missing[:, places["age"]].tolist() == [0, 0, 0]  # the mean
    assert missing[:, places["crp"] : places["crp"] + 2].tolist() == [[0, 1]] * 3
    level = places["smoker"] + columns["smoker"].levels.index("")
    assert missing[:, level].tolist() == [1, 1, 1]
    with noted(r"column 'sex': 2 of 3 values have no entry of their own .*: 'male', 'x'"):
        unknown = of_table.inputs(rows.assign(sex=["x", "f", "male"]))
    other = places["sex"] + columns["sex"].width - 1
    assert unknown[:, other].tolist() == [1, 0, 1]


def _columns(run: fedpriv.Run) -> Any:
    from fedpriv.data.preprocessing.stored import Preprocessing

    return Preprocessing.load(run.path / "preprocessing.json").columns


def test_codes_are_levels_however_a_table_has_them(train: Train, tmp_path: Path) -> None:
    """A code is a text in training, and in another file or frame it may be a number."""
    codes = [f"{['1', '02', 'x'][number % 3]},{number % 7},{number % 2}" for number in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["code,b,label", *codes]))
    run = train(method="fedavg", dataset=str(tmp_path / "a.csv"), clients=2, partition="iid", rounds=1)
    (tmp_path / "b.csv").write_text("code,b\n1,3\n02,4\n")
    expected = run.inputs(pd.DataFrame({"code": ["1", "02"], "b": [3, 4]}))
    assert torch.equal(run.inputs(tmp_path / "b.csv"), expected)
    assert torch.equal(run.inputs(pd.DataFrame({"code": [1.0], "b": [3.0]})), expected[:1])
    assert expected[0].tolist() != expected[1].tolist()


def test_dates_are_read_from_files_and_from_texts(train: Train, tmp_path: Path) -> None:
    rows = [f"2026-01-{1 + number % 28:02},{number % 5},{number % 2}" for number in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["when,b,label", *rows]))
    keys: dict[str, Any] = {"data": {"features": ["when", "b"]}, "clients": 2, "partition": "iid", "rounds": 1}
    run = train(method="fedavg", dataset=str(tmp_path / "a.csv"), **keys)
    expected = run.inputs(tmp_path / "a.csv")
    as_texts = pd.read_csv(tmp_path / "a.csv")
    assert torch.equal(run.inputs(as_texts), expected) and expected[:, 0].std() == pytest.approx(1, abs=0.1)
    assert torch.equal(run.inputs(as_texts.assign(when=pd.to_datetime(as_texts.when))), expected)
    with pytest.raises(fedpriv.UsageError, match="row 0: column 'when' is 'yesterday', and dates in training"):
        run.inputs(as_texts.assign(when="yesterday"))


def test_numbers_in_an_array(train: Train) -> None:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    run = train(method="fedavg", dataset=(x, y), clients=3, partition="iid")
    named = pd.DataFrame(x[:20], columns=[f"x{number}" for number in range(x.shape[1])])
    pd.testing.assert_frame_equal(run.predict(x[:20]), run.predict(named))
    pd.testing.assert_frame_equal(run.predict(torch.from_numpy(x[:20])), run.predict(named))
    assert (run.predict(x).prediction.astype(int) == y).mean() > 0.8
