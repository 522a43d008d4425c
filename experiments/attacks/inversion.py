"""Inverting gradients before and after a change, and breaching's two recipes, on the same gradients with equal steps.

breaching (Geiping, Fowl et al.) is no dependency: ``pip install breaching`` where it is to be compared; without it, its columns
say that it is not installed. All attackers are given the net, the gradient, the normalisation and the labels.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import statistics
import time
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks import invert
from fedpriv.attacks.scoring.scores import RECOVERED, errors, match, psnr
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import load_dataset
from fedpriv.experiments.markdown import table
from fedpriv.models import model_spec

SEED = 0
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
RECIPES = ("invertinggradients", "modern")
BEFORE: dict[str, Any] = {"attack": "inverting-gradients", "options": {"total_variation": 1e-4}}
SETTINGS: dict[str, dict[str, Any]] = {
    "cnn10 at initialisation, one image": {"net": "cnn10", "images": 1, "steps": 400},
    "the same, before: `idlg`, which was the default of `invert`": {
        "net": "cnn10", "images": 1, "steps": 400, "peers": False,
        "before": {"attack": "idlg", "options": {"steps": 16, "restarts": 0}},  # 25 evaluations a step
    },
    "cnn10 at initialisation, four images": {"net": "cnn10", "images": 4, "steps": 300},
    "cnn10 after 150 steps": {"net": "cnn10", "images": 4, "steps": 300, "trained": 150},
    "ResNet-14 at initialisation, BatchNorm by the batch": {"net": "resnet14", "images": 4, "steps": 150},
}  # fmt: skip
COLUMNS = ("before", "after", *RECIPES)


class Block(nn.Module):
    """The basic block of He et al. (2016); where the width changes, the sides are halved."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        stride = 1 if width_in == width else 2
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride == 2:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, width_in, H, W)`` -> ``(B, width, H, W)``, or half the sides."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def net_of(name: str) -> nn.Module:
    """``(B, 3, 32, 32)`` -> ``(B, 10)``: cnn10 without a projector, or the ResNet of 6 n + 2 layers with n = 2."""
    torch.manual_seed(SEED)
    if name == "cnn10":
        encoder, width = model_spec("cnn10").build((3, 32, 32))
        return nn.Sequential(encoder, nn.Linear(width, 10))
    widths = ((16, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64))
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*stem, *(Block(*pair) for pair in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def measure(data_dir: str) -> list[dict[str, Any]]:
    """A row for each of :data:`SETTINGS`, on CIFAR-10's test images of different classes; training on its training images.

    Args:
        data_dir: folder with ``cifar10/{train,test}.parquet``.
    """
    data = load_dataset("cifar10", Path(data_dir))
    torch.set_num_threads(1)
    return [{"setting": name, **setting, **_row(data, **setting)} for name, setting in SETTINGS.items()]


def _row(
    data: Dataset, net: str, images: int, steps: int, trained: int = 0, before: Mapping[str, Any] = BEFORE, peers: bool = True
) -> dict[str, Any]:
    model = _trained(net_of(net), data, trained)
    true, labels = _chosen(data, images)
    client = copy.deepcopy(model)  # BatchNorm counts the pass
    loss = F.cross_entropy(client(_normalised(true)), labels)
    gradient = torch.autograd.grad(loss, list(client.parameters()))
    after = {"attack": None, "options": {"steps": steps}}
    ours = {"before": {**before, "options": {"steps": steps, **before["options"]}}, "after": after}
    cells = dict[str, Any]()
    for column, how in ours.items():
        began = time.process_time()
        result = invert(model, gradient, input_shape=(3, 32, 32), n=images, labels=labels, mean=MEAN, std=STD, seed=SEED, **how)
        cells[column] = {"attack": result.attack, **_scores(result.images, true, time.process_time() - began)}
    installed = find_spec("breaching") is not None
    for recipe in RECIPES if peers else ():
        cells[recipe] = _breaching(model, gradient, true, labels, recipe, steps) if installed else "not installed"
    return cells


def _breaching(
    model: nn.Module, gradient: tuple[Tensor, ...], true: Tensor, labels: Tensor, recipe: str, steps: int
) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # it prints what it loads
        warnings.simplefilter("ignore")
        import breaching

        logging.getLogger("breaching").setLevel(logging.WARNING)
        config = breaching.get_attack_config(recipe, [f"optim.max_iterations={steps}"])
    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    facts = SimpleNamespace(shape=tuple(true.shape[1:]), mean=MEAN, std=STD, modality="vision", task="classification", classes=10)
    sent = {"parameters": [p.detach() for p in model.parameters()], "buffers": None, "metadata": facts}
    about = {"num_data_points": len(true), "labels": labels, "local_hyperparams": None}
    shared = {"gradients": list(gradient), "buffers": None, "metadata": about}
    attacker = breaching.attacks.prepare_attack(copy.deepcopy(model), nn.CrossEntropyLoss(), config, setup)
    torch.manual_seed(SEED)
    began = time.process_time()
    output, _ = attacker.reconstruct([sent], [shared], {})
    images = (output["data"].detach() * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)).clamp(0, 1)
    return _scores(images, true, time.process_time() - began)


