"""Membership inference: closed forms for Gaussians, a net that learned by heart, and one that knows neither group."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.inference.membership import Array, Mask, centred, confidence, fedmia, lira, random_halves
from fedpriv.attacks.scoring.operating_points import area, operating_points

CLASSES = 4


def test_confidence_is_the_log_odds_and_stays_finite() -> None:
    logits, labels = torch.randn(50, CLASSES, generator=torch.Generator().manual_seed(0)).double(), torch.arange(50) % CLASSES
    p = logits.softmax(1)[torch.arange(50), labels].numpy()
    np.testing.assert_allclose(confidence(logits, labels), np.log(p) - np.log1p(-p), rtol=1e-10)
    loss = F.cross_entropy(logits, labels, reduction="none").numpy()
    assert confidence(logits, labels).argsort().tolist() == (-loss).argsort().tolist()
    sure = confidence(torch.tensor([[800.0, 0.0], [0.0, 800.0]]), torch.tensor([0, 0]))
    np.testing.assert_allclose(sure, [800, -800])
    with pytest.raises(ValueError, match="not finite"):
        confidence(torch.tensor([[torch.inf, 0.0]]), torch.tensor([0]))


def test_lira_is_the_likelihood_ratio_of_two_gaussians() -> None:
    draw = np.random.default_rng(0)
    inside = random_halves(2000, 3, 0)
    mean_in, mean_out = np.array([2.0, 5.0, 0.0]), np.array([0.0, 4.0, 0.0])
    shadows = np.where(inside, draw.normal(mean_in, 0.5, (2000, 3)), draw.normal(mean_out, 1.0, (2000, 3)))
    observed = np.array([1.5, 4.2, 0.1])
    expected = norm.logpdf(observed, mean_in, 0.5) - norm.logpdf(observed, mean_out, 1.0)
    for variance in ("pooled", "per_sample"):
        np.testing.assert_allclose(lira(observed, shadows, inside, "online", variance), expected, atol=0.35)  # type: ignore[arg-type]
    np.testing.assert_allclose(lira(observed, shadows, inside, "offline"), observed - mean_out, atol=0.15)


def test_lira_knows_hard_samples_from_members() -> None:
    """Samples differ far more among each other than membership moves them: LiRA sees it, a threshold does not."""
    draw, n = np.random.default_rng(1), 400
    hardness, members, inside = draw.normal(0, 5, n), np.arange(n) < n // 2, random_halves(16, n, 3)
    observed = hardness + 2.0 * members + draw.normal(0, 1, n)
    shadows = hardness + 2.0 * inside + draw.normal(0, 1, (16, n))
    with_shadows, threshold = area(lira(observed, shadows, inside), members), area(observed, members)
    assert with_shadows.low > 0.85 > 0.7 > threshold.high
    assert area(lira(observed, shadows, inside, "offline"), members).low > 0.8


def test_what_lira_does_not_depend_on() -> None:
    draw = np.random.default_rng(2)
    observed, shadows, inside = draw.normal(size=30), draw.normal(size=(8, 30)), random_halves(8, 30, 0)
    score, order = lira(observed, shadows, inside), draw.permutation(30)
    np.testing.assert_allclose(lira(observed[order], shadows[:, order], inside[:, order]), score[order])
    np.testing.assert_allclose(lira(observed, shadows[::-1], inside[::-1]), score)
    np.testing.assert_allclose(lira(3 * observed + 1, 3 * shadows + 1, inside), score)


def test_shadows_that_do_not_fit_are_refused() -> None:
    observed, shadows = np.zeros(4), np.zeros((2, 4))
    with pytest.raises(ValueError, match="too few shadows without"):
        lira(observed, shadows, np.ones((2, 4), dtype=bool))
    with pytest.raises(ValueError, match="per_sample variance: too few"):
        lira(observed, shadows, random_halves(2, 4, 0), variance="per_sample")
    with pytest.raises(ValueError, match="do not fit"):
        lira(observed, shadows, np.ones((3, 4), dtype=bool))
    assert np.isfinite(lira(observed, np.zeros((4, 4)), random_halves(4, 4, 0))).all()  # shadows that agree to the bit


def test_halves_are_balanced() -> None:
    inside = random_halves(10, 7, 0)
    assert (inside.sum(0) == 5).all() and set(inside.sum(1)) == {3, 4}
    assert not np.array_equal(inside, random_halves(10, 7, 1)) and np.array_equal(inside, random_halves(10, 7, 0))


# --- controls: a net that learns by heart ----------------------------------------------------------------------------------


def trained(images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    for _ in range(200):
        gradients = torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))
        with torch.no_grad():
            for value, gradient in zip(net.parameters(), gradients, strict=True):
                value -= 0.5 * gradient
    return net


def attacked(trained_on: Tensor, images: Tensor, labels: Tensor) -> tuple[Array, Array, Mask]:
    """Confidences under a net trained on some samples (random labels, learned by heart), under 16 shadows, and who was inside."""
    inside = random_halves(16, len(labels), 0)
    nets = [trained(images[torch.from_numpy(who)], labels[torch.from_numpy(who)], s) for s, who in enumerate(inside)]
    victim = trained(images[trained_on], labels[trained_on], 99)
    return confidence(victim(images), labels), np.stack([confidence(net(images), labels) for net in nets]), inside


@pytest.fixture(scope="module")
def samples() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(800, 20, generator=draw), torch.randint(CLASSES, (800,), generator=draw)


@pytest.mark.slow
def test_a_net_that_memorised_random_labels_shows_members(samples: tuple[Tensor, Tensor]) -> None:
    images, labels = samples[0][:400], samples[1][:400]
    members = np.arange(400) % 2 == 0
    observed, shadows, inside = attacked(torch.from_numpy(members), images, labels)
    threshold = operating_points(observed, members)
    ratio = operating_points(lira(observed, shadows, inside), members)
    assert threshold.auc.low > 0.8 and ratio.auc.low > 0.9
    few = ratio.at[0.01], threshold.at[0.01]
    assert few[0] is not None and few[1] is not None
    assert few[0].true_positives.share >= few[1].true_positives.share and few[0].true_positives.low > 0.05


@pytest.mark.slow
def test_a_net_trained_on_neither_group_tells_nothing(samples: tuple[Tensor, Tensor]) -> None:
    images, labels = samples
    victim = trained(images[400:], labels[400:], 99)
    observed = confidence(victim(images[:400]), labels[:400])
    _, shadows, inside = attacked(torch.ones(400, dtype=torch.bool), images[:400], labels[:400])
    draw = np.random.default_rng(0)
    groups = [draw.permutation(400) < 200 for _ in range(60)]
    for scores in (observed, lira(observed, shadows, inside), lira(observed, shadows, inside, "offline")):
        result = [area(scores, members) for members in groups]
        assert np.mean([auc.low < 0.5 < auc.high for auc in result]) >= 0.88


def test_fedmia_sums_z_over_the_root_of_the_rounds() -> None:
    """By hand: one round with others at 0 and 2, one with others at 1 and 3, both with a pooled variance of 2."""
    first, second = np.array([[0.0, 0.0], [2.0, 2.0]]), np.array([[1.0, 1.0], [3.0, 3.0]])
    result = fedmia([np.array([3.0, 1.0]), np.array([4.0, 2.0])], [first, second])
    np.testing.assert_allclose(result, [2 * 2 / np.sqrt(2) / np.sqrt(2), 0.0])


def test_fedmia_adds_up_rounds_and_finds_nothing_without_members() -> None:
    draw, members = np.random.default_rng(0), np.arange(400) < 200
    ease = draw.normal(size=400) * 3  # some samples are easy for every client
    others = [ease + draw.normal(size=(5, 400)) for _ in range(12)]

    def auc(gain: float, rounds: int) -> float:
        seen = [ease + gain * members + draw.normal(size=400) for _ in range(rounds)]
        return area(fedmia(seen, others[:rounds]), members).value

    assert auc(0.5, 12) > 0.8 > auc(0.5, 1) > 0.55
    assert 0.4 < auc(0.0, 12) < 0.6


def test_fedmia_needs_two_other_clients_and_a_round() -> None:
    with pytest.raises(ValueError, match="no round"):
        fedmia([], [])
    with pytest.raises(ValueError, match="too few shadows"):
        fedmia([np.zeros(3)], [np.zeros((1, 3))])


def test_centred_scores_of_several_groups_can_be_pooled() -> None:
    """Groups whose scores lie elsewhere hide who is a member in each."""
    draw = np.random.default_rng(0)
    groups, members = np.repeat(np.arange(6), 40), np.tile([True, False], 120)
    scores = 10.0 * draw.standard_normal(6)[groups] + 3.0 * members + draw.standard_normal(240)
    pooled, within = (area(values, members, 0.95).value for values in (scores, centred(scores, groups)))
    assert pooled < 0.75 and within > 0.95
    nothing = 10.0 * draw.standard_normal(6)[groups] + draw.standard_normal(240)
    low_to_high = area(centred(nothing, groups), members, 0.99)
    assert low_to_high.low < 0.5 < low_to_high.high
