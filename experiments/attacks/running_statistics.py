"""Leakage of a client's images through BatchNorm's running statistics: membership, and mean colour.

Messages come from runs on CIFAR-10; candidates are the members behind a message, and test images.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedpriv
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import normalise_images
from fedpriv.attacks.inference.running_statistics import mean_colour, shares_of_batches
from fedpriv.attacks.scoring.operating_points import area
from fedpriv.audit.record.run import RunRecord
from fedpriv.experiments.markdown import table

CLIENTS, CHUNK = 4, 64
"""Number of messages per setting, and of images per forward pass."""
RUN: Mapping[str, Any] = {
    "data.name": "cifar10", "data.clients": CLIENTS, "data.partition.name": "iid", "model.name": "cnn10_batchnorm",
    "model.projection": None, "train.rounds": 1, "train.participation": 1.0, "train.lr": 0.05, "train.momentum": 0.0,
    "wire.keep_payloads": "all", "eval.last": 1, "tracking.uri": "none",
}  # fmt: skip
MASK = {"wire.transforms": [{"name": "mask", "names": ["*.running_*"]}]}
SETTINGS: Mapping[str, tuple[int, int, int, dict[str, Any]]] = {
    "one step on 5 samples": (5, 1, 315, {}),
    "one step on 20 samples": (20, 1, 500, {}),
    "one step on 50 samples": (50, 1, 500, {}),
    "one step on 50 samples, resnet9_narrow": (50, 1, 500, {"model.name": "resnet9_narrow"}),
    "five steps on 5 samples": (5, 5, 315, {}),
    "25 steps of 10 on 50 samples": (50, 25, 500, {"train.batch_size": 10, "train.lr": 0.01}),
    "one step on 20 samples, Gaussian noise of variance 1e-6": (
        20, 1, 500, {"wire.transforms": [{"name": "gaussian", "variance": 1e-6}]},
    ),
    "one step on 20 samples, FedBN": (20, 1, 500, {"method.name": "fedbn"}),
    "one step on 20 samples, running statistics masked": (20, 1, 500, MASK),
}  # fmt: skip
"""By setting: samples per client, local steps, candidates, and differences from :data:`RUN`."""


def measure(data_dir: str) -> list[dict[str, Any]]:
    """A row per setting; takes a few CPU minutes.

    Args:
        data_dir: the folder of the data sets, as in ``FEDPRIV_DATA``.
    """
    return [_row(data_dir, name, *setting) for name, setting in SETTINGS.items()]


def _row(data_dir: str, name: str, samples: int, steps: int, candidates: int, config: Mapping[str, Any]) -> dict[str, Any]:
    began, run = time.process_time(), {"data.limit": CLIENTS * samples, "train.batch_size": samples, "train.local_steps": steps}
    with tempfile.TemporaryDirectory() as folder:
        where = {"run_dir": Path(folder) / "run", "data.dir": data_dir}
        trained = fedpriv.train(**{**RUN, "method.name": "fedavg", **where, **run, **config})
        record = RunRecord(trained.path)
        messages = [_attacked(record, *which, candidates) for which in record.messages()]
    refused = [message["refused"] for message in messages if "refused" in message]
    row = {"setting": name, "samples": samples, "candidates": candidates, "messages": len(messages), "refused": refused[:1]}
    if not refused:
        row |= {what: mean(message[what] for message in messages) for what in ("auc", "named")}
        row |= {what: median(message[what] for message in messages) for what in ("colour_error", "colour_baseline")}
    return row | {"cpu_seconds": round(time.process_time() - began, 1)}


def _attacked(record: RunRecord, round: int, client: int, candidates: int) -> dict[str, Any]:
    """AUC, share of members among the top-scoring candidates (as many as members), and errors of the mean colour."""
    seen, truth = record.observation(record.message(round, client), ThreatModel()), record.truth(client).images
    public = record.federation.dataset.test_images[: candidates - len(truth)].float() / 255
    images, members = torch.cat([truth, public]), np.arange(candidates) < len(truth)
    try:
        scores, colour = shares_of_batches(seen, lambda: _parts(seen, images)), mean_colour(seen)
    except Inapplicable as reason:
        return {"refused": str(reason)}
    true, guess = truth.mean((0, 2, 3)), torch.tensor(seen.mean)
    return {
        "auc": area(scores, members, 0.95).value,
        "named": float(members[np.argsort(-scores)[: len(truth)]].mean()),
        "colour_error": float((colour - true).abs().mean()),
        "colour_baseline": float((guess - true).abs().mean()),
    }


def _parts(seen: Observation, images: Tensor) -> Iterator[Tensor]:
    return (normalise_images(seen, part) for part in images.split(CHUNK))


def render(rows: list[dict[str, Any]]) -> str:
    """The section of the report."""
    head = "setting | candidates | before | members named | AUC | mean colour off by | the data set's mean off by | CPU s"
    lines = [
        [
            row["setting"], row["candidates"], "not attacked",
            *(
                [f"none: {row['refused'][0]}", "–", "–", "–"]
                if row["refused"]
                else [f"{row['named']:.0%}", f"{row['auc']:.3f}", f"{row['colour_error']:.3f}", f"{row['colour_baseline']:.3f}"]
            ),
            row["cpu_seconds"],
        ]
        for row in rows
    ]  # fmt: skip
    about = (
        "BatchNorm's running statistics are averages of numbers that each sample has by itself; non-negative least squares finds "
        "whose they are (`attacks/inference/running_statistics.py`). CIFAR-10, `cnn10_batchnorm` unless noted, first round; "
        f"{CLIENTS} messages of fedpriv's own runs in each setting. Candidates are the client's samples and test images. Named: "
        "members among as many candidates of the highest scores as there are members. The colour is in [0, 1]."
    )
    return "\n\n".join(["## Running statistics of BatchNorm", about, table(head, lines)])
