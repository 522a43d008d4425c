"""Common parts of the attack commands: an attack that fails its controls reports nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedpriv.cli.terminal import say, terminal
from fedpriv.cli.terminal import shown as shown_text
from fedpriv.errors import FedprivError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from fedpriv.attacks.lab.control import Control

T = TypeVar("T")

PULSE = 4.0
"""Seconds between two looks at what is being done, on a terminal, whose line they replace."""
PULSE_IN_A_FILE = 60.0
"""Seconds between two lines on what is being done, where the output is no terminal."""


def with_options(kind: type[T], name: str, options: Mapping[str, Any]) -> T:
    """An attack of a kind with the options that the user gave.

    Raises:
        UsageError: it has no such option, or the value is not valid.
    """
    from fedpriv.attacks.core.by_name import nearest
    from fedpriv.attacks.core.options import defaults_of, taken

    defaults = defaults_of(kind)
    for option in options.keys() - defaults.keys():
        raise UsageError(f"{name} has no option {option!r}; {nearest(option, defaults)}")
    try:
        return kind(**taken(kind, dict(options)))
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from None


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A block that reports ``total`` steps of work on standard error, each as it begins: a bar on a terminal, lines elsewhere,
    nothing with ``--json``. Further steps count as the last. During a step it says every :data:`PULSE` seconds (in a file,
    :data:`PULSE_IN_A_FILE`) how far the attack is (:mod:`fedpriv.attacks.core.doing`). No time left is shown: an attack that
    optimises takes a hundred times as long as the steps before it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if click.get_current_context().meta.get("fedpriv.json"):
        yield lambda text: None
        return
    from fedpriv.attacks.core.doing import now

    shown, began, done, step = terminal(err=True), time.monotonic(), 0, ""
    description = TextColumn("{task.description}", markup=False)
    columns = (description, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Results still go to standard output while the bar is shown.
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)

        def begin(text: str) -> None:
            nonlocal done, step
            step = text
            bar.update(task, description=shown_text(text), completed=done)
            if not shown.is_terminal:
                say(f"{done + 1} of {total}: {text}", err=True)
            done = min(done + 1, total - 1)

        def beat() -> None:
            far = now()
            if shown.is_terminal:
                bar.update(task, description=shown_text(f"{step}: {far}" if far else step))
            elif step:
                say(f"  {time.monotonic() - began:.0f} s: {far or step}", err=True)

        with _every(PULSE if shown.is_terminal else PULSE_IN_A_FILE, beat):
            yield begin


@contextmanager
def _every(seconds: float, beat: Callable[[], None]) -> Iterator[None]:
    """A block beside which ``beat`` is called in another thread."""
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(seconds):
            beat()

    beside = threading.Thread(target=call, name="progress", daemon=True)
    beside.start()
    try:
        yield
    finally:
        ended.set()
        beside.join()


def tell_controls(controls: Sequence[Control], out: Console) -> None:
    """Print the results of the controls."""
    for control in controls:
        out.print(f"control ({control.name}): {control.sentence}", soft_wrap=True)


def held_to(controls: Sequence[Control]) -> None:
    """
    Raises:
        FedprivError: one failed.
    """
    if failed := [control.sentence for control in controls if not control.passed]:
        raise FedprivError(f"a control failed, so there can be no result: {failed[0]}")
