"""What the attack commands share: an attack that fails its controls reports nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv.cli.common import console
from fedpriv.errors import FedprivError

if TYPE_CHECKING:
    from rich.console import Console

    from attacks.controls import Control

WIDTH = 120


def wide_console() -> Console:
    """As :func:`fedpriv.cli.common.console`, but a file has no width to keep to."""
    out = console()
    if not out.is_terminal:
        out.width = WIDTH
    return out


def held_to(controls: Sequence[Control], out: Console) -> None:
    """Print how the controls ended.

    Raises:
        FedprivError: one failed.
    """
    for control in controls:
        out.print(f"control ({control.name}): {control.sentence}", soft_wrap=True, markup=False)
    if failed := [control.sentence for control in controls if not control.passed]:
        raise FedprivError(f"a control failed, so nothing can be said: {failed[0]}")
