"""Attribute inference: hidden values of rows by the gradients of a message."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.inference import attributes
from fedpriv.attacks.inference.attributes import _Fit, positive_control, probabilities, trust
from fedpriv.attacks.inference.gradient_regression import Equations, Products

ROWS, VALUES, ENTRIES, ERROR = 3, 3, 12, 0.5


def problem(seed: int) -> tuple[Equations, Tensor, Tensor, Tensor]:
    """A message of three rows, each with one of three columns of known gradients; the prior, the columns and the message."""
    draw = torch.Generator().manual_seed(seed)
    columns = torch.randn(ROWS * VALUES, ENTRIES, dtype=torch.double, generator=draw)
    prior = torch.softmax(torch.randn(ROWS, VALUES, dtype=torch.double, generator=draw), 1)
    chosen = torch.tensor([0, 2, 1]) + VALUES * torch.arange(ROWS)
    message = columns[chosen].sum(0) + ERROR * torch.randn(ENTRIES, dtype=torch.double, generator=draw)
    with_nuisance = torch.cat([columns, torch.zeros(1, ENTRIES, dtype=torch.double)])
    with_nuisance[-1, 0] = 1.0  # a nuisance column: the first entry shows nothing
    products = Products(
        with_nuisance @ with_nuisance.T, with_nuisance @ message, float(message @ message), ENTRIES, ERROR**2, 1.0
    )
    return Equations([products], None), prior, columns[:, 1:], message[1:]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_likelihoods_are_those_of_the_gaussian_model_written_out(seed: int) -> None:
    """By dense covariances: all rows but the asked one have a normal distribution of their prior's mean and covariance."""
    system, prior, columns, message = problem(seed)
    no_means = torch.zeros(ROWS * VALUES, 0, dtype=torch.double)
    fit = _Fit.of(system, prior, no_means, 1.0, 0.0, False)
    means = torch.stack([prior[row] @ columns[row * VALUES : (row + 1) * VALUES] for row in range(ROWS)])
    for row in range(ROWS):
        covariance = ERROR**2 * torch.eye(ENTRIES - 1, dtype=torch.double)
        for other in (number for number in range(ROWS) if number != row):
            block, p = columns[other * VALUES : (other + 1) * VALUES], prior[other]
            covariance += block.T @ (torch.diag(p) - torch.outer(p, p)) @ block
        rest = message - means.sum(0) + means[row]
        others = torch.distributions.MultivariateNormal(torch.zeros(ENTRIES - 1, dtype=torch.double), covariance)
        expected = torch.stack([others.log_prob(rest - columns[row * VALUES + value]) for value in range(VALUES)])
        got = fit.log_likelihoods()[row]
        torch.testing.assert_close(got - got[0], expected - expected[0], rtol=1e-6, atol=1e-6)


def test_what_a_value_does_on_average_shows_nothing() -> None:
    """With the mean columns of each value projected off, adding one of them to a message changes no likelihood."""
    system, prior, _, _ = problem(0)
    (products,) = system.products
    means = torch.eye(VALUES, dtype=torch.double).repeat(ROWS, 1) / ROWS
    shift = products.gram[:, : ROWS * VALUES] @ means[:, 1]
    square = products.square + 2 * float(products.message[: ROWS * VALUES] @ means[:, 1]) + float(means[:, 1] @ shift[:-1])
    again = Products(products.gram, products.message + shift, square, ENTRIES, ERROR**2, 1.0)
    moved = Equations([again], None)  # type: ignore[arg-type]
    plain, shifted = (_Fit.of(each, prior, means, 1.0, 0.0, False).log_likelihoods() for each in (system, moved))
    torch.testing.assert_close(plain - plain[:, :1], shifted - shifted[:, :1], rtol=1e-5, atol=1e-5)


def test_likelihoods_are_trusted_as_far_as_they_were_right() -> None:
    prior = torch.full((40, 2), 0.5)
    true = torch.arange(40) % 2
    right = torch.stack([1.0 - true, true], 1) * 5.0
    noise = 50 * torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    assert trust(prior, right, true) == 1.0 and trust(prior, noise, true) < 0.1
    assert trust(prior, -right, true) == 0.0, "what is wrong is not turned round"
    torch.testing.assert_close(probabilities(prior, noise, 0.0), prior.double())
    skewed = torch.tensor([[1.0, 0.0]])
    least = float(probabilities(skewed, torch.zeros(1, 2))[0, 1])
    assert math.isclose(least, attributes.LEAST / 2), "no prior is certain"
    assert trust(prior[:2], right[:2], torch.tensor([-1, 1])) == 1.0, "a row whose value is none of these teaches nothing"


def test_the_positive_control_names_nearly_every_value() -> None:
    control = positive_control(1)
    assert control.passed and "64 hidden values" in control.sentence, control.sentence
