"""The head of a folder's report: how far each experiment is, and how each claim of the paper came out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.config import read_yaml
from fedpriv.experiments.markdown import table

OURS = "Ours:"
"""What the statement of a claim that is not the paper's begins with."""

_REST = """Verdicts by experiment; the sections have the figures and what differs from the paper. Claims that no run has been held
against yet are in the YAML."""

Record = Mapping[str, Any]
"""An experiment as a report says it as data."""


def place(file: Path) -> tuple[float, str]:
    """The place of a YAML's section among those of its folder: by its ``section``, then by the file's name."""
    section = read_yaml(file).get("section")
    return (section if isinstance(section, int) else math.inf, file.name)


def anchor(record: Record) -> str:
    """What links to an experiment's section lead to."""
    return f'<a id="{_name(record)}"></a>'


def overview(records: Sequence[Record]) -> list[str]:
    """Paragraphs: a table of the experiments, and one of the paper's claims that some runs were held against, by id."""
    parts = [
        "## At a glance",
        table("experiment | done", [(_linked(one, one["title"]), _done(one)) for one in records]),
    ]
    found: dict[str, tuple[str, dict[str, list[Record]]]] = {}
    for record in records:
        for claim in record["claims"] if record["begun"] else []:
            if claim.get("values") != {} and not claim["statement"].startswith(OURS):
                _, verdicts = found.setdefault(claim["id"], (claim["statement"], {}))
                verdicts.setdefault(claim["verdict"], []).append(record)
    rows = [(id, " ".join(found[id][0].split()), _verdicts(found[id][1])) for id in sorted(found, key=_by_number)]
    return [*parts, table("claim | the paper | verdict", rows), _REST] if rows else parts


def _verdicts(of_claim: Mapping[str, Sequence[Record]]) -> str:
    """Such as ``not reproduced`` (where), ``inconclusive`` (where)."""
    parts = [f"{verdict} ({', '.join(_linked(one, _name(one)) for one in where)})" for verdict, where in of_claim.items()]
    return ", ".join(parts)


def _by_number(id: str) -> list[int | str]:
    """C9 before C10a."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", id)]


def _linked(record: Record, text: str) -> str:
    return f"[{text}](#{_name(record)})" if record["begun"] else text


def _name(record: Record) -> str:
    return Path(record["file"]).stem


def _done(record: Record) -> str:
    return f"{record['total'] - len(record['missing'])} of {record['total']}"
