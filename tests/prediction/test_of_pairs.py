"""Models of runs on image-text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import PIL.Image
import pytest

import fedpriv
from fedpriv.data.sources import load_data
from fedpriv.data.synthetic_pairs import write_pairs
from tests.prediction.conftest import Train


@pytest.mark.slow
@pytest.mark.parametrize("tune", ["full", "head"])
def test_the_server_s_model_has_the_accuracy_that_the_run_reports(tune: str, train: Train, tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs", 60, 30, 32, 0)
    model = {"backbone": "moon_cnn", "pretrained": False, "projection": None, "encoder": "tiny", "tune": tune}
    options: dict[str, Any] = {"partition": "iid", "clients": 2, "rounds": 1, "local_epochs": 1, "lr": 0.05}
    keys = {f"model.{name}": value for name, value in model.items()}
    run = train(method="fedavg", dataset=str(tmp_path / "pairs"), **options, **keys, **{"data.max_tokens": 16})
    dataset = load_data(run.config.data)
    assert dataset.images is not None and dataset.texts is not None and run.summary is not None
    images, texts = dataset.images[1], dataset.texts[1]
    predictions = run.predict((images, texts))
    truth = [dataset.classes[label] for label in dataset.test_labels]
    assert (predictions.prediction == truth).mean() == run.summary["protocols"]["global_test_final"]
    assert predictions.iloc[:, 1:].std().max() > 0  # the samples differ

    (tmp_path / "files").mkdir()
    for number, image in enumerate(images[:3]):
        PIL.Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "files" / f"{number}.png")
    rows = pd.DataFrame({"image": [f"{number}.png" for number in range(3)], "text": texts[:3]})
    rows.to_csv(tmp_path / "files" / "rows.csv", index=False)
    few = run.predict({"image": images[:3], "text": texts[:3]})
    pd.testing.assert_frame_equal(run.predict(tmp_path / "files" / "rows.csv"), few)
    with pytest.raises(fedpriv.UsageError, match="3 images and 2 texts; a pair is one of each"):
        run.predict((images[:3], texts[:2]))
    with pytest.raises(fedpriv.UsageError, match=r"pairs of type list; expected \(images, texts\)"):
        run.predict([images, texts])
    with pytest.raises(fedpriv.UsageError, match="--format mlflow is for rows of a table, images and texts"):
        run.export(tmp_path / "model", format="mlflow")
