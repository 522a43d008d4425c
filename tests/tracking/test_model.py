"""The server's final model: which part of the net it is, and loading it from MLflow."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fake_runs import make_run

import fedpriv
from fedpriv.config import RunConfig, parse
from fedpriv.errors import FedprivError
from fedpriv.files import load_tensors
from fedpriv.simulation import run
from fedpriv.simulation.finished.final_model import part_at_server
from fedpriv.simulation.setup import build
from fedpriv.tracking import sync


def config(method: str, *transforms: dict[str, Any], **tracking: Any) -> RunConfig:
    values = {
        "method": {"name": method},
        "data": {"clients": 2, "limit": 200},
        "train": {"rounds": 1},
        "wire": {"transforms": transforms},
    }
    return parse(RunConfig, values | {"tracking": tracking}, "the test")


@pytest.mark.parametrize(
    ("method", "transforms", "part"),
    [
        ("fedavg", [], "classifier"),
        ("fedavg-ft", [], "classifier"),
        ("fedper", [], "encoder"),
        ("fedavg", [{"name": "mask", "last": 1}], "encoder"),
        ("l-dawa", [], "encoder"),
        ("local", [], None),
    ],
)
def test_a_server_has_what_its_clients_send(method: str, transforms: list[dict[str, Any]], part: str | None) -> None:
    assert part_at_server(build(config(method, *transforms)).agreement) == part


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_mlflow_gives_the_model_back(method: str, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    from mlflow import MlflowClient

    warnings: list[str] = []
    uri = f"sqlite:///{runs_dir / 'mlflow.db'}"
    chosen = config(method, uri=uri, log_model=True)
    outcome = run.start(chosen, runs_dir, lambda *_: None, lambda _: None, warnings.append)
    assert outcome.tracked and not warnings
    client = MlflowClient(uri)
    (logged,) = client.search_logged_models([client.get_experiment_by_name("fedpriv").experiment_id])
    of = client.get_run(str(logged.source_run_id))
    assert [model.model_id for model in of.outputs.model_outputs] == [logged.model_id]

    net = build(chosen).resident.net.eval()
    missing = net.load_state_dict(load_tensors(outcome.folder.weights / "server.safetensors"), strict=False)
    assert not missing.unexpected_keys and (method == "fedper") == bool(missing.missing_keys)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)  # `mlflow.set_tracking_uri` sets it for all tests that follow
    loaded = mlflow.pytorch.load_model(f"runs:/{of.info.run_id}/model")  # type: ignore[no-untyped-call]
    for samples in (1, 3):
        x = torch.rand(samples, 1, 8, 8)
        assert torch.equal(loaded(x), net(x).logits if method == "fedavg" else net.encode(x))
    signature = mlflow.models.get_model_info(f"models:/{logged.model_id}").signature
    if method == "fedavg":  # raw images -> predictions
        assert signature.inputs.inputs[0].shape == (-1, 8, 8)
        images = build(chosen).dataset.test_images[:9, 0].numpy()
        predicted = mlflow.pyfunc.load_model(f"runs:/{of.info.run_id}/model").predict(images)
        pd.testing.assert_frame_equal(predicted, fedpriv.load(outcome.folder.path).predict(images))
    else:
        assert signature.inputs.inputs[0].shape == (-1, 1, 8, 8) and signature.outputs.inputs[0].shape[1] == loaded(x).shape[1]
    note = logged.tags["mlflow.note.content"]
    assert ("head never leaves the clients" in note) == (method == "fedper")
    assert any("head" in name for name in loaded.state_dict()) == (method == "fedavg")

    (outcome.folder.path / "tracking.json").unlink()  # the acknowledgement was lost
    sync(outcome.folder.path, uri)
    assert len(client.search_logged_models([of.info.experiment_id])) == 1


@pytest.mark.slow
def test_a_server_without_an_encoder_logs_none(runs_dir: Path) -> None:
    warnings: list[str] = []
    outcome = run.start(config("local", uri="none", log_model=True), runs_dir, lambda *_: None, lambda _: None, warnings.append)
    assert warnings == ["no model is logged: under local parts of the encoder stay with the clients"]
    assert outcome.summary is not None and "model" not in outcome.summary
    assert not (outcome.folder.weights / "server.pt2").exists()


def test_a_model_without_a_summary_is_not_copied(runs_dir: Path) -> None:
    folder = make_run(runs_dir, status="interrupted")
    (folder / "summary.json").unlink(missing_ok=True)
    (folder / "weights").mkdir(exist_ok=True)
    (folder / "weights" / "server.pt2").write_bytes(b"a model")
    report = sync(folder)
    assert report.status == "KILLED" and report.artifacts > 0
    assert "weights/server.pt2" not in json.loads((folder / "tracking.json").read_text())["artifacts_sent"]


@pytest.mark.slow
def test_a_full_disk_at_the_export_leaves_no_partial_model(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    silent = lambda *_: None  # noqa: E731
    chosen = config("fedavg", uri="none", log_model=True).model_copy(update={"run_dir": runs_dir / "full"})
    with monkeypatch.context() as patched:
        patched.setattr("fedpriv.simulation.finished.final_model.write_atomically", full)
        with pytest.raises(FedprivError, match="make room, then"):
            run.start(chosen, runs_dir, silent, silent, silent)
    assert not (runs_dir / "full" / "weights" / "server.pt2").exists()
    summary = run.resume(runs_dir / "full", silent, silent, silent).summary
    assert summary is not None and summary["model"]["part"] == "classifier"
    assert (runs_dir / "full" / "weights" / "server.pt2").exists()
