"""``fedpriv defenses``: list the defences, which transform an upload before it is sent."""

from __future__ import annotations

from typing import Any

from fedpriv.cli import main
from fedpriv.cli.common import command, console, described_options
from fedpriv.cli.listing import Rows, listed
from fedpriv.cli.terminal import ruled_table, styled


@command(main, "defenses")
def defenses() -> dict[str, Any]:
    """List the defences and their options.

    They are listed in the order in which they may be combined; a mask may be anywhere.

    \b
    Example: fedpriv defenses
             fedpriv train --mask-layers 2 --defense clip:norm=1 --defense gaussian --variance 1e-4
    """
    rows = listed("defenses", compute=_all)
    table = ruled_table("name", "what it does", "options (default)")
    for row in rows["defenses"]:
        table.add_row(row["name"], row["about"], _options(row["options"]))
    console().print(table)
    hint = "With --defense NAME[:OPTION=VALUE,...], or wire.transforms in a config; --json describes the options."
    console().print(styled((hint, "dim")))
    return rows


def _all() -> Rows:
    from fedpriv.defenses import transforms

    rows: list[dict[str, Any]] = []
    for name, transform in transforms().items():
        options = described_options(transform)
        about = " ".join((transform.__doc__ or name).partition("\n\n")[0].split())
        rows.append({"name": name, "about": about, "options": options})
    return {"defenses": rows}


def _options(options: list[dict[str, Any]]) -> Any:
    lines = [((option["name"], "bold"), f" = {option['default']}\n") for option in options]
    text = styled(*(part for line in lines for part in line))
    text.rstrip()
    return text
