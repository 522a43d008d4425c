"""Epsilon from membership inference beside the accountant's, and whether the two are comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.inference.empirical_epsilon import CONFIDENCE, epsilon_from_one_run, epsilon_from_rates
from attacks.inference.membership import Array, Mask
from fedpriv.privacy.accountant import dearest, history_of
from fedpriv.simulation.setup import Federation, plans

_ABOUT = {
    "none": "The run has no differential privacy. Had it, its epsilon of a training sample could not be below `lower`.",
    "sample": "Both bounds are about whether a training sample was used or a blank in its place, against observers of the "
    "uploads. The upload and what the server sent before show what the turns up to this round made of it: `lower` is to be held "
    "against `upper_so_far`; above it, one is wrong.",
    "client": "The run's epsilon is about a whole client, against who sees the models that the server sends. Here the server is "
    "the attacker, which sees uploads before the noise: `lower` is about a training sample and no bound of the run's epsilon.",
}


@dataclass(frozen=True)
class EpsilonBounds:
    """Of the attacked clients' turns, at ``delta``.

    Attributes:
        lower: not below, with that confidence (one training, many samples: Steinke et al. 2023); the best of ``each``.
        each: the same by each of the scores; all hold together.
        lower_by_rates: by Clopper-Pearson bounds of true and false positives, as if samples were independent trials.
        counted: samples that the bounds were counted on.
        upper_turn: what the accountant gives for the attacked round alone, of the clients' dearest sample; ``None`` without
            sample-level DP. Of a sample that several clients hold, the turns of all of them count.
        upper_so_far: for the turns up to this round.
        upper_run: for those of the whole run.
        about: what the bounds may be compared with.
    """

    lower: float
    each: tuple[float, ...]
    lower_by_rates: float
    delta: float
    confidence: float
    counted: int
    upper_turn: float | None
    upper_so_far: float | None
    upper_run: float | None
    about: str


def epsilon_bounds(
    federation: Federation, round: int, clients: Sequence[int], scores: Sequence[Array], members: Mask, seed: int
) -> EpsilonBounds:
    """
    Args:
        scores: one or several per candidate ``(n,)``, fixed before looking. Of several the best bound is taken, each at a
            confidence that lets all of them hold together (Bonferroni).
    """
    privacy = federation.config.privacy
    each = 1 - (1 - CONFIDENCE) / len(scores)
    one_run = [epsilon_from_one_run(values, members, privacy.delta, each, seed) for values in scores]
    by_rates = [epsilon_from_rates(values, members, privacy.delta, each, seed).epsilon for values in scores]
    last = federation.config.train.rounds

    def upper(first: int, final: int) -> float | None:
        if privacy.level != "sample":
            return None
        planned = plans(federation.agreement, federation.data, range(first, final + 1), clients)
        return dearest((history_of(privacy.noise or 0.0, plan) for plan in planned), privacy.delta, privacy.accountant)[0]

    return EpsilonBounds(
        lower=max(bound.epsilon for bound in one_run),
        each=tuple(bound.epsilon for bound in one_run),
        lower_by_rates=max(by_rates),
        delta=privacy.delta,
        confidence=CONFIDENCE,
        counted=one_run[0].counted,
        upper_turn=upper(round, round),
        upper_so_far=upper(1, round),
        upper_run=upper(1, last),
        about=_ABOUT[privacy.level],
    )
