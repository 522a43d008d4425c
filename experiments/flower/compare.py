"""A Flower app and fedpriv's own run of the same federation, audited: do they get the same answer?

    PYTHONPATH=. python experiments/flower/compare.py DATA     # the runs and audits, then REPORT.md; half an hour on two cores
    PYTHONPATH=. python experiments/flower/compare.py          # REPORT.md alone, from the stored results

DATA holds CIFAR-10, as ``--data-dir`` of ``fedpriv train``. The app is that of the tutorial with another net and other data
(``task.py``). Flower starts it in a simulation by ``flwr run``. It needs the extras ``deploy`` and ``cluster``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from safetensors.torch import save_file

import fedpriv
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results import AuditedRun
from fedpriv.experiments.markdown import table
from fedpriv.files import write_atomically
from fedpriv.storage.provenance import git_commit, versions

HERE = Path(__file__).parent
CLIENTS, ROUNDS, SAMPLES, OTHERS = 4, 5, 800, 500
LR, EPOCHS, BATCH = 0.1, 5, 32
DEFENCES = {"none": "", "clip and noise": "clip:norm=1 gaussian:variance=1e-4"}
AUDIT: dict[str, Any] = {"messages": 1, "label_shadows": 0, "membership_shadows": 8, "singles": 1, "workers": 1}
KEYS: dict[str, Any] = {
    "method.name": "fedavg",
    "data.clients": CLIENTS,
    "data.limit": SAMPLES,
    "data.test_limit": OTHERS,
    "data.partition.name": "iid",
    "data.augment": "none",
    "model.name": "images_app.task:Net",
    "train.rounds": ROUNDS,
    "train.participation": 1.0,
    "train.lr": LR,
    "train.momentum": 0.0,
    "train.weight_decay": 0.0,
    "train.local_epochs": EPOCHS,
    "train.batch_size": BATCH,
    "eval.last": 1,
    "wire.keep_payloads": "all",
    "tracking.uri": "none",
}


def write_samples(record: RunRecord, folder: Path) -> None:
    """Write each client's samples of a run, and those of the test split, for the app."""
    dataset, data = record.federation.dataset, record.federation.data
    folder.mkdir()
    for client in range(CLIENTS):
        own = data.indices("train", client)
        save_file({"images": dataset.train_images[own], "labels": data.labels("train")[own]}, folder / f"{client}.safetensors")
    others = {"images": dataset.test_images.contiguous(), "labels": data.labels("server").contiguous()}
    save_file(others, folder / "others.safetensors")


def recorded_by_flower(folder: Path, defence: str, app: Path) -> Path:
    """Run the app by ``flwr run``, with the line that records it; the record."""
    from tests.flower.processes import documented_app, running_link

    record = folder / "record"
    facts = {"classes": 10, "input_shape": (3, 32, 32), "net": "images_app.task:Net", "training": {
        "lr": LR, "local_epochs": EPOCHS, "batch_size": BATCH}, "mean": _task().MEAN, "std": _task().STD,
        "transforms": _transforms(defence)}  # fmt: skip
    samples = "lambda context: task.client_samples(context.node_config['partition-id'])"
    mods = f"fedpriv.flower.record({str(record)!r}, truth={samples}, public=task.other_samples, **{facts!r})"
    mods += f", fedpriv.flower.protect({defence!r})" if defence else ""
    documented_app(app, mods=mods)
    client = app / "images_app" / "client_app.py"
    client.write_text(
        client.read_text(encoding="utf-8").replace("app = ", "from images_app import task\napp = ", 1), encoding="utf-8"
    )
    shutil.copy(HERE / "task.py", app / "images_app")
    config = f"num-server-rounds={ROUNDS} local-epochs={EPOCHS} learning-rate={LR} batch-size={BATCH}"
    with running_link(folder / "link", simulated=True, nodes=CLIENTS) as link:
        link.run(app, folder / "model.pt", config)
    return record


def _task() -> Any:
    from images_app import task  # type: ignore[import-not-found]

    return task


def _transforms(defence: str) -> list[dict[str, Any]]:
    from fedpriv.api.keys import transforms

    return [dict(transform) for transform in transforms(defence.split())]


def outcome(run: AuditedRun, seconds: float) -> dict[str, Any]:
    """What is compared of an audit."""
    areas = {
        f"{outcome.attack}, round {outcome.round}": {"auc": outcome.points.auc.value, "members": outcome.points.members}
        for outcome in run.membership
        if outcome.points is not None
    }
    return {
        "answer": run.concluded.words,
        "sentence": run.concluded.sentence,
        "conditions": list(run.conditions),
        "seconds": seconds,
        "membership": areas,
    }


def compare(data_dir: Path, name: str, defence: str) -> dict[str, Any]:
    """Run and audit a federation in both."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        app = folder / "app"
        (folder / "net" / "images_app").mkdir(parents=True)
        shutil.copy(HERE / "task.py", folder / "net" / "images_app")
        sys.path.insert(0, str(folder / "net"))
        keys = {**KEYS, "data.name": "cifar10", "data.dir": str(data_dir), "wire.transforms": _transforms(defence)}
        run = fedpriv.train(run_dir=str(folder / "run"), **keys)
        own = RunRecord(run.path)
        os.environ["IMAGES_APP_DATA"] = str(folder / "samples")
        write_samples(own, folder / "samples")
        record = recorded_by_flower(folder, defence, app)
        results = {}
        for framework, audited in (("fedpriv", run.path), ("Flower", record)):
            began = time.monotonic()
            report = fedpriv.audit(audited, **AUDIT)
            results[framework] = outcome(report.runs[0], round(time.monotonic() - began, 1))
            print(name, framework, json.dumps(results[framework], indent=1), flush=True)
        sys.path.remove(str(folder / "net"))
    return {"defence": defence, **results}


def report(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The stored results as a page."""
    rows = []
    for name, result in results.items():
        own, flower = result["fedpriv"], result["Flower"]
        rows.append([name, "answer", own["answer"], flower["answer"], "yes" if own["answer"] == flower["answer"] else "**no**"])
        for attack in sorted(own["membership"].keys() & flower["membership"].keys()):
            first, second = (side["membership"][attack]["auc"] for side in (own, flower))
            apart = abs(first - second)
            verdict = f"{apart:.3f}" if apart <= 0.02 else f"**{apart:.3f}**"
            rows.append([name, f"AUC, {attack}", f"{first:.3f}", f"{second:.3f}", verdict])
    return table("defence | what | fedpriv's run | the Flower app | the same, or apart by", rows)


@click.command()
@click.argument("data_dir", type=click.Path(path_type=Path, exists=True), required=False)
def main(data_dir: Path | None) -> None:
    """Compare the audits of both."""
    path = HERE / "results.json"
    if data_dir is not None:
        torch.set_num_threads(1)
        results = {name: compare(data_dir, name, defence) for name, defence in DEFENCES.items()}
        stored = {"commit": git_commit(), "versions": versions(), "keys": KEYS, "audit": AUDIT, "results": results}
        write_atomically(path, json.dumps(stored, indent=1).encode())
    stored = json.loads(path.read_text(encoding="utf-8"))
    print(report(stored["results"]))


if __name__ == "__main__":
    main()
