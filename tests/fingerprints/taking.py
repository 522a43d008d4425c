"""Play a run and take its fingerprint.

All that is used of fedpriv is its command and the files of a run folder: both outlive changes within.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

from fedpriv.cli import main
from tests.simulation.texts_and_pairs import write_texts

Settings = dict[str, Any]
"""Dotted keys of a config."""
Fingerprint = dict[str, Any]

TEXTS = "texts.csv"
"""A ``data.name`` that stands for a small file of texts, written for the run."""
BESIDE = ("balanced_accuracy", "f1_macro", "roc_auc", "average_precision", "recall", "brier", "calibration_error")
"""Scores that records have got since fingerprints are stored; they are functions of what is compared."""
HASHES = ("server", "clients", "wire", "records")
"""The parts of a fingerprint that are hashes, which differ between machines."""


def machine() -> dict[str, str]:
    """What the bits of results depend on: processor, instruction set, and torch's version."""
    return {"processor": _processor(), "instructions": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}


def _processor() -> str:
    """The processor's name; on Linux also family, model and stepping, since virtual machines hide the name."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    fields = [re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE) for key in ("model name", "cpu family", "model", "stepping")]
    return " ".join(match[1].strip() for match in fields if match) or platform.processor() or platform.machine()


def command(*arguments: object) -> dict[str, Any]:
    """The output of ``fedpriv ... --json``; an :class:`AssertionError` with its messages if it fails."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, f"fedpriv {' '.join(map(str, arguments))}\n{result.output}"
    return dict(json.loads(result.stdout.splitlines()[-1]))


def take(settings: Settings) -> Fingerprint:
    """Play a run and take its fingerprint.

    Returns:
        Hashes of the server's last state, of what the clients keep, of every message that crossed the wire (sorted by round and
        client: in which order clients answer decides nothing), and of the records. Numbers: round by round mean accuracy and
        training loss; the L2 norms of the last model and of what the last round changed in it; the bytes up and down.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if settings["data.name"] == TEXTS:
            settings = {**settings, "data.name": str(write_texts(folder / TEXTS))}
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        own_cache = patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder / "cache")})
        no_plots = patch("matplotlib.figure.Figure.savefig", lambda *figure, **options: None)  # they take longer than the runs
        with own_cache, no_plots:
            command("train", *flags, "--run-dir", folder / "run")
        return _fingerprint(folder / "run")


def _fingerprint(run: Path) -> Fingerprint:
    before, server = sorted(run.glob("checkpoints/server-*.safetensors"))[-2:]
    clients: dict[str, Path] = {}
    for path in sorted(run.glob("clients/client-*.safetensors")):  # client-<client>-<round>: the last round's counts
        clients[path.stem.rpartition("-")[0]] = path
    messages = sorted(run.glob("payloads/*/*.safetensors"))
    records = [_timeless(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [record["metrics"] for record in records]
    model, change = _model(server), _model(server) - _model(before)
    return {
        "server": _hash(_content(server)),
        "clients": _hash(part for name, path in clients.items() for part in (name.encode(), *_content(path))),
        "wire": _hash(part for path in messages for part in (str(path.relative_to(run)).encode(), path.read_bytes())),
        "records": _hash([json.dumps(records, sort_keys=True).encode()]),
        "accuracy": [round["accuracy"] for round in metrics if "accuracy" in round],
        "loss": [round["train_loss"] for round in metrics if "train_loss" in round],
        "norms": [float(model.norm()), float(change.norm())],
        "bytes": [metrics[-1]["total_bytes_up"], metrics[-1]["total_bytes_down"]],
    }


def _timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {name: value for name, value in record["metrics"].items() if name != "seconds" and not _is_beside(name)}
    kept = {name: value for name, value in record.items() if name not in ("payloads", "sha256")}  # checksums, also of the time
    per_client = {name: values for name, values in record["per_client"].items() if not _is_beside(name)}
    return {**kept, "metrics": metrics, "per_client": per_client, "time_ms": None}


def _is_beside(name: str) -> bool:
    of_server = name.removeprefix("global_") in BESIDE and name != "global_f1_macro"
    return of_server or name in ("accuracy_pooled", "lr") or name.startswith(BESIDE)


def _model(server: Path) -> Tensor:
    """All tensors of the model, in order of their names, as float64 ``(p,)``."""
    return torch.cat(
        [tensor.double().flatten() for name, tensor in sorted(load_file(server).items()) if name.startswith("model.")]
    )


def _content(path: Path) -> Iterator[bytes]:
    """Name, dtype, shape and bytes of each tensor of a file, in order of names."""
    for name, tensor in sorted(load_file(path).items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
        yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _hash(parts: Iterable[bytes]) -> str:
    """The first 64 bits of their SHA-256, in hex."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()[:16]
