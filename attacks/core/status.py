"""What an attack's result says: it found something, resisted is what it did not find, or why neither is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReasonKind = Literal[
    "does not apply", "too many samples", "too many steps", "not needed", "control failed", "budget spent", "no control",
    "unlike the controls", "same net", "too few samples", "not available", "other inputs",
]  # fmt: skip
"""Why an attack was not run, or why its failure is no evidence.

``does not apply``: the attack refuses the message. ``too many samples``, ``too many steps``: behind a message, for a budget whose
control succeeds. ``not needed``: another attack recovered all. ``control failed``; ``no control``: none shows that it can
succeed. ``unlike the controls``: the message is harder than those of the controls. ``same net``: it fails on undefended messages
of the attacked net, too. ``too few samples``: even a perfect result could be chance. ``not available``: what it needs was not
sent, kept or given. ``other inputs``: the net also takes what the attack cannot reconstruct.
"""
_NOT_TRIED: frozenset[ReasonKind] = frozenset(("too many samples", "too many steps", "not needed", "other inputs"))


@dataclass(frozen=True)
class Reason:
    """Why an attack was not run, or why its failure is no evidence.

    Attributes:
        text: a clause, for readers; no decision is made by it.
    """

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return f"not tried: {self.text}" if self.kind in _NOT_TRIED else self.text


@dataclass(frozen=True)
class Status:
    """Whether an attack reached its goal, and whether its failure is evidence.

    Attributes:
        word: ``found``: more than guesses would find. ``resisted``: it did not, and its controls show that it could have.
            ``inconclusive``: it did not, and its failure is no evidence. ``not run``: it was not mounted.
        reasons: why it was not run, or why more may be found than it found; empty where its failure is evidence.
    """

    word: Literal["found", "resisted", "inconclusive", "not run"]
    reasons: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, found: bool, reasons: tuple[Reason, ...]) -> Status:
        """The status of an attack that was run."""
        return cls("found" if found else "inconclusive" if reasons else "resisted", reasons)

    @classmethod
    def not_run(cls, reason: Reason) -> Status:
        """The status of an attack that was not run."""
        return cls("not run", (reason,))

    @property
    def was_run(self) -> bool:
        """Whether the attack was mounted."""
        return self.word != "not run"

    @property
    def is_evidence(self) -> bool:
        """Whether what the attack did not find is evidence that it cannot be found by it."""
        return self.was_run and not self.reasons

    @property
    def why(self) -> str:
        """The reasons, in one clause."""
        return "; ".join(dict.fromkeys(map(str, self.reasons)))
