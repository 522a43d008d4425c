"""The status of an attack: it found something, what it attacked resisted, or it is not known which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReasonKind = Literal[
    "does not apply", "too many samples", "too many steps", "not needed", "control failed", "budget spent", "no control",
    "differs from controls", "same net", "too few samples", "not available", "other inputs",
]  # fmt: skip
"""Why an attack was not run, or why its failure is no evidence.

* ``does not apply``: the attack refuses the message.
* ``too many samples``, ``too many steps``: more samples or steps are behind a message than in the attack's control.
* ``not needed``: another attack recovered all.
* ``control failed``; ``no control``: no control shows that it can succeed.
* ``differs from controls``: the message is harder than those of the controls.
* ``same net``: the attack fails on undefended messages of the attacked net, too.
* ``too few samples``: even a perfect result could be chance.
* ``not available``: what the attack needs was not sent, kept or given.
* ``other inputs``: the net also takes inputs that the attack cannot reconstruct.
"""
_NOT_TRIED: frozenset[ReasonKind] = frozenset(("too many samples", "too many steps", "not needed", "other inputs"))


@dataclass(frozen=True)
class Reason:
    """Why an attack was not run, or why its failure is no evidence.

    Attributes:
        text: a clause for readers; no decision depends on it.
    """

    kind: ReasonKind
    text: str

    def __str__(self) -> str:
        return f"not tried: {self.text}" if self.kind in _NOT_TRIED else self.text


@dataclass(frozen=True)
class Status:
    """Whether an attack succeeded, and whether its failure is evidence.

    Attributes:
        word: ``found``: the attack found more than guesses would. ``resisted``: it found no more, and its controls show that it
            could have. ``inconclusive``: it found no more, and its failure is no evidence. ``not run``: it was not run.
        reasons: why the attack was not run, or why there may be more than it found; empty where its failure is evidence.
    """

    word: Literal["found", "resisted", "inconclusive", "not run"]
    reasons: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, succeeded: bool, reasons: tuple[Reason, ...]) -> Status:
        """The status of an attack that was run."""
        return cls("found" if succeeded else "inconclusive" if reasons else "resisted", reasons)

    @classmethod
    def not_run(cls, reason: Reason) -> Status:
        """The status of an attack that was not run."""
        return cls("not run", (reason,))

    @property
    def was_run(self) -> bool:
        """Whether the attack was run."""
        return self.word != "not run"

    @property
    def is_evidence(self) -> bool:
        """Whether the attack was run and nothing casts doubt on what it missed."""
        return self.was_run and not self.reasons

    @property
    def why(self) -> str:
        """The reasons, in one clause."""
        return "; ".join(dict.fromkeys(map(str, self.reasons)))
