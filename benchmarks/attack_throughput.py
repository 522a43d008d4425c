"""The cost of the attack commands, and of a recovered image: fedpriv, the published form, and ``breaching``.

First the commands ``fedpriv attack dlg``, ``idlg`` and ``dlg --mask-layers 2``, each in a fresh process without stored controls:
CPU seconds of the whole process, including start, controls and scores. Limit: 90 with 20 images.

Then the attacks side by side in one process, without start and controls, in CPU seconds per recovered image (MSE below 1e-3 after
clipping), which accounts for failures; success rates at three thresholds are reported too. One thread; CPU time, as the machine
may be busy.

* ``published``: one image at a time, ``torch.optim.LBFGS(lr=1)`` without line search, 300 outer steps, dummy N(0, 1): the
  independent plain loop ``tests/oracles/dlg.py``.
* ``ours``: the attacks ``dlg`` and ``idlg`` with their defaults, all images as one batch; ``ours, one at a time``: the same in
  batches of one.
* ``ours, published settings``: ``dlg-published`` and ``idlg-published``, as one batch.
* ``breaching``: its ``deepleakage`` (DLG) with 300 steps; skipped if not installed
  (``uv run --with breaching``).

All use the same images, nets (DLG's sigmoid LeNet, U(-0.5, 0.5), drawn anew for every image) and gradients.

Limit: ours costs at most a third of the published form per recovered image.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
import torch._dynamo  # four seconds that torch would spend at the first gradient or optimiser
from machine import facts, parser_of, report, write
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the oracle

from fedpriv.attacks.core.observation import Observation, SplitNet
from fedpriv.attacks.image.dlg import Dlg, Idlg, PublishedDlg, PublishedIdlg
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import observe, reference_victim
from fedpriv.attacks.scoring.scores import THRESHOLDS, mse, wilson
from tests.oracles.dlg import dlg as plain_dlg

LIMIT = 1 / 3
"""ours over published, CPU seconds per recovered image."""
RECOVERED = 1e-3
COMMANDS = {"dlg": ["dlg"], "idlg": ["idlg"], "dlg --mask-layers 2": ["dlg", "--mask-layers", "2"]}
COMMAND_LIMIT = 90.0
"""CPU seconds of a command with its default images, controls included."""
PACKAGES = ("torch", "scipy", "breaching")

Contender = Callable[[], tuple[Tensor, Tensor]]
"""Images ``(n, 3, 32, 32)`` and labels ``(n,)``."""


class Victims:
    """``n`` images, each with its own net and gradient."""

    def __init__(self, n: int, cifar: Path | None, seed: int) -> None:
        self.images, self.labels = cifar_images(cifar, n) if cifar else default_images(n, seed)
        self.nets = [reference_victim(seed + i) for i in range(n)]
        self.seed = seed

    @property
    def observations(self) -> list[Observation]:
        return [observe(net, x, y) for net, x, y in self]

    def __iter__(self) -> Any:
        pairs = zip(self.nets, torch.split(self.images, 1), torch.split(self.labels, 1), strict=True)
        yield from pairs


def cifar_images(file: Path, n: int) -> tuple[Tensor, Tensor]:
    """The first ``n`` of a parquet file with the columns ``img`` (PNG bytes) and ``label``."""
    import numpy as np
    import pyarrow.parquet as pq
    from PIL import Image

    table = pq.read_table(file, columns=["img", "label"]).slice(0, n).to_pydict()
    pixels = [np.array(Image.open(io.BytesIO(image["bytes"])).convert("RGB")) for image in table["img"]]
    return torch.stack([torch.from_numpy(p).permute(2, 0, 1).float() / 255 for p in pixels]), torch.tensor(table["label"])


def published(victims: Victims, improved: bool, steps: int) -> tuple[Tensor, Tensor]:
    """The plain loop."""
    draw = torch.Generator().manual_seed(victims.seed)
    results = []
    for net, x, y in victims:
        gradient = list(observe(net, x, y).shared.values())
        start, label = torch.randn(1, 3, 32, 32, generator=draw), torch.randn(1, 10, generator=draw)
        results.append(plain_dlg(net, gradient, start, label, steps, improved))
    return torch.cat([result.image for result in results]), torch.tensor([result.label for result in results])


def ours(attack: Any, victims: Victims, at_once: int | None = None) -> tuple[Tensor, Tensor]:
    """Our attack in batches of ``max_batch`` images, or on all at once."""
    observations = victims.observations
    size = at_once or len(observations)
    results = [attack.run(observations[i : i + size], victims.seed) for i in range(0, len(observations), size)]
    return torch.cat([result.images for result in results]), torch.cat([result.labels for result in results])


def breaching_attack(victims: Victims, steps: int) -> tuple[Tensor, Tensor]:
    """``deepleakage`` of breaching, one image at a time."""
    import breaching

    config = breaching.get_attack_config("deepleakage")
    config.optim.max_iterations, config.optim.callback = steps, steps
    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    images, labels = [], []
    for net, x, y in victims:
        sent = {"parameters": [p.detach() for p in net.parameters()], "buffers": []}
        data = Metadata(shape=(3, 32, 32), classes=10, mean=(0.0,) * 3, std=(1.0,) * 3)
        metadata = {"num_data_points": 1, "labels": None, "local_hyperparams": None, "data_key": "inputs"}
        shared = {"gradients": list(observe(net, x, y).shared.values()), "buffers": None, "metadata": metadata}
        attacker = breaching.attacks.prepare_attack(net, torch.nn.CrossEntropyLoss(), config, setup)
        result, _ = attacker.reconstruct([{**sent, "metadata": data}], [shared], {}, dryrun=False)
        images.append(result["data"].detach())
        labels.append(result["labels"].view(-1)[:1])
    return torch.cat(images), torch.cat(labels)


class Metadata(dict[str, Any]):
    """Metadata of a data set, read by breaching as attributes or items."""

    def __init__(self, **values: Any) -> None:
        super().__init__(values, task="classification", modality="vision")
        self.__dict__ = self


def contenders(victims: Victims, steps: int, one_at_a_time: bool) -> dict[str, Contender]:
    """The contenders by name, in the order in which they run."""
    named: dict[str, Contender] = {}
    for name, improved, robust, original in (
        ("idlg", True, Idlg(), PublishedIdlg(steps)),
        ("dlg", False, Dlg(), PublishedDlg(steps)),
    ):
        named[f"{name}: published"] = lambda improved=improved: published(victims, improved, steps)  # type: ignore[misc]
        named[f"{name}: ours"] = lambda robust=robust: ours(robust, victims)  # type: ignore[misc]
        if one_at_a_time:
            named[f"{name}: ours, one at a time"] = lambda robust=robust: ours(robust, victims, 1)  # type: ignore[misc]
        named[f"{name}: ours, published settings"] = lambda attack=original: ours(attack, victims)  # type: ignore[misc]
    try:
        import breaching  # noqa: F401

        named["dlg: breaching"] = lambda: breaching_attack(victims, steps)
    except ImportError as error:
        print(f"breaching is left out: {error}")
    return named


def measure(contender: Contender, victims: Victims) -> dict[str, Any]:
    """CPU and wall seconds, success rates, labels."""
    began, began_wall = time.process_time(), time.perf_counter()
    images, labels = contender()
    cpu, wall = time.process_time() - began, time.perf_counter() - began_wall
    error, n = mse(images, victims.images), len(victims.images)
    recovered = int((error < RECOVERED).sum())
    rates = {f"{limit:g}": wilson(int((error < limit).sum()), n) for limit in THRESHOLDS}
    return {
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "images_per_cpu_second": round(n / cpu, 4),
        "cpu_seconds_per_recovered": round(cpu / recovered, 3) if recovered else None,
        "recovered": {limit: [rate.successes, round(rate.low, 3), round(rate.high, 3)] for limit, rate in rates.items()},
        "labels_right": int((labels == victims.labels).sum()),
        "median_mse": float(f"{float(error.median()):.2g}"),
    }


def command(words: list[str], seed: int) -> dict[str, Any]:
    """``fedpriv attack`` in a fresh process, without stored controls and without a limit of threads."""
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-m", "fedpriv", "attack", *words, "--seed", str(seed), "--json"],
            stdout=subprocess.PIPE, encoding="utf-8", check=True, env=environment | {"FEDPRIV_CONTROLS": empty},
        )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = json.loads(done.stdout.splitlines()[-1])
    mounted = {attacker["attacker"]: attacker for attacker in output["attackers"] if "success" in attacker}
    return {
        "cpu_seconds": round(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 1),
        "of_controls": round(sum(control["cpu_seconds"] or 0.0 for control in output["controls"]), 1),
        "images": output["images"],
        "attackers": {
            name: {
                "recovered": {limit: rate["successes"] for limit, rate in result["success"].items()},
                "n": next(iter(result["success"].values()))["n"],
                "median_mse": result["mse_median"],
            }
            for name, result in mounted.items()
        },
    }


def parameters(net: SplitNet) -> int:
    return sum(p.numel() for p in net.parameters())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300, help="outer steps of the published form (default: 300)")
    parser.add_argument("--cifar", type=Path, metavar="FILE", help="CIFAR-10 parquet; default: crops of two photographs")
    parser.add_argument("--only", help="commands (`fedpriv attack dlg`) and contenders (`dlg: ours`) whose name contains this")
    parser.add_argument("--one-at-a-time", action="store_true", help="also ours in batches of one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    victims = Victims(options.images, options.cifar, options.seed)
    results: dict[str, Any] = {
        "benchmark": "attack_throughput",
        **facts(PACKAGES),
        "threads": 1,
        "images": options.images,
        "data": "cifar10 test" if options.cifar else "crops of two photographs",
        "parameters": parameters(victims.nets[0]),
        "published_steps": options.steps,
        "commands": {},
        "contenders": {},
    }
    missed = []
    for name, words in COMMANDS.items():
        if options.only and options.only not in f"fedpriv attack {name}":
            continue
        row = results["commands"][name] = command(words, options.seed)
        if row["cpu_seconds"] > COMMAND_LIMIT:
            missed.append(f"fedpriv attack {name}: above {COMMAND_LIMIT:.0f} CPU s")
        print(f"fedpriv attack {name}: {row['cpu_seconds']} CPU s, of which controls {row['of_controls']}", flush=True)
        for attacker, result in row["attackers"].items():
            print(f"  {attacker}: {result['recovered']} of {result['n']}, median MSE {result['median_mse']:.2g}", flush=True)
        write(results, options.json)  # after every part, since all together take long
    for name, contender in contenders(victims, options.steps, options.one_at_a_time).items():
        if options.only and options.only not in name:
            continue
        row = results["contenders"][name] = measure(contender, victims)
        cost = row["cpu_seconds_per_recovered"]
        rates = ", ".join(f"{r[0]} < {limit}" for limit, r in row["recovered"].items())
        figure = f"{cost:.2f} CPU s per recovered image" if cost else "none recovered"
        print(f"{name}: {figure}; {row['cpu_seconds']:.0f} CPU s for {options.images} images ({rates})", flush=True)
        write(results, options.json)
    for name in ("idlg", "dlg"):
        costs = [
            results["contenders"].get(f"{name}: {who}", {}).get("cpu_seconds_per_recovered") for who in ("ours", "published")
        ]
        if all(costs):
            ratio = results[f"{name}_ours_to_published"] = round(costs[0] / costs[1], 3)
            print(f"{name}: ours costs {ratio:.3f} times the published form")
            missed += [f"{name}: above {LIMIT:.2f} times the published form"] * (ratio > LIMIT)
    report(results, options.json, missed)


if __name__ == "__main__":
    main()
