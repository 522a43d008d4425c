"""Federations in Flower and in NVFlare, recorded by one line, and fedpriv's own runs of them: do audits get the same answer?

    PYTHONPATH=. python experiments/flower/compare.py DATA [--nvflare PYTHON]    # the runs and audits, then REPORT.md
    PYTHONPATH=. python experiments/flower/compare.py                            # REPORT.md alone, from the stored results

DATA holds CIFAR-10, as ``--data-dir`` of ``fedpriv train``. The Flower app is that of the tutorial with another net and other
data (``task.py``); ``flwr run`` starts it in a simulation, which needs the extras ``deploy`` and ``cluster``. The NVFlare job is
that of ``tests/nvflare``, in NVFlare's simulator; PYTHON is that of an environment with fedpriv and NVFlare.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import torch
from safetensors.torch import save_file

import fedpriv
from fedpriv.api.keys import transforms
from fedpriv.audit.answer import MEMBERS, NOTHING, WORDS
from fedpriv.audit.foreign.audit import AuditedFolder
from fedpriv.audit.foreign.membership import in_recorded_rounds
from fedpriv.audit.judge import members
from fedpriv.audit.membership.rounds import in_rounds
from fedpriv.audit.progress import Progress
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.sentences.clients import membership
from fedpriv.experiments.markdown import bullets, table
from fedpriv.files import write_atomically
from fedpriv.recorder import layout
from fedpriv.recorder.reader import is_record
from fedpriv.storage.provenance import git_commit, versions

HERE = Path(__file__).parent
JOB = HERE.parents[1] / "tests" / "nvflare" / "job"
CLIENTS, ROUNDS, SAMPLES, OTHERS = 4, 5, 600, 600
SHADOWS = 4
ROWS = ("Flower", "Flower, clipping and noise", "NVFlare")
NOISE = "clip:norm=1 gaussian:variance=1e-4"
KEYS: dict[str, Any] = {
    "method.name": "fedavg",
    "data.name": "cifar10",
    "data.clients": CLIENTS,
    "data.limit": SAMPLES,
    "data.test_limit": OTHERS,
    "data.partition.name": "iid",
    "data.augment": "none",
    "train.rounds": ROUNDS,
    "train.participation": 1.0,
    "train.momentum": 0.0,
    "train.weight_decay": 0.0,
    "eval.last": 1,
    "wire.keep_payloads": "all",
    "tracking.uri": "none",
}
APART = 0.02
"""By how much AUCs may differ."""
Recorder = Callable[[Path, str], Path]
"""A folder for all files, and a defence -> the record."""


def write_samples(run: RunRecord, folder: Path) -> None:
    """Write each client's samples of a run, and those of the test split, for the other framework."""
    dataset, data = run.federation.dataset, run.federation.data
    folder.mkdir()
    for client in range(CLIENTS):
        own = torch.unique(data.indices("train", client))
        save_file({"images": dataset.train_images[own], "labels": data.labels("train")[own]}, folder / f"{client}.safetensors")
    others = {"images": dataset.test_images.contiguous(), "labels": data.labels("server").contiguous()}
    save_file(others, folder / "others.safetensors")


def recorded_by_flower(folder: Path, defence: str) -> Path:
    """Run the app by ``flwr run``, with the line that records it, and with a defence the one that protects it."""
    from tests.flower.processes import documented_app, running_link

    record, app, task = folder / "record", folder / "app", import_module("images_app.task")
    facts = {
        "classes": task.CLASSES,
        "input_shape": task.SHAPE,
        "net": "images_app.task:Net",
        "training": task.TRAINING,
        "mean": task.MEAN,
        "std": task.STD,
        "transforms": transforms(defence.split()),
    }
    samples = "lambda context: task.client_samples(context.node_config['partition-id'])"
    mods = f"fedpriv.flower.record({str(record)!r}, truth={samples}, public=task.other_samples, **{facts!r})"
    mods += f", fedpriv.flower.protect({defence!r})" if defence else ""
    documented_app(app, mods=mods)
    client = app / "images_app" / "client_app.py"
    text = client.read_text(encoding="utf-8").replace("app = ", "from images_app import task\napp = ", 1)
    client.write_text(text, encoding="utf-8")
    shutil.copy(HERE / "task.py", app / "images_app")
    lr, epochs, size = (task.TRAINING[name] for name in ("lr", "local_epochs", "batch_size"))
    config = f"num-server-rounds={ROUNDS} local-epochs={epochs} learning-rate={lr} batch-size={size}"
    with running_link(folder / "link", simulated=True, nodes=CLIENTS) as link:
        link.run(app, folder / "model.pt", config)
    return record


