"""Membership inference: whether a model was trained on a sample. A score per sample; higher scores for likelier members.

The loss threshold (Yeom et al., CSF 2018) compares samples with each other; the likelihood-ratio attack LiRA (Carlini et al.,
S&P 2022) compares each sample with itself, under shadow models that the attacker trained with and without it; FedMIA (Zhu et al.,
CVPR 2025, arXiv:2402.06289) under the models of the other clients, which were trained without it, over several rounds. All take
any statistic that is higher for members: the confidence of their label, or their nearness to a row of a gradient
(:mod:`fedpriv.attacks.inference.row_distance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import norm
from torch import Tensor

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

Use = Literal["alone", "LiRA", "LiRA offline", "FedMIA"]
"""How an attack uses a statistic: it compares candidates with each other, each candidate under shadow models trained with and
without it, or each candidate under the messages of other clients."""

_LEAST_SPREAD = 1e-6  # shadows may agree to the bit, and a likelihood needs a positive standard deviation


def confidence(logits: Tensor, labels: Tensor) -> Array:
    """``log p_y - log(1 - p_y)`` of every sample ``(n,)`` from logits ``(n, C)`` and labels ``(n,)`` (Carlini et al., sec. V); of
    labels that are numbers, minus the error of the net's output ``(n, 1)``.

    It falls with the loss ``-log p_y``, so a threshold on it is a threshold on the loss. Computed as ``z_y - logsumexp of the
    others``, which stays finite where p_y is almost 1.

    Raises:
        ValueError: a single class, or logits that are not finite.
    """
    if not bool(logits.isfinite().all()):
        raise ValueError("logits are not finite")
    if labels.is_floating_point():
        return np.asarray(-(logits.detach().double().squeeze(1) - labels.double()).abs().cpu().numpy())
    if logits.shape[1] < 2:
        raise ValueError("the confidence of a label needs at least two classes")
    scores = logits.detach().double()
    own = scores.gather(1, labels[:, None])
    others = scores.scatter(1, labels[:, None], -torch.inf).logsumexp(1, keepdim=True)
    odds: Array = (own - others).squeeze(1).cpu().numpy()
    return odds


def lira(
    observed: Array,
    shadows: Array,
    inside: Mask,
    mode: Literal["online", "offline"] = "online",
    variance: Literal["pooled", "per_sample"] = "pooled",
) -> Array:
    """The likelihood ratio of Carlini et al. 2022 for every sample ``(n,)``, by Gaussians of the shadows' confidences.

    ``online``: ``log N(observed; in) - log N(observed; out)``. ``offline``: by how many standard deviations the observed
    confidence lies above those of the shadows without the sample; the paper's one-sided probability is a monotone function of it.

    Args:
        observed: confidences under the attacked model ``(n,)``.
        shadows: confidences under the shadow models ``(S, n)``.
        inside: which samples each shadow was trained on ``(S, n)``.
        variance: ``pooled`` over all samples, about each sample's own mean, as the paper advises for fewer than 64 shadows; or
            ``per_sample``.

    Raises:
        ValueError: shapes do not fit, or there are too few shadows with or without a sample.
    """
    if shadows.shape != inside.shape or shadows.shape[1:] != observed.shape:
        raise ValueError(f"shapes do not fit: {observed.shape}, {shadows.shape}, {inside.shape}")
    out_mean, out_spread = _gaussians(shadows, ~inside, variance, "without")
    if mode == "offline":
        return (observed - out_mean) / out_spread
    in_mean, in_spread = _gaussians(shadows, inside, variance, "with")
    ratio: Array = norm.logpdf(observed, in_mean, in_spread) - norm.logpdf(observed, out_mean, out_spread)
    return ratio


def in_every_use(observed: Array, shadows: Array, inside: Mask) -> dict[Use, Array]:
    """The scores ``(n,)`` of all attacks on a statistic with shadow models; arguments as for :func:`lira`.

    Raises:
        ValueError: see :func:`lira`.
    """
    return {
        "alone": observed,
        "LiRA": lira(observed, shadows, inside),
        "LiRA offline": lira(observed, shadows, inside, "offline"),
    }


def fedmia(observed: Sequence[Array], others: Sequence[Array]) -> Array:
    """FedMIA's score for every sample ``(n,)``: one-sided z-tests against the other clients, combined over rounds.

    The null is a Gaussian for each round and sample, of the statistic under the other clients' messages. It assumes that none of
    them trained on the sample, and that the client's message without it would be like theirs. Where clients hold different
    classes the second is wrong: a client's message is better than the others' on all samples of its classes, members or not. So
    compare only scores of samples of one client and of the same classes, and use no absolute threshold.

    The paper sums one-sided probabilities, which are monotone in each round's z but round to 1 from about eight standard
    deviations on. Here the z are summed and divided by the root of their number (Stouffer), so that clients with more rounds have
    no larger scores. The standard deviation is pooled over the samples, as :func:`lira`'s is, since a round has few clients.

    Args:
        observed: for each round, the statistic under the client's message ``(n,)``.
        others: for each round, the same under the messages of K other clients ``(K, n)``.

    Raises:
        ValueError: shapes do not fit, there is no round, or a round has fewer than two other clients.
    """
    if not observed:
        raise ValueError("no round to compare with other clients")
    pairs = zip(observed, others, strict=True)
    z = [lira(own, null, np.zeros(null.shape, dtype=np.bool_), "offline") for own, null in pairs]
    scores: Array = np.sum(z, axis=0) / np.sqrt(len(z))
    return scores


def centred(scores: Array, groups: npt.NDArray[np.int64]) -> Array:
    """Scores ``(n,)`` less the median of each sample's group, so that scores of several groups can be pooled.

    For scores that compare samples within groups only, such as :func:`fedmia`'s; each group must have as many members as others.

    Args:
        groups: ``(n,)`` such as the classes of one client's candidates.
    """
    centred_scores: Array = np.array(scores, dtype=np.float64)
    for group in np.unique(groups):
        centred_scores[groups == group] -= np.median(centred_scores[groups == group])
    return centred_scores


def _gaussians(shadows: Array, chosen: Mask, variance: str, which: str) -> tuple[Array, Array]:
    """Mean and standard deviation of each sample ``(n,)`` over the chosen shadows."""
    counts = chosen.sum(axis=0)
    least = 2 if variance == "per_sample" else 1
    if counts.min(initial=least) < least or counts.sum() <= len(counts):
        raise ValueError(f"{variance} variance: too few shadows {which} some sample (from {counts.min()} to {counts.max()})")
    mean = np.where(chosen, shadows, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, (shadows - mean) ** 2, 0.0).sum(axis=0)
    if variance == "per_sample":
        spread = np.sqrt(squares / (counts - 1))
    else:
        spread = np.full(len(mean), np.sqrt(squares.sum() / (counts.sum() - len(counts))))
    return mean, np.maximum(spread, _LEAST_SPREAD)


def random_halves(shadows: int, n: int, seed: int) -> Mask:
    """Which of ``n`` samples each shadow is trained on ``(shadows, n)``: pairs of a random half and its complement.

    So, if the number of shadows is even, each sample is in half of them. The sizes of shadows differ by at most one.
    """
    generator = np.random.default_rng(seed)
    inside = np.zeros((shadows, n), dtype=np.bool_)
    for i in range(0, shadows, 2):
        inside[i, generator.permutation(n)[: n // 2]] = True
        if i + 1 < shadows:
            inside[i + 1] = ~inside[i]
    return inside
