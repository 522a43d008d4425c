"""Does every method train, and can its runs be audited, on a device whose tensors do not mix with the CPU's?

Needs no GPU: ``devices.cpp`` is a PrivateUse1 device, compiled here, with tensors in the CPU's memory. An operator on tensors of
both devices is an error, as on CUDA. A run there must give the CPU's numbers up to rounding. Does not cover speed, memory and
CUDA's own kernels. Needs a C++ compiler and ninja. ``--device cuda`` runs the same on a GPU.
"""

from __future__ import annotations

import math
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
from machine import facts, parser_of, report
from torch.utils import backend_registration
from torch.utils.cpp_extension import load

import fedpriv
from fedpriv.config import device as device_config
from fedpriv.methods import methods

HERE = Path(__file__).parent
NAME = "apart"
CLOSE = 1e-3
"""Largest difference of numbers: the device composes operators of others."""
DEVICE = ("seconds", "padding")
"""Numbers that depend on the device: time, and the samples that pad its groups."""
TIES = 0.03
"""Largest difference of accuracies."""
DIGITS = {"dataset": "digits", "clients": 6, "rounds": 2, "train.participation": 1.0}


def register() -> None:
    """Compile the device and register it with torch and fedpriv."""
    torch.utils.rename_privateuse1_backend(NAME)
    load("devices", [str(HERE / "devices.cpp")], extra_cflags=["-O1"])
    registration: Any = backend_registration  # its classes for devices registered from Python
    kept = registration._DummyBackendModule(), registration._DummyPrivateUse1Hook(), registration._DummyDeviceGuard()
    torch.utils.generate_methods_for_privateuse1_backend()
    torch._register_device_module(NAME, kept[0])
    accelerators: Any = torch._C._acc  # type: ignore[attr-defined]
    accelerators.register_python_privateuseone_hook(kept[1])
    accelerators.register_python_privateuseone_device_guard(kept[2])
    globals()["_kept"] = kept  # torch keeps no reference
    device_config.DEVICES = (*device_config.DEVICES, NAME)


def cases() -> dict[str, dict[str, Any]]:
    """Configs by name: all methods, and everything else that computes on the device."""
    images = torch.rand(120, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (120,), generator=torch.Generator().manual_seed(1))
    photographs = {"dataset": (images.numpy(), labels.numpy()), "clients": 3, "rounds": 1, "train.local_epochs": 1}
    configs: dict[str, dict[str, Any]] = {name: {**DIGITS, "method": name} for name in methods() if name != "l-dawa"}
    configs |= {f"{name}, sequential": {**DIGITS, "method": name, "executor": "sequential"} for name in ("mpfedcon", "scaffold")}
    configs |= {f"aggregation {name}": {**DIGITS, "method": "fedavg", "aggregation": name} for name in ("l-dawa", "euc", "fedu")}
    for name in ("simclr", "barlow-twins"):
        configs[name] = {**photographs, "method": "l-dawa", "objective": name, "model.name": "resnet9_narrow"}
    configs["convolutions"] = {**photographs, "method": "mpfedcon", "model.name": "cnn10", "data.augment": "crop_flip_rotate"}
    for name, options in (
        ("Adam", {"train.optimizer": "adam"}),
        ("DP of samples", {"privacy.level": "sample", "privacy.noise": 1.0}),
        ("DP of samples, ghost clipping", {"privacy.level": "sample", "privacy.noise": 1.0, "privacy.clipping": "ghost"}),
        ("DP of clients", {"privacy.level": "client", "privacy.noise": 1.0}),
        ("secure aggregation", {"wire.secure_aggregation": True}),
        ("fresh heads", {"method": "fedrep", "eval.fresh_head": 1}),
        *((name, {"wire.transforms": [{"name": name}]}) for name in ("gaussian", "laplace", "prune", "quantise", "clip", "cast")),
    ):
        configs[name] = {**DIGITS, "method": "fedavg", **options}
    return configs


def history(config: dict[str, Any], device: str, folder: Path) -> tuple[fedpriv.Run, dict[str, list[float]]]:
    """A run, and the numbers in its records."""
    run = fedpriv.train(**config, device=device, tracking_uri="none", runs_dir=str(folder))
    table = run.history
    numbers = [column for column in table.columns if table[column].dtype.kind == "f" and column not in DEVICE]
    return run, {column: [float(value) for value in table[column]] for column in numbers}


def differing(expected: dict[str, list[float]], actual: dict[str, list[float]]) -> list[str]:
    """The numbers that differ by more than rounding; accuracies, by more than a few samples near a tie."""

    def close(name: str, a: float, b: float) -> bool:
        within = CLOSE if name.endswith("loss") or name.startswith("bytes") else TIES
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=CLOSE, abs_tol=within)

    def same(name: str) -> bool:
        return all(
            close(name, *pair) for pair in zip(expected[name], actual.get(name, [math.inf] * len(expected[name])), strict=True)
        )

    return [name for name in expected if not same(name)]


def where(error: BaseException) -> str:
    """The error, and its last frames in fedpriv."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    last = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-4:])
    return f"{type(error).__name__}: {str(error).splitlines()[0]} ({last})"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="*", help="parts of names of cases")
    parser.add_argument("--device", default=NAME, help="cuda, or the device that is compiled here")
    parser.add_argument("--audits", nargs="*", default=["mpfedcon", "fedavg", "fedrep"], help="methods whose runs are audited")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.device == NAME:
        register()
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, config in cases().items():
            if args.only and not any(part in name for part in args.only):
                continue
            try:
                expected = history(config, "cpu", Path(temporary))[1]
                differ = differing(expected, history(config, args.device, Path(temporary))[1])
                results[name] = f"other numbers: {', '.join(differ)}" if differ else "the same"
            except Exception as error:
                results[name] = where(error)
            print(f"{name}: {results[name]}", flush=True)
        for name in args.audits:
            try:
                run = history({**DIGITS, "clients": 20, "method": name}, args.device, Path(temporary))[0]
                fedpriv.audit(run, messages=1, label_shadows=40, membership_shadows=4, singles=2, budget=240)
                results[f"audit of {name}"] = "the same"
            except Exception as error:
                results[f"audit of {name}"] = where(error)
            print(f"audit of {name}: {results[f'audit of {name}'].replace('the same', 'audited')}", flush=True)
    failed = {name: result for name, result in results.items() if result != "the same"}
    print(f"{len(results) - len(failed)} of {len(results)} as on the CPU")
    about = facts(["torch", "fedpriv"])
    report({**about, "device": args.device, "cases": len(results), "failed": failed}, args.json, list(failed))


if __name__ == "__main__":
    main()
