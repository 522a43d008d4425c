"""The head of a folder's report: how far each experiment is, and how each claim of the paper came out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.experiments.markdown import table

OURS = "Ours:"
"""What the statement of a claim that is not the paper's begins with."""

_REST = """Claims of our own, and the figures, are in the sections. Claims without a result yet are in the YAML."""

Record = Mapping[str, Any]
"""An experiment's ``as_data()``."""


def anchor(record: Record) -> str:
    """The anchor of an experiment's section."""
    return f'<a id="{_name(record)}"></a>'


def overview(records: Sequence[Record]) -> list[str]:
    """Paragraphs: a table of the experiments, and one of the paper's claims for which there are results, by id.

    Args:
        records: the experiments in the order of their sections; ``begun``: has a section.
    """
    experiments = [
        (_linked(record, record["title"]), f"{record['total'] - len(record['missing'])} of {record['total']}")
        for record in records
    ]
    parts = ["## At a glance", table("experiment | done", experiments)]
    claims = [(claim, record) for record in records if record["begun"] for claim in record["claims"] if _counts(claim)]
    if not claims:
        return parts
    rows = [
        (claim["id"], " ".join(claim["statement"].split()), _linked(record, _name(record)), _verdict(claim))
        for claim, record in sorted(claims, key=lambda pair: _by_number(pair[0]["id"]))
    ]
    return [*parts, table("claim | the paper | experiment | verdict", rows), _REST]


def _counts(claim: Record) -> bool:
    return claim["tested"] and not claim["statement"].startswith(OURS)


def _verdict(claim: Record) -> str:
    return f"{claim['verdict']} ({claim['remark']})" if claim["remark"] else str(claim["verdict"])


def _by_number(id: str) -> list[int | str]:
    """C9 before C10a."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", id)]


def _linked(record: Record, text: str) -> str:
    return f"[{text}](#{_name(record)})" if record["begun"] else text


def _name(record: Record) -> str:
    return Path(record["file"]).stem
