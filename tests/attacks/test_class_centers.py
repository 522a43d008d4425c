"""Membership by class centres: told where a centre is the mean of few, and by nothing in the centre of others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpriv.attacks.inference.class_centers import trace
from fedpriv.attacks.inference.membership import Array
from fedpriv.attacks.scoring.operating_points import Area, area

CLASSES, PER_CLASS, WIDTH = 4, 8, 32
"""So many candidates of a class, half of them members, and as many further samples."""


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings ``(n, k)`` of classes that lie far apart, with most of their variance in a few directions; and their labels."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat(2 * PER_CLASS)
    spread = torch.cat([torch.full((4,), 10.0), torch.ones(WIDTH - 4)])
    return 50 * torch.eye(WIDTH)[labels] + spread * torch.randn(len(labels), WIDTH, generator=draw), labels


MEMBERS = np.arange(CLASSES * PER_CLASS) < CLASSES * PER_CLASS // 2


def centers(embedded: Tensor, labels: Tensor) -> dict[int, Tensor]:
    return {label: embedded[labels == label].mean(0) for label in range(CLASSES)}


def scored(of_members: bool) -> tuple[Area, Area]:
    """The areas over eight clients whose centres are of their members, or of other samples; of the cosine, too."""
    scores, cosines = list[Array](), list[Array]()
    for seed in range(8):
        embedded, labels = drawn(seed)
        n = len(MEMBERS)
        inside = slice(0, n // 2) if of_members else slice(n, None)
        means = centers(embedded[inside], labels[inside])
        scores.append(trace(embedded, labels, n, means))
        toward = torch.stack([means[label] for label in labels[:n].tolist()])
        cosines.append(torch.cosine_similarity(embedded[:n], toward).double().numpy())
    every = np.tile(MEMBERS, 8)
    return area(np.concatenate(scores), every, 0.999), area(np.concatenate(cosines), every, 0.999)


def test_trace_beats_the_cosine_for_means_of_few() -> None:
    found, cosine = scored(of_members=True)
    assert found.low > 0.8 and found.low > cosine.high


def test_the_mean_of_others_tells_nothing() -> None:
    found, _ = scored(of_members=False)
    assert found.low < 0.5 < found.high


def test_scores_are_the_formula_written_out() -> None:
    """``(z - m)' V (c - m)`` over the root of ``(c - m)' V (c - m)``, with numpy's inverse."""
    embedded, labels = drawn(0)
    means, z, classes = centers(embedded[:16], labels[:16]), embedded.double().numpy(), labels.numpy()
    m = np.stack([z[classes == label].mean(0) for label in range(CLASSES)])[classes]
    covariance = (z - m).T @ (z - m) / len(z)
    v = np.linalg.inv(covariance + np.diag(covariance).mean() * np.eye(WIDTH))
    toward = np.stack([means[label].double().numpy() for label in classes]) - m
    expected = np.einsum("ij,jk,ik->i", z - m, v, toward) / np.sqrt(np.einsum("ij,jk,ik->i", toward, v, toward))
    assert np.allclose(trace(embedded, labels, 32, means), expected[:32])


def test_scores_do_not_depend_on_scale_or_place() -> None:
    embedded, labels = drawn(0)
    first, moved = (trace(one, labels, 32, centers(one[:16], labels[:16])) for one in (embedded, 1e-3 * embedded + 7))
    assert np.allclose(first, moved, atol=1e-3)


@pytest.mark.parametrize("left", [{}, {1: torch.zeros(WIDTH)}])
def test_a_class_without_a_centre_scores_nothing(left: Mapping[int, Tensor]) -> None:
    embedded, labels = drawn(0)
    scores, classes = trace(embedded, labels, 32, left), labels[:32].numpy()
    assert (scores[~np.isin(classes, list(left))] == 0).all() and (scores[np.isin(classes, list(left))] != 0).all()


def test_embeddings_that_are_all_equal_show_nothing() -> None:
    embedded, labels = torch.ones(64, WIDTH), drawn(0)[1]
    assert (trace(embedded, labels, 32, {0: torch.zeros(WIDTH)}) == 0).all()


def test_what_is_not_finite_is_refused() -> None:
    embedded, labels = drawn(0)
    embedded[3] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        trace(embedded, labels, 32, {})
