"""``fedpriv methods``: the methods, their client and server parts, and their options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console, described_options
from fedpriv.cli.listing import Rows, listed
from fedpriv.cli.terminal import styled
from fedpriv.errors import UnknownName

if TYPE_CHECKING:
    from fedpriv.interfaces import Part
    from fedpriv.methods import Method


@command(main, "methods")
@click.argument("names", nargs=-1, metavar="[NAME]...")
def methods(names: tuple[str, ...]) -> dict[str, Any]:
    """List the methods, their client and server parts, and their options.

    Shows the roles that each method shares, what stays on the client, what is sent besides the model, and the options with
    defaults and sources. NAMEs restrict the list, and show the options of objectives and aggregations, too. An objective (what
    a client minimises) can be combined with any aggregation (how the server merges).

    \b
    Example: fedpriv methods
             fedpriv methods feddual
             fedpriv train --objective moon --aggregation simprox
    """
    rows = listed("methods", compute=_all)
    known = {row["name"] for group in rows.values() for row in group}
    for name in names:
        if name not in known:
            raise UnknownName("method, objective or aggregation", name, known)
    shown = {kind: [row for row in group if not names or row["name"] in names] for kind, group in rows.items()}
    for kind, group in shown.items():
        _print(kind, group, options=bool(names) or kind == "methods")
    hint = "Set with --set method.OPTION=VALUE; of another part: objective.OPTION, aggregation.OPTION."
    console().print(styled((hint, "dim")))
    return shown


def _all() -> Rows:
    from fedpriv.aggregation import aggregations
    from fedpriv.methods import methods as all_methods
    from fedpriv.objectives import objectives

    return {
        "methods": [_method(method) for method in all_methods().values()],
        "objectives": [_part(part) for part in objectives().values()],
        "aggregations": [_part(part) for part in aggregations().values()],
    }


def _method(method: type[Method]) -> dict[str, Any]:
    from fedpriv.methods.base import options_of
    from fedpriv.models.net import ROLES

    # The predictor is shared only if the net has one; the other roles always exist.
    shared = method.shared & method.objective_class.trained_roles
    parts: Sequence[Any] = (method, method.objective_class, method.aggregation_class) if method.shared else (method,)
    stays: list[str] = [
        role for role in ("encoder", "projector", "head") if role in method.objective_class.trained_roles - shared
    ]
    if not method.shared:
        stays = ["nothing: all training samples are in one place" if method.pools else "everything"]
    return {
        "name": method.name,
        "title": method.title,
        "paper": method.paper,
        "objective": method.objective_class.name,
        "aggregation": method.aggregation_class.name if method.shared else None,
        "shares": [role for role in ROLES if role in shared],
        "keeps": [*stays, *_words(part.keeps for part in parts)],
        "sends_besides": _words(part.sends for part in parts),
        "broadcasts_initial_model": method.round_zero,
        "suggests": {**method.aggregation_class.suggests, **method.objective_class.suggests, **method.suggests},
        "options": described_options(options_of(method)),
    }


def _part(part: type[Part]) -> dict[str, Any]:
    return {
        "name": part.name,
        "title": part.title,
        "paper": part.paper,
        "keeps": _words([part.keeps]),
        "sends_besides": _words([part.sends]),
        "suggests": dict(part.suggests),
        "options": described_options(part.Params),
    }


def _words(texts: Iterable[str]) -> list[str]:
    return [text for text in texts if text]


def _print(kind: str, rows: Sequence[dict[str, Any]], options: bool) -> None:
    from rich.padding import Padding
    from rich.table import Table

    if not rows:
        return
    console().rule(styled((kind, "bold")), align="left")
    for row in rows:
        console().print(styled((row["name"], "bold"), f"  {row['title']} ", (row["paper"], "dim")))
        facts = Table.grid(padding=(0, 1))
        facts.add_column(no_wrap=True, style="dim")
        facts.add_column(overflow="fold")
        if "objective" in row and row["aggregation"]:
            facts.add_row("parts", f"objective {row['objective']}, aggregation {row['aggregation']}")
        if "shares" in row:
            facts.add_row("shares", ", ".join(row["shares"]) or "nothing")
        for key, label in (("keeps", "client keeps"), ("sends_besides", "also sends")):
            if row[key]:
                facts.add_row(label, "; ".join(row[key]))
        if row["suggests"]:
            facts.add_row("suggests", ", ".join(f"{key}={value}" for key, value in row["suggests"].items()))
        for option in row["options"] if options else ():
            facts.add_row(f"{option['name']} = {_value(option['default'])}", option["description"])
        console().print(Padding(facts, (0, 0, int(options), 4)))


def _value(default: Any) -> str:
    return ", ".join(map(str, default)) or "()" if isinstance(default, list) else str(default)
