"""``fedpriv record``: records of federations that run elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console
from fedpriv.cli.terminal import FilePath


@main.group("record")
def record() -> None:
    """Records of federations that run in Flower or in a loop of your own.

    `fedpriv audit FOLDER` audits one.

    \b
    Example: fedpriv record check FOLDER
    """


@command(record, "check")
@click.argument("folder", type=FilePath(file_okay=False))
def check(folder: Path) -> dict[str, Any]:
    """Say what an audit of a record can tell, and what to record for more.

    \b
    Example: fedpriv record check record
    """
    from fedpriv.recorder.check import check as read
    from fedpriv.recorder.reader import Recorded

    contents = read(Recorded(folder))
    out = console()
    out.print(
        f"{contents.messages} messages of {contents.clients} clients in {contents.rounds} rounds; "
        f"{contents.attackable} of them can be attacked"
    )
    if contents.ended:
        out.print(f"the record ends before training: {contents.ended}")
    if contents.cut:
        out.print(f"messages whose lines were cut off by a kill or a full disk, and are left out: {contents.cut}")
    for ability in contents.abilities:
        out.print(f"  {ability.part}: {'not yet; record ' + '; '.join(ability.missing) if ability.missing else 'yes'}")
    return asdict(contents)
