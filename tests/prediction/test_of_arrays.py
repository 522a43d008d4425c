"""Models of runs on arrays such as time series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedpriv
from tests.prediction.conftest import Train


def test_arrays_are_scaled_as_in_training(train: Train, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = (draw.normal(3, 2, (60, 2, 5)) + 4 * y[:, None, None] * np.array([1, 0])[:, None]).astype(np.float32)
    run = train(method="fedavg", dataset=(x, y), clients=2, partition="iid", model="mlp")
    predictions = run.predict(x)
    assert (predictions.prediction.astype(int) == y).mean() > 0.9
    pd.testing.assert_frame_equal(run.predict(torch.from_numpy(x)), predictions)
    pd.testing.assert_frame_equal(run.predict(list(x)), predictions)
    from fedpriv.simulation.reopening import reopened

    stored = reopened(run.folder).dataset.vectors
    assert stored is not None
    inputs = {row.tobytes() for row in run.inputs(x).numpy()}
    assert inputs == {row.tobytes() for part in stored for row in part.numpy()}
    (file,) = Path(run.config.data.name).glob("train.parquet")
    pd.testing.assert_frame_equal(run.predict(file), predictions)
    for samples, message in ((x[:, :1], r"expected numbers of shape \(N, 2, 5\)"), (x * np.nan, "sample 0 .* holds a NaN")):
        with pytest.raises(fedpriv.UsageError, match=message):
            run.predict(samples)
