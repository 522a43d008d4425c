"""The roles of a table's columns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns; at least an image, a text, or features.

    Attributes:
        features: numbers and categories that together are a sample; none where there is an image or a text.
        notes: what the user should know of this choice, a line each.
    """

    label: str
    image: str | None = None
    text: str | None = None
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
