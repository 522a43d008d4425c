"""Lower bounds of epsilon from membership inference and from canaries, beside the accountant's upper bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpriv.attacks.inference.canaries import canary_bounds
from fedpriv.attacks.inference.empirical_epsilon import CONFIDENCE, epsilon_from_one_run, epsilon_from_rates
from fedpriv.attacks.inference.membership import Array, Mask
from fedpriv.audit.results.epsilon import Canaries, EpsilonBounds
from fedpriv.files import load_tensors
from fedpriv.privacy.accountant import history_of, largest_epsilon
from fedpriv.simulation.run_setup import plans
from fedpriv.simulation.setup import Federation
from fedpriv.storage.run_folder import RunFolder

_ABOUT = {
    "none": "The run has no differential privacy. If it had, its sample-level epsilon could not be below `lower`.",
    "sample": "Both bounds are for zeroing out one training sample, against an observer of the uploads. The messages "
    "up to this round depend on all local training so far: compare the attack's lower bound (`lower`) with the accountant's "
    "bound up to this round (`upper_so_far`). If the lower bound is larger, one of the two is wrong, or non-members differ from "
    "members in more than membership, as a test split from elsewhere does.",
    "client": "The run's epsilon is for a whole client, against an observer of the models that the server sends. Here the server "
    "is the attacker and sees uploads before the noise: `lower` is for a training sample and does not bound the run's epsilon.",
}


def epsilon_bounds(
    federation: Federation, round: int, last: int, clients: Sequence[int], scores: Sequence[Array], members: Mask, seed: int
) -> EpsilonBounds:
    """Bound the epsilon of the clients' local updates in a round.

    Args:
        last: the last round of the run.
        scores: one or several sets of scores ``(n,)``, chosen in advance. The best of several bounds is taken, each at a
            confidence at which all of them hold simultaneously (Bonferroni).
    """
    privacy = federation.config.privacy

    def upper(first: int, final: int) -> float | None:
        if privacy.level != "sample":
            return None
        data, rounds = federation.data, range(first, final + 1)
        planned = plans(federation.agreement, data.sizes, data.partition, rounds, clients, spent=True)
        return largest_epsilon((history_of(privacy.noise or 0.0, plan) for plan in planned), privacy.delta, privacy.accountant)[0]

    return replace(
        lower_bounds(scores, members, privacy.delta, seed, _ABOUT[privacy.level]),
        upper_update=upper(round, round),
        upper_so_far=upper(1, round),
        upper_run=upper(1, last),
    )


def lower_bounds(scores: Sequence[Array], members: Mask, delta: float, seed: int, about: str = _ABOUT["none"]) -> EpsilonBounds:
    """Lower bounds alone, where nothing is known of how much was spent; ``scores`` as for :func:`epsilon_bounds`."""
    each = 1 - (1 - CONFIDENCE) / len(scores)
    one_run = [epsilon_from_one_run(values, members, delta, each, seed) for values in scores]
    by_rates = [epsilon_from_rates(values, members, delta, each, seed).epsilon for values in scores]
    return EpsilonBounds(
        lower=max(bound.epsilon for bound in one_run),
        each=tuple(bound.epsilon for bound in one_run),
        lower_by_rates=max(by_rates),
        delta=delta,
        confidence=CONFIDENCE,
        samples=one_run[0].samples,
        upper_update=None,
        upper_so_far=None,
        upper_run=None,
        about=about,
    )


def measured(folder: RunFolder, statement: Mapping[str, Any] | None) -> Canaries | None:
    """The lower bounds from the canaries of a finished run; ``None``: it had none.

    Args:
        statement: the run's privacy statement.

    Raises:
        Damaged: the file of their scores is not what was written.
    """
    if statement is None or not folder.config_as_data().privacy.canaries:
        return None
    stored = load_tensors(folder.canaries_file)
    scores, used = stored["scores"].numpy(), stored["used"].numpy()
    claim, delta = statement["epsilon"], statement["delta"]
    bounds = canary_bounds(scores, used, claim, delta)
    return Canaries(len(used), int(used.sum()), claim, delta, bounds[0].confidence, bounds)
