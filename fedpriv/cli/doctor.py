"""``fedpriv doctor``: what this installation has, and what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any, NamedTuple

from fedpriv.cli import main
from fedpriv.cli.common import command, console
from fedpriv.cli.terminal import styled
from fedpriv.errors import extra

_SHOWN = ("torch", "torchvision", "opacus", "transformers", "scipy", "mlflow", "click")
"""Packages whose version may change numbers, or is asked for first in a report of a fault."""


class Line(NamedTuple):
    """A line of the table; ``missing``: how to get what is not there."""

    what: str
    value: str
    missing: str | None = None


@command(main, "doctor")
def doctor() -> dict[str, Any]:
    """Show versions, devices, data folders and caches, and what is missing.

    \b
    Example: fedpriv doctor --json
    """
    from rich.table import Table

    lines = [*_machine(), *(Line(name, version(name)) for name in _SHOWN), *_extras(), *_folders()]
    table = Table(box=None, show_header=False, pad_edge=False)
    for line in lines:
        value = (line.value, "yellow") if line.missing else line.value
        table.add_row(line.what, styled(value, *([f"; {line.missing}"] if line.missing else [])))
    console().print(table)
    return {"lines": [line._asdict() for line in lines], "missing": [line.what for line in lines if line.missing]}


def _machine() -> Iterator[Line]:
    import torch

    from fedpriv.processes import usable_cores

    yield Line("fedpriv", f"{version('fedpriv')} in {Path(__file__).parents[2]}")
    yield Line("Python", f"{platform.python_version()} in {sys.prefix}")
    yield Line("system", f"{platform.platform()}, {usable_cores()} cores")
    devices = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    yield Line("devices", ", ".join(["cpu", *devices]) + "  (--device)")


def _extras() -> Iterator[Line]:
    """The optional parts, each with the packages that it needs."""
    from packaging.requirements import Requirement

    needs: dict[str, list[Requirement]] = {name: [] for name in metadata("fedpriv").get_all("Provides-Extra") or []}
    for text in requires("fedpriv") or []:
        requirement = Requirement(text)
        for name, requirements in needs.items():
            if (
                requirement.marker is not None
                and requirement.marker.evaluate({"extra": name})
                and not requirement.marker.evaluate({"extra": ""})
            ):
                requirements.append(requirement)
    for name, requirements in sorted(needs.items()):
        versions = {requirement.name: _version(requirement.name) for requirement in requirements}
        lacking = [package for package, installed in versions.items() if installed is None]
        present = {package: installed for package, installed in versions.items() if installed is not None}
        wrong = [
            needed for needed in requirements if needed.name in present and not needed.specifier.contains(present[needed.name])
        ]
        text = ", ".join(f"{package} {installed}" for package, installed in present.items())
        if lacking:
            yield Line(f"extra {name}", f"not installed: {', '.join(lacking)}", extra(name))
        elif wrong:
            yield Line(f"extra {name}", text, f"tested with {', '.join(f'{needed.name}{needed.specifier}' for needed in wrong)}")
        else:
            yield Line(f"extra {name}", text)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _folders() -> Iterator[Line]:
    from fedpriv.attacks.lab.control import folder as controls_folder
    from fedpriv.data.sources import sources
    from fedpriv.tracking import default_uri
    from fedpriv.untrusted.cache import cache_folder

    data = os.environ.get("FEDPRIV_DATA")
    if not data:
        yield Line("data folder", "none (FEDPRIV_DATA, --data-dir); other data sets than the built-in come from the hub")
    elif not Path(data).is_dir():
        yield Line("data folder", data, "FEDPRIV_DATA names no folder")
    else:
        here = [name for name in sources() if (Path(data) / name).is_dir()]
        yield Line("data folder", f"{data}: {', '.join(here) or 'none of the data sets of `fedpriv data list`'}")
    yield Line("tracking", f"{default_uri(Path('runs'))}  (MLFLOW_TRACKING_URI, --tracking-uri)")
    for what, folder in (("cache of images", cache_folder()), ("cache of controls", controls_folder())):
        size = sum(file.stat().st_size for file in folder.glob("*") if file.is_file()) if folder.is_dir() else 0
        writable = os.access(next(parent for parent in (folder, *folder.parents) if parent.exists()), os.W_OK)
        yield Line(
            what, f"{folder}, {size / 1e6:.1f} MB", None if writable else "cannot be written, so it is made again each time"
        )
    free = shutil.disk_usage(Path.cwd()).free
    yield Line(
        "this folder", f"{Path.cwd()}, {free / 1e9:.1f} GB free", "runs keep checkpoints and payloads" if free < 1e9 else None
    )
