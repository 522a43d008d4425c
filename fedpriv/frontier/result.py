"""The result of ``fedpriv frontier``, as it is stored in ``frontier.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedpriv.frontier.decision import StoredCondition, Trade
from fedpriv.frontier.search import Search
from fedpriv.scores.catalogue import ACCURACY, Score, score_named


@dataclass(frozen=True)
class DefenceSearch:
    """A search for the weakest strength of a defence of a method."""

    method: str
    defence: str
    search: Search


@dataclass(frozen=True)
class Confirmation:
    """A point that met the target in the grid, trained and audited again on a fresh seed; ``holds``: whether it met it there."""

    label: str
    seed: int
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """All points that were trained and audited, and the decision.

    Attributes:
        command: as it was typed; it took ``seconds``.
        target: its conditions; empty: none was given.
        seed: of the grid.
        config_defences: names of the defences that the config has, and so every point.
        trades: on the seed of the grid and on fresh seeds.
        not_run: why a run could not be trained and audited, by name.
        pareto_optimal: labels.
        chosen: label of the most accurate point that meets the target, also on a fresh seed; ``None``: none does.
        confirmations: in the order in which they were tried.
        nearest: label of the point that misses least of the target, where none is chosen.
    """

    command: str
    seconds: float
    target: tuple[StoredCondition, ...]
    seed: int
    config_defences: tuple[str, ...]
    trades: tuple[Trade, ...]
    not_run: Mapping[str, str]
    searches: tuple[DefenceSearch, ...]
    pareto_optimal: tuple[str, ...]
    chosen: str | None
    confirmations: tuple[Confirmation, ...]
    nearest: str | None
    format: Literal[1] = 1

    @property
    def score(self) -> Score:
        """The score that the points are ranked by."""
        return score_named(next((trade.metric for trade in self.trades), ACCURACY.name))

    def trade(self, label: str, seed: int | None = None) -> Trade | None:
        """A point with a seed, by default that of the grid; ``None``: it could not be trained or audited."""
        wanted = (label, self.seed if seed is None else seed)
        return next((trade for trade in self.trades if (trade.label, trade.seed) == wanted), None)