def _scores(images: Tensor, true: Tensor, seconds: float) -> dict[str, Any]:
    images = images[match(images, true)]
    return {
        "psnr": [round(float(value), 2) for value in psnr(images, true)],
        "recovered": int((errors(images, true) < RECOVERED).sum()),
        "cpu_seconds": round(seconds, 1),
    }


def _chosen(data: Dataset, count: int) -> tuple[Tensor, Tensor]:
    """The first test images of different classes, in a random order: ``(count, 3, 32, 32)`` in [0, 1], labels ``(count,)``."""
    assert data.images is not None
    order = torch.randperm(len(data.test_labels), generator=torch.Generator().manual_seed(SEED))
    first = {int(data.test_labels[at]): int(at) for at in order.flip(0)}
    at = sorted(first.values(), key=order.tolist().index)[:count]
    return data.images[1][at].float() / 255, data.test_labels[at].long()


def _normalised(images: Tensor) -> Tensor:
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def _trained(net: nn.Module, data: Dataset, steps: int) -> nn.Module:
    """SGD with momentum 0.9 and learning rate 0.05 on batches of 64."""
    assert data.images is not None
    optimiser, draw = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), torch.Generator().manual_seed(SEED)
    for _ in range(steps):
        at = torch.randint(len(data.train_labels), (64,), generator=draw)
        optimiser.zero_grad()
        F.cross_entropy(net(_normalised(data.images[0][at].float() / 255)), data.train_labels[at].long()).backward()
        optimiser.step()
    return net


def render(rows: list[dict[str, Any]]) -> str:
    """A section of the report."""

    def cell(row: Mapping[str, Any], column: str) -> str:
        value = row.get(column, "–")
        if isinstance(value, str):
            return value
        return f"{statistics.mean(value['psnr']):.1f} dB, {value['recovered']} of {row['images']}"

    def seconds(row: Mapping[str, Any]) -> str:
        cells = [row.get(column) for column in COLUMNS]
        return ", ".join(f"{cell['cpu_seconds']:.0f}" if isinstance(cell, Mapping) and "psnr" in cell else "–" for cell in cells)

    lines = [[row["setting"], row["steps"], *(cell(row, column) for column in COLUMNS), seconds(row)] for row in rows]
    text = (
        "CIFAR-10, all images behind one gradient, labels given, equal steps. Mean PSNR, and images whose mean squared error is "
        f"below {RECOVERED:g}. Before: `inverting-gradients` with its former weight of total variation, 1e-4. After: what "
        "`invert` chooses by itself, which for these nets is `inverting-gradients` with the weight by the batch. The last two "
        "columns: recipes of the `breaching` library. CPU seconds in the order of the columns, one thread, on a machine with "
        "other jobs."
    )
    head = "setting | steps | before | after | breaching `invertinggradients` | breaching `modern` | CPU s"
    return "\n\n".join(["## Inversion beside breaching, on the same gradients", text, table(head, lines)])
