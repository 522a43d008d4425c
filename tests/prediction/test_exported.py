"""Exported models, in processes that know nothing of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedpriv
from fedpriv.data.sources import load_data

PLAIN = """
import json, sys
import numpy as np, torch
files = {"preprocessing.json": ""}
program = torch.export.load(sys.argv[1], extra_files=files).module()
inputs = torch.from_numpy(np.load(sys.argv[2]))
with torch.no_grad():
    np.save(sys.argv[3], program(inputs).numpy())
assert not [name for name in sys.modules if name.startswith("fedpriv")]
print(json.dumps(json.loads(files["preprocessing.json"])["classes"]))
"""


def in_plain_torch(program: Path, inputs: torch.Tensor, folder: Path) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Logits of an exported program in a process with torch alone, and the classes that it names."""
    np.save(folder / "inputs.npy", inputs.numpy())
    arguments = [str(program), str(folder / "inputs.npy"), str(folder / "logits.npy")]
    done = subprocess.run([sys.executable, "-c", PLAIN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return np.load(folder / "logits.npy"), json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("client", [None, 1])
def test_a_program_gives_the_model_s_logits(
    client: int | None, of_table: fedpriv.Run, personal: fedpriv.Run, table: Path, tmp_path: Path
) -> None:
    run = of_table if client is None else personal
    written = run.export(tmp_path / "model.pt2", client=client)
    assert written == tmp_path / "model.pt2"
    inputs = run.inputs(table / "test.csv")
    logits, classes = in_plain_torch(written, inputs, tmp_path)
    with torch.no_grad():
        assert np.array_equal(logits, run.model(client)(inputs).numpy())
    assert classes == ["no", "yes"]
    assert torch.export.load(written).module()(inputs[:1]).shape == (1, 2)


def test_where_a_model_cannot_be_written(of_table: fedpriv.Run, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(fedpriv.UsageError, match=r"ends in \.pt2, such as model\.pt2"):
        of_table.export(tmp_path / "model.bin")
    with pytest.raises(fedpriv.UsageError, match="there is no folder"):
        of_table.export(tmp_path / "nowhere" / "model.pt2")
    with pytest.raises(fedpriv.UsageError, match="is there already"):
        of_table.export(tmp_path / "there", format="mlflow")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.slow
def test_mlflow_predicts_raw_rows(of_table: fedpriv.Run, table: Path, tmp_path: Path) -> None:
    """By its own command, in a process of its own."""
    model, output = of_table.export(tmp_path / "model", format="mlflow"), tmp_path / "predictions.json"
    mlflow = Path(sys.executable).parent / "mlflow"
    command = [mlflow, "models", "predict", "-m", model, "-i", table / "test.csv", "-o", output, "-t", "csv"]
    done = subprocess.run([*map(str, command), "--env-manager", "local"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    predicted = pd.DataFrame(json.loads(output.read_text())["predictions"])
    pd.testing.assert_frame_equal(predicted, of_table.predict(table / "test.csv"))


@pytest.mark.slow
def test_mlflow_loads_a_model_with_a_signature_and_an_example(of_table: fedpriv.Run, table: Path, tmp_path: Path) -> None:
    import mlflow

    path = str(of_table.export(tmp_path / "model", format="mlflow"))
    info = mlflow.models.get_model_info(path)
    assert info.signature.inputs.input_names() == ["age", "sex", "crp", "smoker", "share"]
    assert info.metadata["columns"]["age"] == "number" and info.metadata["columns"]["share"] == "number, written with %"
    assert info.metadata["columns"]["sex"] in ("one of 'f', 'm'", "one of 'm', 'f'")
    outputs = {column.name: column.type.name for column in info.signature.outputs.inputs}
    assert outputs == {"prediction": "string", "probability_no": "double", "probability_yes": "double"}
    loaded = mlflow.pyfunc.load_model(path)
    example = loaded.input_example
    assert len(example) == 1 and float(example.age[0]) == pytest.approx(_mean(of_table, "age"))
    pd.testing.assert_frame_equal(loaded.predict(example), of_table.predict(example))
    rows = pd.read_csv(table / "test.csv")
    pd.testing.assert_frame_equal(loaded.predict(rows), of_table.predict(rows))
    program = mlflow.pytorch.load_model(path)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        assert torch.equal(program(of_table.inputs(rows)), of_table.model()(of_table.inputs(rows)))


def _mean(run: fedpriv.Run, name: str) -> float:
    from fedpriv.data.preprocessing.stored import Preprocessing

    (column,) = [column for column in Preprocessing.load(run.path / "preprocessing.json").columns if column.name == name]
    return float(getattr(column, "mean"))  # noqa: B009


@pytest.mark.slow
def test_mlflow_takes_images(small_digits: fedpriv.Run, tmp_path: Path) -> None:
    import mlflow

    loaded = mlflow.pyfunc.load_model(str(small_digits.export(tmp_path / "model", format="mlflow")))
    images = load_data(small_digits.config.data).test_images[:7, 0].numpy()
    pd.testing.assert_frame_equal(loaded.predict(images), small_digits.predict(images))


@pytest.mark.slow
def test_mlflow_takes_texts(of_texts: fedpriv.Run, texts: Path, tmp_path: Path) -> None:
    import mlflow

    loaded = mlflow.pyfunc.load_model(str(of_texts.export(tmp_path / "model", format="mlflow")))
    rows = pd.read_csv(texts / "test.csv")[["text"]].head(9)
    for some in (rows, rows.tail(1)):
        expected = of_texts.predict(some)
        found = loaded.predict(some)
        assert list(found.prediction) == list(expected.prediction)
        np.testing.assert_allclose(found.iloc[:, 1:], expected.iloc[:, 1:], atol=1e-6)
