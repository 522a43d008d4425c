"""Blocks in which fedpriv logs a note, or none."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedpriv.untrusted.notes import LOGGER


@contextmanager
def notes() -> Iterator[list[str]]:
    """A block whose notes are collected."""
    lines = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    LOGGER.addHandler(handler)
    try:
        yield lines
    finally:
        LOGGER.removeHandler(handler)


@contextmanager
def noted(match: str) -> Iterator[None]:
    """A block that logs a note in which a pattern is found."""
    with notes() as lines:
        yield
    assert any(re.search(match, line) for line in lines), lines


@contextmanager
def no_notes() -> Iterator[None]:
    """A block that logs no note."""
    with notes() as lines:
        yield
    assert not lines
