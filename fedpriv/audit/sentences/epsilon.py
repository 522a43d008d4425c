"""The sentences on a run's guarantee, and on lower bounds of its epsilon."""

from __future__ import annotations

from fedpriv.attacks.inference.canaries import CanaryBound
from fedpriv.audit.formats import bound
from fedpriv.audit.results.epsilon import Canaries, Epsilon


def guarantee(epsilon: Epsilon | None) -> list[str]:
    """The sentences on the accountant's epsilon, and on what canaries show; ``None``: the run has none."""
    if epsilon is None:
        return ["The run has no differential privacy: there is no guarantee, only the results of these attacks."]
    against = "a client" if epsilon.level == "client" else "a training sample"
    upper = f"The accountant's epsilon for {against} is {bound(epsilon.upper)} at delta {epsilon.delta:g}, an upper bound."
    return [upper, *_by_canaries(epsilon)]


def epsilon_notes(epsilon: Epsilon) -> list[str]:
    """What the bounds of epsilon hold for, in sentences."""
    by_attack = [] if epsilon.by_attack is None else [epsilon.by_attack.about]
    return [*epsilon.statement, *by_attack, *_by_canaries(epsilon)]


def _by_canaries(epsilon: Epsilon) -> list[str]:
    return [] if epsilon.canaries is None else canaries(epsilon.canaries)


def canaries(measured: Canaries) -> list[str]:
    """The lower bounds that a run's canaries show; where they contradict the claim, a second sentence."""
    bounds = "; ".join(f"{bound.name} {bound.epsilon:.3g}, assuming {bound.assumes}" for bound in measured.bounds)
    return [
        f"Lower bounds of epsilon from {measured.canaries:,} canaries, {measured.used:,} of them used, at delta "
        f"{measured.delta:g} and {100 * measured.confidence:g} % confidence: {bounds}.",
        *([contradiction(measured.best, measured.claim)] if measured.best.epsilon > measured.claim else []),
    ]


def contradiction(lower: CanaryBound, claim: float) -> str:
    """The sentence on a lower bound that exceeds the claim."""
    return (
        f"By {lower.name} the canaries show an epsilon of at least {lower.epsilon:.3g}, above the {claim:.3g} of the privacy "
        "accountant: noise or clipping is not what the accountant assumes. By chance alone, at least one of the four bounds "
        "exceeds even a correct, tight epsilon in up to 20 % of runs."
    )
