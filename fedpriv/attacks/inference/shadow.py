"""Infers the label set of a client with a model that is trained on shadow clients: simulated clients with known label sets.

The server knows the weights and the schedule, and has public data for the shadow clients. A multi-label logistic regression
predicts the label set from statistics of the weight change. No head is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedpriv.attacks.scoring.guessing import most_common_share, p_of_guessing

Array = npt.NDArray[np.float64]
Message = Mapping[str, Tensor]
"""A client's upload, with the names of ``Observation.shared``."""


@dataclass(frozen=True)
class ShadowOptions:
    """The options of the attack.

    Attributes:
        features: ``statistics`` of every tensor; ``last``: sums over rows and columns of the last shared matrix, which is nearest
            to the labels; or ``both``.
        strength: inverse regularisation of the logistic regression.
    """

    features: Literal["statistics", "last", "both"] = "both"
    strength: float = 0.1


@dataclass(frozen=True)
class ShadowReport:
    """The scores of the attack on tested clients.

    Attributes:
        f1: mean over the classes (macro) that a tested client holds or is predicted to hold.
        auc: mean over the classes that some, not all, tested clients hold; ``None`` if there is no such class.
        exact: share of clients whose label set is right.
        majority_f1, all_f1: F1 of two trivial guesses: for each class what holds for most shadow clients, and that every client
            holds every class. Compare ``f1`` with ``all_f1``, which is high where clients hold most classes. (Both have AUC 0.5.)
        clients: number of tested clients.
        lacking: number of tested clients that lack a class; a full label set is no information.
        lacking_exact: number of those whose label set is right.
        guess: share of those that hold the most common set: no guess without the messages is right more often.
        p: probability that guessing at this rate is right for ``lacking_exact`` clients or more (binomial); 1 if no client lacks
            a class.
    """

    f1: float
    auc: float | None
    exact: float
    majority_f1: float
    all_f1: float
    clients: int
    lacking: int
    lacking_exact: int
    guess: float
    p: float


@dataclass(frozen=True)
class ShadowClassifier:
    """A logistic regression for each class, or a constant if all shadow clients or none hold the class."""

    options: ShadowOptions
    models: tuple[Any, ...]
    prior: Array

    def probabilities(self, messages: Sequence[Message]) -> Array:
        """``(n, C)``: the probability that client i holds class c."""
        x = np.stack([features(message, self.options) for message in messages])
        columns = [
            np.full(len(x), prior) if model is None else model.predict_proba(x)[:, 1]
            for model, prior in zip(self.models, self.prior, strict=True)
        ]
        return np.stack(columns, axis=1)


def features(message: Message, options: ShadowOptions) -> Array:
    """The feature vector of a message; its length depends on the shapes only."""
    parts: list[Tensor] = []
    if options.features != "last":
        for tensor in message.values():
            flat = tensor.double().flatten()
            spread = flat.std(correction=0)
            parts.append(torch.stack([flat.mean(), spread, flat.min(), flat.max(), flat.abs().mean(), flat.norm()]))
    if options.features != "statistics":
        matrix = [tensor for tensor in message.values() if tensor.ndim == 2][-1:]
        last = matrix[0] if matrix else list(message.values())[-1].flatten(1)
        parts += [last.double().sum(dim=1), last.double().sum(dim=0)]
        parts += [tensor.double() for tensor in message.values() if tensor.ndim == 1][-1:]
    joined: Array = torch.cat(parts).cpu().numpy()
    return joined


def fit_shadows(messages: Iterable[Message], label_sets: Tensor, options: ShadowOptions | None = None) -> ShadowClassifier:
    """Train on shadow messages, which are read one at a time, and their label sets ``(n, C)`` bool."""
    options = options or ShadowOptions()
    x, y = np.stack([features(message, options) for message in messages]), label_sets.cpu().numpy().astype(bool)
    models: list[Any] = []
    for column in y.T:
        if column.all() or not column.any():
            models.append(None)
            continue
        model = make_pipeline(StandardScaler(), LogisticRegression(C=options.strength, max_iter=1000))
        models.append(model.fit(x, column))
    return ShadowClassifier(options, tuple(models), y.mean(axis=0))


def score_shadows(
    classifier: ShadowClassifier, messages: Sequence[Message], label_sets: Tensor, population: Tensor | None = None
) -> ShadowReport:
    """Score the attack on clients other than the shadows; a class is predicted at probability 0.5 or more.

    Args:
        label_sets: of the clients that sent the messages ``(n, C)``, bool.
        population: of all clients, for the rate of guessing ``(m, C)``, bool; default: of the tested clients.
    """
    y, probabilities = label_sets.cpu().numpy().astype(bool), classifier.probabilities(messages)
    predicted = probabilities >= 0.5
    mixed = [c for c in range(y.shape[1]) if 0 < y[:, c].sum() < len(y)]
    areas = [roc_auc_score(y[:, c], probabilities[:, c]) for c in mixed]
    exact, lacking = (predicted == y).all(axis=1), ~y.all(axis=1)
    tested, hits = int(lacking.sum()), int(exact[lacking].sum())
    guess = most_common_share(label_sets if population is None else population)

    def f1(guess: npt.NDArray[np.bool_]) -> float:
        return float(f1_score(y, guess, average="macro", zero_division=np.nan))

    return ShadowReport(
        f1=f1(predicted),
        auc=float(np.mean(areas)) if areas else None,
        exact=float(exact.mean()),
        majority_f1=f1(np.broadcast_to(classifier.prior >= 0.5, y.shape)),
        all_f1=f1(np.ones_like(y)),
        clients=len(y),
        lacking=tested,
        lacking_exact=hits,
        guess=guess,
        p=p_of_guessing(hits, tested, guess),
    )
