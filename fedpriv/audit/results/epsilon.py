"""The accountant's epsilon, and lower bounds of it from attacks and canaries."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.attacks.inference.canaries import CanaryBound


@dataclass(frozen=True)
class Canaries:
    """Lower bounds of a run's epsilon from its canaries, at ``delta`` and ``confidence``; ``claim``: the accountant's epsilon."""

    canaries: int
    used: int
    claim: float
    delta: float
    confidence: float
    bounds: tuple[CanaryBound, ...]

    @property
    def best(self) -> CanaryBound:
        """The largest lower bound."""
        return max(self.bounds, key=lambda bound: bound.epsilon)


@dataclass(frozen=True)
class EpsilonBounds:
    """Bounds on the epsilon of the attacked clients' local updates, at ``delta``.

    Attributes:
        lower: the largest lower bound of ``each`` (one training run, many samples: Steinke et al. 2023), at ``confidence``.
        each: the lower bound from each set of scores; they hold simultaneously.
        lower_by_rates: from Clopper-Pearson bounds on true and false positives, as if samples were independent trials.
        samples: how many are behind the bounds.
        upper_update: the accountant's epsilon of the attacked round, for the sample that spent most; ``None``: no such DP.
            For a sample that several clients hold, the local updates of all of them count.
        upper_so_far: the same for the local updates up to this round; ``upper_run``: for the whole run.
        about: which bounds can be compared.
    """

    lower: float
    each: tuple[float, ...]
    lower_by_rates: float
    delta: float
    confidence: float
    samples: int
    upper_update: float | None
    upper_so_far: float | None
    upper_run: float | None
    about: str


@dataclass(frozen=True, kw_only=True)
class Epsilon:
    """The accountant's epsilon beside lower bounds.

    Attributes:
        upper: the accountant's epsilon at ``delta``, for a ``level`` (client or sample).
        by_attack: bounds from membership attacks; ``None``: there are none.
        statement: what the accountant's epsilon holds for, in sentences.
    """

    upper: float
    delta: float
    level: str
    accountant: str
    by_attack: EpsilonBounds | None
    canaries: Canaries | None
    statement: tuple[str, ...]

    @property
    def lower(self) -> float | None:
        """The bound from membership attacks, where it can be compared with the accountant's epsilon."""
        return self.by_attack.lower if self.by_attack is not None and self.level == "sample" else None
