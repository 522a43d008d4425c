"""The linear probe of a finished run, stored in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from fedpriv.config import DataConfig
from fedpriv.data.sources import load_data
from fedpriv.errors import UsageError
from fedpriv.evaluation.linear_probe import FRACTIONS, Protocol, Where, probe, samples
from fedpriv.evaluation.probe_during_run import require_encoder
from fedpriv.evaluation.published_probe import PUBLISHED, published_probe
from fedpriv.files import load_tensors, save_json
from fedpriv.simulation.reopening import reopened
from fedpriv.storage.run_folder import RunFolder


def probe_run(
    run_dir: Path,
    dataset: str | None = None,
    data_dir: Path | None = None,
    fractions: Sequence[float] | None = None,
    features: Where | Literal["published"] = "pooled",
    seed: int = 0,
    device: str | None = None,
) -> dict[str, Any]:
    """Probe the final encoder of a finished run, and store a JSON for each fraction in its folder ``probe/``.

    Args:
        dataset: the data set, if not the run's. Its images are resized to the encoder's input, and scaled as the run's
            ``data.pixels`` says (``standardised``: by the mean and deviation of this set).
        data_dir: the data folder, if not the run's.
        features: which layer of the encoder is probed; ``published``: the protocol of
            :mod:`fedpriv.evaluation.published_probe`.

    Raises:
        UsageError: the run is not finished, its data have changed, the server has no whole encoder, or the data set or a fraction
            does not fit.
    """
    folder = RunFolder.open(run_dir)
    if folder.summary() is None:
        raise UsageError(f"{run_dir} is not finished; {folder.how_to_resume} finishes it")
    config = folder.config()
    if data_dir is not None:
        config = config.with_values("data", dir=data_dir)
    federation = reopened(folder, config.model_copy(update={"device": device or config.device}))
    require_encoder(federation.method)
    resident, trained_on = federation.resident, federation.dataset
    if trained_on.texts is not None:
        raise UsageError(f"a probe is for encoders of images, but {run_dir} was trained on {trained_on.name}, which holds texts")
    resident.space.pack(load_tensors(folder.server_file()), resident.row)
    other = DataConfig(name=str(dataset), dir=config.data.dir, pixels=config.data.pixels)
    probed = trained_on if dataset in (None, trained_on.name) else load_data(other)
    train, test = samples(probed, trained_on.input_shape, resident.device, normalised=features != "published")
    encoder, classes, shares_of_labels = resident.net.encoder, len(probed.classes), fractions or FRACTIONS
    if features == "published":
        results = published_probe(encoder, train, test, classes, shares_of_labels, seed)
    else:
        results = probe(encoder, train, test, classes, shares_of_labels, seed, features)
    name = Path(probed.name).name
    shares = torch.bincount(test.labels) / len(test.labels)
    facts = {
        "run": folder.path.name,
        "run_id": folder.facts["run_id"],
        "dataset": name,
        "trained_on": Path(trained_on.name).name,
        "features": features,
        "seed": seed,
        "train_samples": len(train.labels),
        "test_samples": len(test.labels),
        "largest_class": float(shares.max()),
        "protocol": asdict(PUBLISHED if features == "published" else Protocol()),
    }
    with folder.writing("the probe"):
        folder.probe.mkdir(exist_ok=True)
        for result in results:
            file = f"{name}-{result.fraction:g}{'' if features == 'pooled' else '-' + features}.json"
            save_json(folder.probe / file, facts | asdict(result))
    return facts | {"results": [asdict(result) for result in results]}