def recorded_by_nvflare(folder: Path, python: str) -> Path:
    """Run the job in NVFlare's simulator, with the line that records it."""
    job = shutil.copytree(JOB, folder / "job")
    shutil.copy(HERE / "model.py", job)
    command = [python, "job.py", *map(str, (folder / "workspace", folder / "initial.pt", "FULL", folder))]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    subprocess.run(command, cwd=job, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    return folder / "clients"


def number_as_partition(record: Path) -> None:
    """Sort the lines of each round by client: an audit numbers clients by their first answers, and draws candidates by number."""
    path = record / layout.LINES
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines.sort(key=lambda line: (line["round"], line["client"], line["direction"]))
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def inferred(audited: Path) -> dict[str, Any]:
    """Membership inference as an audit does it, in the last round of a run or a record, and what it concludes."""
    began, progress = time.process_time(), Progress(print)
    doubt = None
    if is_record(audited):
        number_as_partition(audited)
        record = AuditedFolder(audited)
        assert record.cannot_simulate is None, record.cannot_simulate
        doubt = record.sentence
        result = in_recorded_rounds(record, [], SHADOWS, 0, progress)
    else:
        result = in_rounds(RunRecord(audited), [], SHADOWS, 0, progress)
    ran = [outcome for outcome in result.outcomes if outcome.points is not None]
    return {
        "answer": WORDS[MEMBERS if members.tells(result.outcomes) else NOTHING],
        "sentence": membership(result.outcomes),
        "training": doubt,
        "auc": {outcome.attack: outcome.points.auc.value for outcome in ran if outcome.points is not None},
        "cpu_seconds": round(time.process_time() - began, 1),
    }


@contextmanager
def importable(file: Path, name: str, folder: Path) -> Iterator[Any]:
    """A block in which a file is the module of that name."""
    place = folder.joinpath("net", *name.split(".")).with_suffix(".py")
    place.parent.mkdir(parents=True)
    shutil.copy(file, place)
    sys.path.insert(0, str(folder / "net"))
    try:
        yield import_module(name)
    finally:
        sys.path.remove(str(folder / "net"))
        for module in (name, name.partition(".")[0]):
            sys.modules.pop(module, None)


def compare(data_dir: Path, framework: str, file: Path, net: str, record: Recorder, defence: str) -> dict[str, Any]:
    """Run and audit a federation in both.

    Args:
        file: the module of the net, whose name is ``net``.
    """
    name = net.partition(":")[0]
    with TemporaryDirectory() as place, importable(file, name, folder := Path(place)) as module:
        training = {f"train.{key}": value for key, value in module.TRAINING.items()}
        keys = {**KEYS, **training, "data.dir": str(data_dir), "model.name": net, "wire.transforms": transforms(defence.split())}
        run = fedpriv.train(run_dir=str(folder / "run"), **keys)
        os.environ["IMAGES_APP_DATA"] = str(folder / "samples")
        write_samples(RunRecord(run.path), folder / "samples")
        results = dict[str, Any]()
        for where, audited in (("fedpriv", run.path), (framework, record(folder, defence))):
            results[where] = inferred(audited)
            print(where, defence, json.dumps(results[where], indent=1), flush=True)
    return {"framework": framework, "defence": defence, "training": module.TRAINING, **results}


def report(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The stored results as a page."""
    rows = []
    for name, result in results.items():
        own, other = result["fedpriv"], result[result["framework"]]
        rows.append([name, "answer", own["answer"], other["answer"], "yes" if own["answer"] == other["answer"] else "**no**"])
        sides = own["auc"], other["auc"]
        pairs = {"the best attack": [max(side.values()) for side in sides]}
        pairs |= {attack: [side[attack] for side in sides] for attack in sorted(sides[0].keys() & sides[1].keys())}
        for attack, (first, second) in pairs.items():
            apart = abs(first - second)
            shown = f"{apart:.3f}" if apart <= APART else f"**{apart:.3f}**"
            rows.append([name, f"AUC, {attack}", f"{first:.3f}", f"{second:.3f}", shown])
    lines = table("federation | what | fedpriv's run | the record | the same, or apart by", rows)
    missing = [name for name in ROWS if name not in results]
    closing = "The best attack on each record, with its interval:\n\n"
    closing += bullets(f"{name}: {result[result['framework']]['sentence']}" for name, result in results.items())
    closing += f"\n\nNot run yet: {'; '.join(missing)}." if missing else ""
    return f"""# Flower and NVFlare beside fedpriv

Does membership inference on a federation in another framework conclude what it does on fedpriv's own run? Both have the same net,
initial weights, partition, method and local training; the order of batches is not the same. {CLIENTS} clients with
{SAMPLES // CLIENTS} images of CIFAR-10 each train for {ROUNDS} rounds: a ResNet-8 with group normalisation in Flower, the net of
NVFlare's first example in its simulator. One line records each. All attacks of an audit that apply, on the messages of the last
round, with {SHADOWS} shadow models for each client, and the same members and non-members on both sides. Attacks with shadow
models draw other ones on each side. The AUC of the best attack should differ by {APART} at most; larger differences are in bold.

{lines}

{closing}

`experiments/flower/compare.py` says how it is run again.
"""


@click.command()
@click.argument("data_dir", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--nvflare", metavar="PYTHON", help="Compare with NVFlare, too, in the environment of this Python.")
@click.option("--only", multiple=True, help="The rows that are run; the others stay as they are stored.")
def main(data_dir: Path | None, nvflare: str | None, only: tuple[str, ...]) -> None:
    """Compare audits of records with those of fedpriv's own runs."""
    path = HERE / "results.json"
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if data_dir is not None:
        torch.set_num_threads(1)
        flower: tuple[Any, ...] = ("Flower", HERE / "task.py", "images_app.task:Net", recorded_by_flower)
        cases: dict[str, tuple[Any, ...]] = {ROWS[0]: (*flower, ""), ROWS[1]: (*flower, NOISE)}
        if nvflare is not None:
            by_nvflare: Recorder = lambda folder, defence: recorded_by_nvflare(folder, nvflare)  # noqa: E731
            cases[ROWS[2]] = ("NVFlare", HERE / "model.py", "model:SimpleNetwork", by_nvflare, "")
        for name, case in cases.items():
            if not only or name in only:
                result = compare(data_dir, *case)
                stored[name] = {**result, "commit": git_commit(), "versions": versions(), "keys": KEYS, "shadows": SHADOWS}
                write_atomically(path, json.dumps(stored, indent=1).encode())
    (HERE / "REPORT.md").write_text(report(stored), encoding="utf-8")


if __name__ == "__main__":
    main()
