"""``fedpriv new-plugin``: write a working package as the start of a plug-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console
from fedpriv.cli.terminal import FilePath

_SHORT = "train --clients 4 --participation 0.5 --rounds 1 --local-epochs 1"
_TRAIN = f"{_SHORT} --tracking-uri none"
KINDS = {
    "method": ("fedpriv.methods", f"{_TRAIN} --method"),
    "objective": ("fedpriv.objectives", f"{_TRAIN} --objective"),
    "aggregation": ("fedpriv.aggregation", f"{_TRAIN} --aggregation"),
    "defense": ("fedpriv.transforms", f"{_TRAIN} --defense"),
    "model": ("fedpriv.models", f"{_TRAIN} --model"),
    "dataset": ("fedpriv.data", f"{_TRAIN} --dataset"),
    "partition": ("fedpriv.partitions", f"{_TRAIN} --partition"),
    "tracker": ("fedpriv.trackers", f"{_SHORT} --tracking"),
    "attack": ("attacks", "attack --n 1"),
}
"""Kind -> its entry-point group, and a command to which the plug-in's name is appended."""
_TEMPLATES = Path(__file__).parent / "plugin_templates"


@command(main, "new-plugin")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("folder", metavar="[DIR]", required=False, type=FilePath())
def new_plugin(kind: str, folder: Path | None) -> dict[str, Any]:
    """Write a package with a small plug-in of a kind, its entry point, a test and a README.

    The plug-in has the name of the folder DIR; the default is my-KIND.

    \b
    Example: fedpriv new-plugin method lg-fedavg
             fedpriv train --plugin lg-fedavg/lg_fedavg.py --method lg-fedavg
             uv pip install -e lg-fedavg && fedpriv train --method lg-fedavg
    """
    from string import Template

    from fedpriv.errors import UsageError
    from fedpriv.files import write_atomically

    folder = folder or Path(f"my-{kind}")
    name = folder.resolve().name
    module = name.replace("-", "_")
    if not (name.isascii() and module.isidentifier()):
        raise UsageError(f"{name!r} is no name of a plug-in: letters, digits, - and _, such as my-{kind}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already; name a new folder")
    group, words = KINDS[kind]
    a_kind = f"{'An' if kind[0] in 'aeiou' else 'A'} {kind}"
    values = {"name": name, "module": module, "a_kind": a_kind, "group": group, "command": f"{words} {name}"}
    written = {"pyproject.toml": "pyproject.toml", f"{module}.py": kind, f"tests/test_{module}.py": "test", "README.md": "readme"}
    for file, template in written.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            folder / file, Template((_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")).substitute(values).encode()
        )
    out = console()
    out.print(f"written: {folder}", soft_wrap=True)
    out.print(f"try it: fedpriv {words} {name} --plugin {folder / f'{module}.py'}", soft_wrap=True)
    out.print(f"test it: pytest {folder}; install it: pip install -e {folder}", soft_wrap=True)
    return {"kind": kind, "name": name, "folder": str(folder), "files": list(written)}
