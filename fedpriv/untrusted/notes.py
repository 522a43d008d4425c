"""Notes of calls from Python, as printable lines of the logger ``fedpriv``, which a program shows, keeps or silences as usual."""

from __future__ import annotations

import logging

from fedpriv.untrusted.names import printable

LOGGER = logging.getLogger("fedpriv")


def note(text: str) -> None:
    """Log a line at level WARNING, which Python prints unless the program has set up logging otherwise."""
    LOGGER.warning("%s", printable(text))
