"""Common parts of benchmarks of rounds: data, and a simulation that is ready to run.

Imports nothing heavy before it is used, since a child process's peak memory starts from its parent's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.simulation.simulation import Simulation

SHAPES = {"fashion_mnist": (60_000, 1, 28, 28), "cifar10": (50_000, 3, 32, 32)}
"""Training images by data set; each has 10,000 test images and ten classes."""
NEVER = 10**9
"""``eval.every`` of a run that evaluates only its last round."""


def find(name: str, given: Path | None) -> Path | None:
    """The folder of a data set: ``given``, else FEDPRIV_DATA; ``None``, with a warning, if it is missing."""
    folder = given or (Path(os.environ["FEDPRIV_DATA"]) if os.environ.get("FEDPRIV_DATA") else None)
    if folder is not None and (folder / name).is_dir():
        return folder
    print(f"{name} is missing (--data-dir, FEDPRIV_DATA): SYNTHETIC images of the same shape instead")
    return None


def find_or_noise(name: str, given: Path | None) -> Path | None:
    """:func:`find`; if the data set is missing, all later simulations use noise."""
    folder = find(name, given)
    if folder is None:
        use_noise(name)
    return folder


def use_noise(name: str) -> None:
    """Make all later simulations use noise in the shape of that data set."""
    import torch

    from fedpriv.data.dataset import Dataset
    from fedpriv.simulation.inputs import loading

    train, *shape = SHAPES[name]
    draw = torch.Generator().manual_seed(0)

    def pictures(n: int) -> Tensor:
        return torch.randint(256, (n, *shape), generator=draw, dtype=torch.uint8)

    def labels(n: int) -> Tensor:
        return torch.arange(n) % 10

    mean = std = (0.5,) * shape[0]
    held = (pictures(train), pictures(10_000))
    noise = Dataset("noise", labels(train), labels(10_000), tuple("0123456789"), "lenet5", held, mean=mean, std=std)
    loading.read_data = lambda *_: noise


def begin(config: Mapping[str, Any], folder: Path) -> Simulation:
    """A simulation in a new folder, untracked, before its first round; in this process, unless the config has workers."""
    from fedpriv.config import RunConfig, parse
    from fedpriv.simulation.setup import build
    from fedpriv.simulation.simulation import Simulation
    from fedpriv.storage.run_folder import RunFolder

    run = parse(RunConfig, {**config, "tracking": {"uri": "none"}}, "benchmark")
    federation = build(run.model_copy(update={"executor": run.executor.in_this_process()}))
    begun = Simulation(federation, RunFolder.create(federation.config, folder), print)
    begun.start()
    return begun
