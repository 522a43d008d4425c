"""The cost of a round of the GPU experiments, on noise images, and an estimate for a whole run.

Each case is a run of an experiment file with one local epoch, on all or some of its images. The second of two rounds is timed, as
the first loads kernels. A run's hours are extrapolated by epochs, images and rounds, without tests and probes.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from machine import facts, parser_of, report

import fedpriv
from fedpriv.experiments.spec import read

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
ALL = 50_000
"""Training images of CIFAR-10."""


@dataclass(frozen=True)
class Case:
    """A run of an experiment, on ``images`` noise images or, for 0, on its own texts."""

    experiment: str
    run: str
    images: int
    executor: str = "auto"


CASES = (
    *(Case("simprox/cifar10", "fedavg", ALL, executor) for executor in ("vectorized", "sequential")),
    *(Case("simprox/cifar10", "simprox-cifar-stem", 15_000, executor) for executor in ("vectorized", "sequential")),
    Case("l-dawa/t1", "fedavg-e1", 10_000),
    Case("fedsiam-da/cifar10_resnet50", "fedavg", 5_000),
    Case("feddual/cifar10_gpu", "fedavg", ALL),
    Case("simprox/banking77_bert", "fedavg", 0),
)


def measure(case: Case, device: str, share: float, encoder: str | None, folder: Path) -> dict[str, Any]:
    """The case's round, its memory, and its run's hours."""
    config = read(EXPERIMENTS / f"{case.experiment}.yaml").config(case.run, 0)
    epochs, rounds = config.train.local_epochs, config.train.rounds
    keys = config.model_dump(mode="json", exclude_defaults=True)
    for section, key in (("data", "name"), ("data", "dir"), ("eval", "probe"), ("eval", "probe_fractions")):
        keys.get(section, {}).pop(key, None)
    keys["train"] |= {"rounds": 2, "local_epochs": 1}
    keys["eval"] = {"every": 2, "last": 1}
    keys |= {"device": device, "executor": {"name": case.executor}, "runs_dir": folder}
    images = round(share * case.images)
    if images:
        draw = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (images + images // 5, 3, 32, 32), generator=draw).to(torch.uint8)
        keys["dataset"] = (pixels.numpy(), torch.randint(10, (len(pixels),), generator=draw).numpy())
    else:
        keys["data"]["name"] = config.data.name
        keys["model"]["encoder"] = encoder or config.model.encoder
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = [record["metrics"]["seconds"] for record in fedpriv.rounds(**keys)][-1]
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    hours = seconds * epochs * rounds * (ALL / images if images else 1) / 3600
    return {**vars(case), "round_s": round(seconds, 2), "memory_gib": memory and round(memory, 2), "run_h": round(hours, 2)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of experiments")
    parser.add_argument("--share", type=float, default=1.0, help="of the images, for a trial")
    parser.add_argument("--encoder", help="a folder with BERT, where it cannot be downloaded")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for case in CASES:
        if not args.only or any(part in case.experiment for part in args.only):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(case, args.device, args.share, args.encoder, Path(folder)))
            print(" ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    report({**facts(["torch", "fedpriv"]), "gpu": gpu, "cases": rows}, args.json)


if __name__ == "__main__":
    main()
