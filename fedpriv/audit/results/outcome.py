"""What all results share: the sender of a message, the outcome of an attack, its target and its controls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, Self, TypeVar

from fedpriv.attacks.core.status import Reason, Status

TargetKind = Literal["message", "single image", "single text", "single row"]
"""A message that a client sent, or messages of clients with one sample each, which the audit simulated (the easiest case)."""


@dataclass(frozen=True)
class Sender:
    """The sender of a message: a client, or several clients whose uploads were summed.

    Attributes:
        client: its number; ``None``: a sum.
        clients: how many are in the sum; ``trained``: how many of them had a batch to train on.
        name: of the client, where it has one.
    """

    client: int | None
    clients: int = 1
    trained: int = 1
    name: str = ""

    @property
    def short(self) -> str:
        """``3``, or ``sum of 10``."""
        if self.client is not None:
            return self.name or str(self.client)
        return f"sum of {self.clients}{self._few}"

    @property
    def named(self) -> str:
        """``client 3``, or ``sum of 10``."""
        return self.short if self.client is None else f"client {self.short}"

    def message_of(self, round: int) -> str:
        """``client 3's message of round 1``, or ``the sum of 10 clients' uploads of round 1``."""
        if self.client is not None:
            return f"client {self.short}'s message of round {round}"
        return f"the sum of {self.clients} clients' uploads of round {round}{self._few}"

    @property
    def _few(self) -> str:
        return f" (only {self.trained} trained)" if self.trained < self.clients else ""


@dataclass(frozen=True)
class ControlResult:
    """A control of an attack; ``name``: ``positive``, ``negative``, or ``same net``."""

    attacker: str
    name: str
    passed: bool
    sentence: str
    cpu_seconds: float | None


def distinct(controls: Iterable[ControlResult]) -> tuple[ControlResult, ...]:
    """The controls without those that differ from another in their cost alone."""
    return tuple({(control.attacker, control.name, control.sentence): control for control in controls}.values())


@dataclass(frozen=True)
class Interval:
    """A 95 % interval that holds for ``of`` attacks at once (Bonferroni)."""

    low: float
    high: float
    of: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one attack on one target.

    Attributes:
        attack: its name in tables.
        knows: what the attacker was assumed to know, in sentences.
        budget: in words; ``None``: it has none.
        statistic: the statistic of the message that was attacked; ``None``: the model's change was.
    """

    attack: str
    status: Status
    knows: tuple[str, ...] = ()
    budget: str | None = None
    statistic: str | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A message, or messages of clients with one sample each, with every attack on it."""

    title: str
    kind: TargetKind
    round: int
    sender: Sender
    samples: int
    outcomes: tuple[Any, ...]

    def only(self, outcomes: Iterable[Outcome]) -> Self:
        """The target with these of its outcomes."""
        return replace(self, outcomes=tuple(outcomes))

    def part(self, statistic: str | None) -> Self:
        """The target with the outcomes on one statistic; ``None``: those on the model's change."""
        return self.only(outcome for outcome in self.outcomes if outcome.statistic == statistic)

    def parts(self) -> list[Self]:
        """One target for the model's change and one for each statistic: a failure on one is no evidence on another."""
        return [self.part(statistic) for statistic in dict.fromkeys(outcome.statistic for outcome in self.outcomes)]


T = TypeVar("T")


def reworded(results: T, word: Callable[[str], str]) -> T:
    """Results whose reasons are reworded, for instance with a net's own names of layers. Reasons of failed controls are on other
    nets, and stay."""
    if isinstance(results, Reason):
        return results if results.kind == "control failed" else replace(results, text=word(results.text))
    if isinstance(results, tuple):
        return tuple(reworded(it, word) for it in results)  # type: ignore[return-value]
    if isinstance(results, dict):
        return {name: reworded(it, word) for name, it in results.items()}  # type: ignore[return-value]
    if is_dataclass(results) and not isinstance(results, type):
        return replace(results, **{it.name: reworded(getattr(results, it.name), word) for it in fields(results)})
    return results
