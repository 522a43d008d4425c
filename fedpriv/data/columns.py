"""The roles of a table's columns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns; at least an image or a text."""

    label: str
    image: str | None = None
    text: str | None = None
