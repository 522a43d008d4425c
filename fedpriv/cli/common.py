"""Common parts of all commands: ``--json``, ``--debug``, ``--plugin``, and errors in one or two lines."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fedpriv.cli.families import family_of
from fedpriv.cli.terminal import FilePath, say, shown_error, terminal
from fedpriv.errors import FedprivError, UsageError, in_a_line

if TYPE_CHECKING:
    from rich.console import Console


def command(group: click.Group, name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Register a function as ``fedpriv <name>`` with ``--json``, ``--debug`` and ``--plugin``.

    The function returns its result as a mapping (or ``None``); with ``--json`` that mapping, or ``{"error": ...}``, is the
    last line of standard output, and whatever :func:`console` prints goes to standard error.
    """

    def register(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(*args: Any, as_json: bool, debug: bool, plugin: tuple[Path, ...], **kwargs: Any) -> None:
            context = click.get_current_context()
            context.meta["fedpriv.json"] = as_json

            def fail(code: int, text: str, hint: str = "", **more: Any) -> NoReturn:
                say(f"fedpriv: {text}{hint}", err=True)
                if as_json:
                    click.echo(json.dumps({"error": text, **more}))
                sys.exit(code)

            try:
                if plugin:
                    from fedpriv.plugins import load_plugins

                    context.meta["fedpriv.plugins"] = tuple(file.absolute() for file in plugin)
                    load_plugins(plugin)
                result = function(*args, **kwargs)
            except FedprivError as error:
                if debug:
                    say(traceback.format_exc(), err=True)
                family = family_of(error)
                fail(error.exit_code, shown_error(error), f"  [{family}]" if family else "", family=family)
            except KeyboardInterrupt:
                fail(130, "interrupted")
            except MemoryError:
                fail(1, "out of memory")
            except Exception as error:
                if debug:
                    say(traceback.format_exc(), err=True)
                from fedpriv.plugins import line_of_plugin

                line = line_of_plugin(error)
                more, tag = (f"in {line}; ", "  [plug-in]") if line else ("", "")
                hint = f"{tag}\n({more}--debug shows where)"
                fail(1, shown_error(Exception(in_a_line(error))), hint, **({"family": "plug-in"} if line else {}))
            if as_json:
                click.echo(json.dumps(result))

        run = click.option(
            "--plugin",
            multiple=True,
            envvar="FEDPRIV_PLUGINS",
            type=FilePath(),
            metavar="FILE.py",
            help="Import a file that registers plug-ins; repeatable.",
        )(run)
        run = click.option("--debug", is_flag=True, help="Show the traceback of an error.")(run)
        run = click.option("--json", "as_json", is_flag=True, help="One JSON object on the last line of standard output.")(run)
        return group.command(name, **settings)(run)

    return register


RUNS_DIR = click.option(
    "--runs-dir", type=FilePath(), default=Path("runs"), show_default=True, help="Folder that holds the run folders."
)
DATA_DIR = click.option("--data-dir", type=FilePath(), help="Folder with <name>/{train,test}.parquet (or set FEDPRIV_DATA).")
STORE = click.option("--tracking-uri", help="MLflow store for the result. Required if the run names a store other than yours.")


def png(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Callback of an ``--output`` that is a picture: reject what cannot be written before anything is computed for it."""
    if path is None:
        return None
    if path.suffix.lower() != ".png" or path.is_dir():
        raise click.BadParameter(f"{path} is not the name of a PNG file, such as {path.with_suffix('.png').name}")
    return writable(_context, _parameter, path)


def writable(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Callback of an option that names a file: reject what cannot be written before anything is computed for it."""
    if path is None:
        return None
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise click.BadParameter(
            f"cannot write {path}: {path if path.is_dir() else folder} is not a "
            f"{'file' if path.is_dir() else 'folder'} that you may write to"
        )
    return path


def described_options(schema: Any) -> list[dict[str, Any]]:
    """Name, default and description of the fields of a dataclass of options."""
    return [
        {
            "name": f.name,
            "default": getattr(f.default, "default", f.default),
            "description": getattr(f.default, "description", "") or "",
        }
        for f in dataclasses.fields(schema)
    ]


def run_folders(runs: tuple[str, ...], runs_dir: Path, records: bool = False) -> list[Path]:
    """The folders of runs given as :func:`fedpriv.tracking.find_run` takes them, each once.

    Files of tracking, experiments and sweeps beside the run folders are skipped, so that ``runs/*`` means the runs.

    Args:
        records: folders of records are taken, too.
    """
    from fedpriv.recorder.reader import is_record
    from fedpriv.tracking import find_run

    given = [run for run in runs if not _is_store(Path(run))]
    folders = [Path(run) if records and is_record(Path(run)) else find_run(run, runs_dir) for run in given]
    if not folders:
        raise UsageError(f"no runs among {', '.join(runs)}")
    return list({folder.resolve(): folder for folder in folders}.values())


def _is_store(path: Path) -> bool:
    return path.exists() and (path.name.startswith("mlflow.db") or path.name in ("mlartifacts", "experiments", "sweeps"))


def loading() -> None:
    """Load PyTorch, and say so before, as it takes seconds; unless it is there.

    The garbage collector is off meanwhile, and never looks at the objects of PyTorch's modules, which are a million.
    """
    if "torch" not in sys.modules:
        say("loading PyTorch", err=True)
        collects = gc.isenabled()
        gc.disable()
        try:
            import torch  # noqa: F401
        finally:
            gc.freeze()
            if collects:
                gc.enable()


def console(width: int | None = None) -> Console:
    """The console for human-readable output: standard output, or standard error with ``--json``.

    Args:
        width: in characters, if the output is a file; ``None``: rich's default.
    """
    console: Console = terminal(err=bool(click.get_current_context().meta.get("fedpriv.json")))
    if width is not None and not console.is_terminal:
        console.width = width
    return console


def send(folder: Path, uri: str | None, what: str, out: Console) -> None:
    """Send what a command has added to a run folder to MLflow; where that fails, say so and how to send it later."""
    from fedpriv.tracking import ForeignStore, TrackingError, sync

    try:
        sync(folder, uri)
    except (TrackingError, ForeignStore) as error:
        out.print(f"{what} is not in MLflow: {error}; later: fedpriv sync {shlex.quote(str(folder))}", soft_wrap=True)
