"""The privacy statement of a run, from the ledger that writes it."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.config import PrivacyConfig
from fedpriv.privacy.ledger import Ledger


def statement(level: str) -> Iterator[str]:
    """What a run at this level says at its end, without its figures."""
    privacy = PrivacyConfig.model_validate({"level": level, "noise": 1.0})
    said = Ledger(privacy, {}, [(0,)]).statement(clients=1, participation=0.1)
    yield f"* **Neighbours**: {said['adjacency']}."
    yield f"* **It holds if** {said['holds_if'].replace('0.1 a round', '`train.participation` a round')}."
    yield "* **Not covered**:\n"
    yield from (f"    * {one}" for one in said["not_covered"])
