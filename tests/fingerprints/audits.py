"""Golden audits of tiny runs: findings, answer, and the page without its pictures.

Attacks take hardly any steps, and their controls count as passed, so that an audit takes seconds; recovery rates mean nothing.
These test how findings become rows, sentences and a page.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

import fedpriv
from fedpriv.audit.public import Report
from fedpriv.audit.results.audit import Audit
from fedpriv.audit.results.stored import from_json
from tests.deploy.apart import play_apart
from tests.simulation.small import play
from tests.simulation.texts_and_pairs import pairs, pairs_folder, texts, write_texts

FOLDER = Path(__file__).with_name("golden")
KEPT: dict[str, Any] = {"wire.keep_payloads": "all"}
TINY: dict[str, Any] = {
    **KEPT, "data.limit": 200, "data.clients": 4, "model.projection": 8, "train.rounds": 2, "train.participation": 1.0,
}  # fmt: skip
EXTENT = {"messages": 1, "label_shadows": 4, "membership_shadows": 4, "singles": 1}
VARIES = {"created": "2026-01-01T00:00:00+00:00", "run_id": "0" * 32, "versions": {}}
"""Replacements for values of findings that differ between two audits of one run."""
LONG = 20
"""Smallest number of points of a curve that is stored as a hash."""
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+|<style>.*?</style>", re.DOTALL)
_CURVE = re.compile(r'(?<=d=")[^"]{100,}')


def _image_run(method: str = "fedavg", **more: Any) -> Callable[[Path], Report]:
    def taken(folder: Path) -> Report:
        play(folder / "run", method, **{**TINY, **more})
        return fedpriv.audit(folder / "run", **EXTENT)

    return taken


def _text_run(folder: Path) -> Report:
    play(folder / "run", "fedavg", **texts(write_texts(folder / "texts.csv"), **KEPT))
    return fedpriv.audit(folder / "run", **EXTENT)


def _pair_run(folder: Path) -> Report:
    play(folder / "run", "fedavg", **pairs(pairs_folder(folder / "pairs"), **KEPT))
    return fedpriv.audit(folder / "run", **EXTENT)


def _table_run(folder: Path) -> Report:
    draw = torch.Generator().manual_seed(0)
    columns = torch.randn(80, 3, generator=draw).numpy().round(3)
    frame = pd.DataFrame(columns, columns=["a", "b", "c"])
    frame["label"] = ["no" if value < 0 else "yes" for value in columns[:, 0]]
    frame.to_csv(folder / "table.csv", index=False)
    table = {"data.name": str(folder / "table.csv"), "data.partition.name": "iid", "data.clients": 4, "train.participation": 1.0}
    play(folder / "run", "fedavg", **{**KEPT, **table, "train.rounds": 2})
    return fedpriv.audit(folder / "run", **EXTENT)


def _deployed_run(folder: Path) -> Report:
    play_apart(folder / "run", "fedavg", **TINY)
    return fedpriv.audit(folder / "run", **EXTENT)


def _cut_budget(folder: Path) -> Report:
    play(folder / "run", "fedavg", **TINY)
    return fedpriv.audit(folder / "run", budget=1e-6, **EXTENT)


def _single_update(folder: Path) -> Report:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    images, labels = torch.rand(4, 1, 8, 8), torch.arange(4)
    gradient = torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))
    return fedpriv.audit_update(net, list(gradient), (images, labels))


AUDITS: dict[str, Callable[[Path], Report]] = {
    "plain": _image_run(),
    "class centres": _image_run("mpfedcon"),
    "gradient among the statistics": _image_run("scaffold"),
    "masked": _image_run(**{"wire.transforms": [{"name": "mask", "last": 1}]}),
    "noise": _image_run(**{"wire.transforms": [{"name": "gaussian", "variance": 1e-4}]}),
    "sample-level DP": _image_run(**{"privacy.level": "sample", "privacy.noise": 1.0}),
    "canaries": _image_run(**{"privacy.level": "sample", "privacy.noise": 0.5, "privacy.canaries": 8}),
    "sum": _image_run(**{"wire.secure_aggregation": True}),
    "texts": _text_run,
    "pairs": _pair_run,
    "table": _table_run,
    "deployed": _deployed_run,
    "cut budget": _cut_budget,
    "single update": _single_update,
}
"""By name, a function that audits a new run in a folder."""


def take(name: str, folder: Path) -> dict[str, Any]:
    """Take an audit: its findings, its answer, and its page as lines."""
    report = AUDITS[name](folder)
    report.audit = from_json(Audit, _constant(report.to_json()))
    page = _CURVE.sub(lambda path: _hash(path[0]), _PICTURE.sub("", _without(report.html(), folder)))
    findings = json.loads(_without(json.dumps(_short(report.to_json())), folder))
    return {"answer": report.answer, "findings": findings, "page": page.splitlines()}


def form(value: Any) -> Any:
    """The keys of findings and the types of their values, equal on any machine; of a list, those of its first item."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _constant(value: Any, key: str = "") -> Any:
    """Findings with fixed values for what varies; durations and speeds become 0."""
    if isinstance(value, dict):
        return {name: VARIES.get(name, _constant(item, "seconds" if key == "seconds" else name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_constant(item, key) for item in value]
    return 0.0 if isinstance(value, float) and "second" in key else value


def _short(value: Any) -> Any:
    """Findings with long curves replaced by hashes."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        is_curve = len(value) >= LONG and isinstance(value[0], list)
        return _hash(json.dumps(value)) if is_curve else [_short(item) for item in value]
    return value


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without(text: str, folder: Path) -> str:
    return text.replace(str(folder), "FOLDER")
