"""How often an attacker who ignores the messages guesses the clients' sets of classes."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom
from torch import Tensor


def most_common_share(label_sets: Tensor) -> float:
    """The share of the most common set among those that lack a class; 1 if there are none.

    No answer that ignores the messages is right more often.

    Args:
        label_sets: ``(n, C)`` bool: the classes that each client holds.
    """
    sets = label_sets.cpu().numpy().astype(bool)
    lacking = sets[~sets.all(axis=1)]
    return float(np.unique(lacking, axis=0, return_counts=True)[1].max() / len(lacking)) if len(lacking) else 1.0


def p_of_guessing(hits: int, clients: int, guess: float) -> float:
    """The probability that guesses, each right with probability ``guess``, are right for ``hits`` or more clients (binomial).

    1 if there are no clients.
    """
    return float(binom.sf(hits - 1, clients, guess)) if clients else 1.0
