"""On a GPU: the processor's numbers, and the same bits again. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedpriv
from fedpriv.methods import methods
from fedpriv.models.registry import Shape, register_model
from fedpriv.simulation.executors.vectorized import VectorizedExecutor
from fedpriv.tracking.folder import read_records
from tests.marks import FEW, slow_but
from tests.simulation.trial import everything, play, register_pooled, user_nets

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
IMAGES = {
    "dataset": "digits",
    "clients": 6,
    "rounds": 3,
    "train.participation": 0.5,
    "train.batch_size": 16,
    "tracking_uri": "none",
}


@pytest.fixture(autouse=True)
def _nets() -> Iterator[None]:
    with user_nets():
        register_pooled()

        @register_model("broad", input_shape=(1, 128, 128), classes=10, source="test")
        def broad(shape: Shape) -> tuple[nn.Module, int]:
            return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AvgPool2d(126), nn.Flatten()), 8

        yield


def assert_as_on_the_processor(folder: Path, executor: str, within: float, **options: Any) -> None:
    """Two rounds on the GPU in float64 end where two on the processor do."""
    there, here = (
        dict(everything(play(folder / device, executor, True, 2, device=device, **options))) for device in ("cuda", "cpu")
    )
    assert there.keys() == here.keys()
    for name, expected in here.items():
        scale = max(1.0, float(expected.double().abs().max())) if expected.numel() else 1.0
        torch.testing.assert_close(
            there[name].cpu(), expected, rtol=0, atol=within * scale, msg=lambda message, name=name: f"{name}: {message}"
        )


@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
@pytest.mark.parametrize("method", slow_but(FEW, sorted(methods())))
def test_every_method_has_the_processors_numbers(tmp_path: Path, method: str, executor: str) -> None:
    within = 1e-6 if method == "mpfedcon" else 1e-9  # its centres are float32
    assert_as_on_the_processor(tmp_path, executor, within, **{"method.name": method, "train.min_batch": 2})


OPTIONS: list[dict[str, Any]] = [
    {"method.name": "mpfedcon", "data.augment": "crop_flip"},
    {"method.name": "fedavg", "train.optimizer": "adam", "train.lr": 0.001},
    {"method.name": "fedavg", "privacy.level": "client", "privacy.noise": 0.5, "privacy.clip": 1.0},
    {"method.name": "fedrep", "wire.secure_aggregation": True},
    *(
        {"method.name": "fedavg", "wire.transforms": [{"name": transform}]}
        for transform in ("gaussian", "laplace", "prune", "quantise")
    ),
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(str(value) for value in options.values()))
def test_options_have_the_processors_numbers(tmp_path: Path, options: dict[str, Any]) -> None:
    """Noise too: it is drawn from the run's seed on the processor, whatever the device."""
    assert_as_on_the_processor(tmp_path, "vectorized", 1e-9 if options["method.name"] == "fedrep" else 1e-6, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "mpfedcon", "model.name": "pooled", "data.augment": "crop_flip"},
        {"method": "fedavg", "model.name": "lenet_sigmoid", "executor": "sequential"},
        {"method": "fedavg", "privacy.level": "sample", "privacy.noise": 1.0},
        {"method": "fedavg", "privacy.level": "sample", "privacy.noise": 1.0, "privacy.clipping": "ghost"},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)
def test_a_run_has_the_same_bits_again(tmp_path: Path, options: dict[str, Any]) -> None:
    runs = [fedpriv.train(**{**IMAGES, **options}, device="cuda", runs_dir=str(tmp_path / name)) for name in ("a", "b")]
    first, second = ([{**record["metrics"], "seconds": None} for record in read_records(run.path)] for run in runs)
    assert first == second


def test_a_group_of_resnets(tmp_path: Path) -> None:
    """In float32, and channels last, cuDNN failed on some of its grouped convolutions."""
    options = {
        "method.name": "fedavg",
        "model.name": "resnet18",
        "data.image_size": 32,
        "train.local_steps": 1,
        "train.min_batch": 4,
    }
    together, alone = (
        play(tmp_path / executor, executor, False, 1, device="cuda", **options) for executor in ("vectorized", "sequential")
    )
    for (name, value), (_, expected) in zip(everything(together), everything(alone), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-3, msg=name)


def test_a_group_that_does_not_fit_is_halved(tmp_path: Path) -> None:
    """In earnest: this process may have little of the GPU's memory."""
    options: dict[str, Any] = {"method.name": "fedavg", "executor.group_size": 4, "model.name": "broad", "data.image_size": 128}
    whole = play(tmp_path / "whole", "vectorized", True, 0, device="cuda", **options)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    whole.run_round()
    needed = torch.cuda.max_memory_allocated() - before
    cramped = play(tmp_path / "cramped", "vectorized", True, 0, device="cuda", **options)
    assert isinstance(cramped.executor, VectorizedExecutor)
    warnings: list[str] = []
    cramped.executor._warn = warnings.append
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 0.75 * needed) / total)
    try:
        cramped.run_round()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert warnings and "do not fit into the memory of cuda" in warnings[0]
    for (name, value), (_, expected) in zip(everything(cramped), everything(whole), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_group_ends_where_it_ends(tmp_path: Path, mode: str) -> None:
    options = {"method.name": "fedavg", "model.name": "pooled", "data.partition.name": "iid", "train.local_epochs": 1}
    compiled, plain = (
        play(tmp_path / how, "vectorized", False, 2, device="cuda", **options, **{"executor.compile": how})
        for how in (mode, "none")
    )
    assert "compiled" in str(compiled.federation.choice)
    for (name, value), (_, expected) in zip(everything(compiled), everything(plain), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize("method", ["fedavg", "mpfedcon"])
def test_an_audit_finds_what_it_finds_on_the_processor(tmp_path: Path, method: str) -> None:
    rows = []
    for device in ("cuda", "cpu"):
        run = fedpriv.train(**{**IMAGES, "clients": 20, "method": method}, device=device, runs_dir=str(tmp_path / device))
        rows.append(fedpriv.audit(run, messages=1, label_shadows=40, membership_shadows=4, singles=2, budget=240))
    there, here = rows
    assert there.answer == here.answer
