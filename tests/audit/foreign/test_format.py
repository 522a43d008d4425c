"""A record that is written as the documentation says, without fedpriv, is audited."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import save
from torch import nn

import fedpriv
from fedpriv.audit.foreign.audit import AuditedFolder
from fedpriv.audit.membership.label_leaks import infer_labels
from fedpriv.recorder import layout
from fedpriv.recorder.layout import Facts, Line

Arrays = dict[str, npt.NDArray[np.float32]]
PAGE = Path(__file__).parents[3] / "docs" / "other-frameworks.md"
CLIENTS, PIXELS, CLASSES, LR = ("a", "b/ü"), 16, 3, 0.5


def write(folder: Path) -> None:
    """Two clients of softmax regression for two rounds, one step of SGD each; only json, hashlib, numpy and safetensors."""
    (folder / "messages").mkdir(parents=True)
    (folder / "truth").mkdir()
    facts = {
        "format": 1,
        "name": "by hand",
        "classes": CLASSES,
        "input_shape": [1, 4, 4],
        "training": {"optimizer": "sgd", "lr": LR, "local_steps": 1},
    }
    (folder / "record.json").write_text(json.dumps(facts), encoding="utf-8")
    draws = np.random.default_rng(0)
    data = {name: (draws.random((4, 1, 4, 4), np.float32), np.array([0, 0, 1, client])) for client, name in enumerate(CLIENTS, 1)}
    for name, (images, labels) in data.items():
        place = name if re.fullmatch(r"[\w-]{1,80}", name) else hashlib.sha256(name.encode()).hexdigest()[:32]
        (folder / "truth" / f"{place}.safetensors").write_bytes(save({"images": images, "labels": labels}))
    public = {"images": draws.random((30, 1, 4, 4), np.float32), "labels": np.arange(30) % CLASSES}
    (folder / "public.safetensors").write_bytes(save(public))
    weights: Arrays = {"0.weight": np.zeros((CLASSES, PIXELS), np.float32), "0.bias": np.zeros(CLASSES, np.float32)}
    with (folder / "messages.jsonl").open("w", encoding="utf-8") as lines:
        for round in (1, 2):
            answers = [trained(weights, *samples) for samples in data.values()]
            for name, answer in zip(data, answers, strict=True):
                for direction, tensors in (("down", weights), ("up", answer)):
                    content = save(tensors)
                    file = f"messages/{round}-{CLIENTS.index(name)}-{direction}.safetensors"
                    (folder / file).write_bytes(content)
                    digest = hashlib.sha256(content).hexdigest()
                    line = {"round": round, "client": name, "direction": direction, "kind": "weights", "file": file}
                    lines.write(json.dumps({**line, "sha256": digest}) + "\n")
            weights = {key: np.mean([answer[key] for answer in answers], axis=0) for key in weights}


def trained(weights: Arrays, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> Arrays:
    flat = images.reshape(len(labels), -1)
    logits = flat @ weights["0.weight"].T + weights["0.bias"]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    errors = (shares - np.eye(CLASSES)[labels]) / len(labels)
    gradient = {"0.weight": errors.T @ flat, "0.bias": errors.sum(0)}
    return {name: (weights[name] - LR * gradient[name]).astype(np.float32) for name in weights}


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(PIXELS, CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = super().forward(images.flatten(1))
        return logits


def test_a_record_written_by_hand_is_read_and_its_training_agrees(tmp_path: Path) -> None:
    write(tmp_path)
    record = AuditedFolder(tmp_path, Net())
    assert record.messages() == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert record.cannot_simulate is None and "as the record declares" in record.sentence  # numpy's step is torch's
    assert infer_labels(record, 1, 1).true.tolist() == [2, 1, 1]


@pytest.mark.slow
def test_a_record_written_by_hand_is_audited(tmp_path: Path) -> None:
    write(tmp_path)
    report = fedpriv.audit(tmp_path, model=Net(), messages=1, membership_shadows=4, label_shadows=4, singles=1)
    assert report.answer == "Members were identified" and report.met("recovered>0.05") is not None


def test_the_page_names_every_part_of_the_format() -> None:
    page = PAGE.read_text(encoding="utf-8")
    form = page[page.index("## The form of a record") :]
    kinds = (Facts, Line, layout.Training, layout.NumberColumn, layout.CategoryColumn, layout.End, layout.Refusal)
    fields = {field for kind in kinds for field in kind.__dataclass_fields__}
    assert not [field for field in sorted(fields) if f"`{field}`" not in form]
    for file in (layout.FACTS, layout.LINES, layout.MESSAGES, layout.TRUTH, layout.PUBLIC):
        assert f"`{file}" in form
