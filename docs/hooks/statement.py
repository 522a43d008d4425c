"""The privacy statement of a run, from the ledger that writes it."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.config import PrivacyConfig
from fedpriv.privacy.ledger import Ledger


def statement(level: str) -> Iterator[str]:
    """What a run at this level says at its end, without its figures, in a simulation and in a deployment."""
    ledger = Ledger(PrivacyConfig.model_validate({"level": level, "noise": 1.0}), {}, [(0,)])
    here = ledger.statement(clients=1, participation=0.1)
    there = here if level == "client" else ledger.statement(clients=1, participation=0.1, randomness="secrets", apart=True)
    yield f"* **Neighbours**: {here['adjacency']}."
    if there["adjacency"] != here["adjacency"]:
        yield f"* **Neighbours in a deployment**: {there['adjacency']}."
    yield f"* **It holds if** {here['holds_if'].replace('probability 0.1 per', 'probability `train.participation` per')}."
    yield "* **Not covered**:\n"
    everywhere = {*here["not_covered"]} & {*there["not_covered"]}
    for gap in dict.fromkeys((*here["not_covered"], *there["not_covered"])):
        where = "" if gap in everywhere else "in a simulation: " if gap in here["not_covered"] else "in a deployment: "
        yield f"    * {where}{gap}"
