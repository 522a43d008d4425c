"""Scores against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from fedpriv.attacks.scoring.baselines import baselines
from fedpriv.attacks.scoring.scores import closest, match, match_batches, mse, psnr, score, ssim, wilson


def test_mse_and_psnr_of_a_known_difference() -> None:
    true = torch.full((2, 3, 16, 16), 0.5)
    output = true + torch.tensor([0.1, -0.01]).view(2, 1, 1, 1)
    torch.testing.assert_close(mse(output, true), torch.tensor([1e-2, 1e-4]), rtol=1e-4, atol=0)
    torch.testing.assert_close(psnr(output, true), torch.tensor([20.0, 40.0]), rtol=1e-4, atol=0)
    assert psnr(true, true).isinf().all()


def test_images_are_clipped_and_what_is_no_number_is_grey() -> None:
    true = torch.ones(2, 1, 12, 12)
    output = torch.stack([torch.full((1, 12, 12), 1e9), torch.full((1, 12, 12), math.nan)])
    assert mse(output, true).tolist() == [0, 0.25]


def test_what_was_not_found_is_never_a_recovery() -> None:
    true = torch.stack([torch.full((1, 12, 12), 0.5), torch.full((1, 12, 12), 0.5) + 0.01])
    output = torch.stack([torch.full((1, 12, 12), math.nan), torch.full((1, 12, 12), 0.51)])
    result = score(output, true)
    assert [rate.successes for rate in result.recovered.values()] == [1, 1, 1] and result.mse[0] == 0
    assert match(output.flip(0), true).tolist() == [1, 0] and match(output[[0, 0]], true).tolist() in ([0, 1], [1, 0])


def test_what_was_not_found_takes_no_hit_away() -> None:
    """Of two equal images one was found: the grey of the other must not be counted in its place."""
    grey = torch.full((1, 12, 12), 0.5)
    output, true = torch.stack([torch.full_like(grey, math.nan), grey + 0.05]), torch.stack([grey, grey + 0.2])
    assert score(output[match(output, true)], true).recovered[1e-2].successes == 1


def test_ssim_of_flat_images_is_its_first_factor() -> None:
    """With flat images both variances vanish: (2ab + c1) / (a^2 + b^2 + c1)."""
    a, b, c1 = 0.3, 0.6, 1e-4
    result = ssim(torch.full((1, 3, 32, 32), a), torch.full((1, 3, 32, 32), b))
    assert float(result) == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), rel=1e-6)


def test_ssim_by_its_definition_at_one_place() -> None:
    """In an 11x11 image the window has one place: moments written out with the weights exp(-r^2 / 2 sigma^2)."""
    torch.manual_seed(0)
    x, y = torch.rand(1, 1, 11, 11), torch.rand(1, 1, 11, 11)
    weight = [[math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2)) for j in range(11)] for i in range(11)]
    total = sum(map(sum, weight))

    def mean(values) -> float:
        return sum(weight[i][j] * float(values[i, j]) for i in range(11) for j in range(11)) / total

    p, q = x[0, 0].double(), y[0, 0].double()
    mp, mq = mean(p), mean(q)
    vp, vq, cov = mean((p - mp) ** 2), mean((q - mq) ** 2), mean((p - mp) * (q - mq))
    c1, c2 = 0.01**2, 0.03**2
    expected = (2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2))
    assert float(ssim(x, y)) == pytest.approx(expected, rel=1e-6)
    assert float(ssim(x, x)) == pytest.approx(1)
    assert float(ssim(1 - x, x)) < 0


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Wilson by hand for 0 and n (z^2 / (n + z^2)); Newcombe 1998, table I, method 3 for 81/263, 15/148 and 1/29.
    [(0, 20, 0, 0.1611), (20, 20, 0.8389, 1), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    result = wilson(successes, n)
    assert result.low == pytest.approx(low, abs=6e-5) and result.high == pytest.approx(high, abs=6e-5)
    assert result.share == successes / n


def test_wilson_refuses_what_is_no_rate() -> None:
    for bad in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="not a rate"):
            wilson(*bad)


def test_matching_undoes_a_permutation_within_each_batch() -> None:
    torch.manual_seed(0)
    true = torch.rand(6, 1, 4, 4)
    order = torch.tensor([2, 0, 1, 4, 5, 3])
    output = true[order] + 0.01
    assert torch.equal(order[match_batches(output, true, 3)], torch.arange(6))
    assert torch.equal(order[:3][match(output[:3], true[:3])], torch.arange(3))


def test_an_exact_hit_is_not_given_away_for_less_error_elsewhere() -> None:
    true = torch.tensor([0.3, 0.7]).view(2, 1, 1, 1)
    output = torch.tensor([0.0, 0.3]).view(2, 1, 1, 1)  # the least sum of squared errors pairs 0.3 with 0, and 0.7 with 0.3
    assert match(output, true).tolist() == [1, 0]


def test_as_many_as_possible_are_hits() -> None:
    """One exact hit and a miss against two within the threshold."""
    true, output = torch.tensor([0.5, 0.59]).view(2, 1, 1, 1), torch.tensor([0.59, 0.68]).view(2, 1, 1, 1)
    assert match(output, true).tolist() == [0, 1]


def test_of_several_views_the_nearest_counts() -> None:
    torch.manual_seed(0)
    views = torch.rand(3, 2, 1, 4, 4)
    order, taken = torch.tensor([2, 0, 1]), torch.tensor([1, 0, 1])
    true = views[torch.arange(3), taken]
    output = true[order] + 0.01
    matched = match(output, views)
    assert torch.equal(order[matched], torch.arange(3)) and torch.equal(closest(output[matched], views), true)


def test_score_counts_images_and_labels() -> None:
    true = torch.rand(4, 3, 16, 16)
    output = true.clone()
    output[3] = 1 - output[3]
    labels = torch.tensor([0, 1, 2, 3])
    result = score(output, true, torch.tensor([0, 1, 0, 3]), labels)
    assert result.recovered[1e-3].successes == 3 and result.labels is not None and result.labels.successes == 3
    assert score(output, true, torch.full((4,), -1), labels).labels is None


def test_baselines_are_what_they_say() -> None:
    reference, reference_labels = torch.rand(10, 3, 8, 8), torch.arange(10) % 2
    true = reference[[3, 6]] + 1e-4
    result = baselines(true, torch.tensor([1, 7]), reference, reference_labels)
    torch.testing.assert_close(result["nearest public"], reference[[3, 6]])
    torch.testing.assert_close(result["class mean"][0], reference[1::2].mean(0))
    torch.testing.assert_close(result["class mean"][1], result["mean image"][1])
    assert set(baselines(true)) == {"grey image", "own mean colour"}
    blank = baselines(true)["own mean colour"]
    torch.testing.assert_close(mse(blank, true), true.var((2, 3), correction=0).mean(1))
