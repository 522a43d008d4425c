"""Attribute inference: the hidden value of a row of which the attacker knows all else, by the gradients in a message.

The attacker knows rows that a client trained on, with their labels, but of one column only how likely each value is, given the
others (the prior). It completes each row with each value. By :mod:`fedpriv.attacks.inference.gradient_regression` a message is
about the mean of the gradients of the client's samples, and of the completed rows exactly one of each was there. So the unknowns
are which: for each row a vector with a 1 in one place, of the prior's mean and covariance. Given a Gaussian approximation of all
other rows, the likelihood of each of its values follows (the cavity of expectation propagation), and with the prior its
probability. Where a message says nothing, the probabilities are the prior's: what the attack finds beyond it is due to the
message.

The mean gradient of the rows of a class, completed with one value, is projected off: how often a value occurs among the client's
rows shows nothing of a single one.

After many steps a message is no longer near the mean of the gradients at the first weights, and the likelihoods are too certain.
How far they are to be trusted (:func:`trust`) the attacker learns from a message of its own, whose rows it knows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.observation import Observation, SplitNet, ThreatModel, blank, state_names
from fedpriv.attacks.core.reconstruction import mounting
from fedpriv.attacks.gradients.per_sample import LabelledSamples
from fedpriv.attacks.inference.gradient_regression import MISFITS, Equations, equations
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.nets import uniform_
from fedpriv.attacks.scoring.scores import wilson

LEAST = 0.01
"""Share of each row's prior that is spread evenly over all values, as no prior is certain."""
_TRUST = (0.0, *(2.0**power for power in range(-12, 1)))
"""Powers of the likelihood that are compared."""
_SURE = 3.29
"""The normal quantile of 99.9 %."""
_CLIENTS, _ROWS, _NUMBERS, _VALUES, _UNITS = 8, 8, 6, 4, 32


def log_likelihoods(
    messages: Sequence[Observation],
    completed: LabelledSamples,
    prior: Tensor,
    public: LabelledSamples,
    path: Sequence[Mapping[str, Tensor]],
    clip: float | None = None,
    certain: LabelledSamples | None = None,
) -> list[Tensor]:
    """The log-likelihood of each value of each row ``(n, V)``, up to a constant of each row, for each message.

    Args:
        completed: the rows completed with each value: ``n * V`` samples, row by row.
        prior: ``(n, V)``, each row's sum is 1.
        public, path, clip: see :func:`fedpriv.attacks.inference.gradient_regression.gradient_regression`.
        certain: the client's other rows, as far as the attacker knows them.

    Raises:
        Inapplicable: see there.
    """
    rows, values = prior.shape
    labels = completed.classes.view(rows, values)[:, 0].cpu()
    prior = _less_certain(prior)
    shares = torch.unique(public.classes, return_counts=True)[1].double() / len(public)
    return [
        _likelihoods(system.informative(), prior, labels, len(public), shares)
        for system in equations(messages, completed, public, path, clip, certain)
    ]


def probabilities(prior: Tensor, likelihoods: Tensor, power: float = 1.0) -> Tensor:
    """The probability of each value of each row ``(n, V)``; ``power``: of the likelihood, as :func:`trust` returns it."""
    return torch.softmax(_less_certain(prior).log() + power * likelihoods, 1)


def trust(prior: Tensor, likelihoods: Tensor, true: Tensor) -> float:
    """The power of the likelihoods at which the true values ``(n,)`` of rows are most probable; 0: a message tells nothing."""
    known = true >= 0

    def score(power: float) -> float:
        return float(probabilities(prior, likelihoods, power)[known, true[known]].log().sum())

    return max(_TRUST, key=score)


def _less_certain(prior: Tensor) -> Tensor:
    return (1 - LEAST) * prior.double() + LEAST / prior.shape[1]


def _likelihoods(system: Equations, prior: Tensor, labels: Tensor, own: int, shares: Tensor) -> Tensor:
    """The log-likelihoods by the error of the largest likelihood of the message."""
    of_class = F.one_hot(torch.unique(labels, return_inverse=True)[1]).double()
    means = torch.einsum("nc,vw->nvcw", of_class / of_class.sum(0), torch.eye(prior.shape[1], dtype=torch.double))
    means = F.pad(means.flatten(2).flatten(0, 1), (0, 0, 0, own))
    amount = system.amount(prior.numel() + own, shares) / (system.gradient.num_examples or len(prior))
    fits = {misfit: _Fit.of(system, prior, means, amount, misfit, False) for misfit in MISFITS}
    near = sorted(MISFITS, key=lambda misfit: fits[misfit].likelihood)[-3:]
    with_others = [_Fit.of(system, prior, means, amount, misfit, True) for misfit in near]
    best = max([*fits.values(), *with_others], key=lambda fit: fit.likelihood)
    return best.log_likelihoods()


@dataclass(frozen=True)
class _Fit:
    """A regression whose unknowns are ``mean + root @ t`` for standard normal ``t``, block by block a row's.

    Attributes:
        roots: square roots of the rows' prior covariances ``(n, V, V)``.
        factor: Cholesky factor of the precision of ``t``, given the message ``(s, s)``.
        residual: that precision times the mean ``(s,)``.
    """

    prior: Tensor
    roots: Tensor
    factor: Tensor
    residual: Tensor
    likelihood: float

    @classmethod
    def of(cls, system: Equations, prior: Tensor, means: Tensor, amount: float, misfit: float, others: bool) -> _Fit:
        """Fit the regression; arguments as for the regression of members.

        Args:
            means: combinations of the columns that are projected off ``(s, k)``.
        """
        asked, s = prior.numel(), len(means)
        own, weighted = s - asked, system.weighted(s, amount, misfit).without(means)
        roots = _root(torch.diag_embed(prior) - prior[:, :, None] * prior[:, None])
        whole = torch.zeros(s, s, dtype=torch.double)
        for row, root in enumerate(roots):
            place = slice(row * len(root), (row + 1) * len(root))
            whole[place, place] = root
        whole[range(asked, s), range(asked, s)] = 0.5 * others
        mean = torch.cat([prior.flatten(), prior.new_zeros(own)])
        square = weighted.square - 2 * float(mean @ weighted.message) + float(mean @ weighted.gram @ mean)
        factor = torch.linalg.cholesky(torch.eye(s, dtype=torch.double) + whole @ weighted.gram @ whole)
        residual = whole @ (weighted.message - weighted.gram @ mean)
        solved = torch.linalg.solve_triangular(factor, residual[:, None], upper=False)
        likelihood = -0.5 * (square - float(solved.square().sum()) + weighted.logs) - float(factor.diagonal().log().sum())
        return cls(prior, roots, factor, residual, likelihood)

    def log_likelihoods(self) -> Tensor:
        """``log p(message | value)`` up to a constant of each row's values ``(n, V)``, all other rows Gaussian."""
        rows, values = self.prior.shape
        inverse, asked = torch.cholesky_inverse(self.factor), self.prior.numel()
        mean = (inverse @ self.residual)[:asked].view(rows, values)
        precision = torch.linalg.inv(inverse[:asked, :asked].reshape(rows, values, rows, values)[range(rows), :, range(rows)])
        natural = (precision @ mean[:, :, None])[:, :, 0]
        without_prior = precision - torch.eye(values, dtype=torch.double)
        of_values = torch.eye(values, dtype=torch.double) - self.prior[:, None]  # (n, V, V): each value less the mean
        t = of_values @ torch.linalg.pinv(self.roots, hermitian=True)
        likelihoods: Tensor = (t * natural[:, None]).sum(2) - 0.5 * ((t @ without_prior) * t).sum(2)
        return likelihoods


def _root(covariance: Tensor) -> Tensor:
    """The symmetric square roots of positive semidefinite matrices."""
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    roots: Tensor = (vectors * eigenvalues.clamp(min=0).sqrt()[:, None]) @ vectors.transpose(1, 2)
    return roots


@mounting()
def positive_control(seed: int = 0) -> Control:
    """Clients that take one step on a few rows, whose hidden category must be named far more often than by guessing."""
    began = time.process_time()
    right = sum(_named(seed, number) for number in range(_CLIENTS))
    rate = wilson(right, _CLIENTS * _ROWS, _SURE)
    sentence = (
        f"of {rate.n} rows of {_CLIENTS} undefended clients that took one step on {_ROWS} of them, {right} hidden values of "
        f"{_VALUES} were named (99.9 % interval {rate.low:.0%} to {rate.high:.0%}; it must lie above {1 / _VALUES:.0%})"
    )
    return Control("positive", rate.low > 1 / _VALUES, sentence, time.process_time() - began)


def _named(seed: int, number: int) -> int:
    """How many hidden values of a client's rows are named; the attacker has as many rows of its own, and knows nothing else."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    numbers = torch.randn(2 * _ROWS, _NUMBERS, generator=generator)
    hidden = torch.randint(_VALUES, (2 * _ROWS,), generator=generator)
    labels = torch.arange(2).repeat(_ROWS)
    choices = torch.eye(_VALUES)
    inputs = torch.cat([numbers, choices[hidden]], 1)
    net = SplitNet(nn.Sequential(nn.Linear(_NUMBERS + _VALUES, _UNITS), nn.ReLU()), nn.Linear(_UNITS, 2))
    uniform_(net, generator)
    trained = slice(_ROWS)
    gradients = torch.autograd.grad(F.cross_entropy(net(inputs[trained]), labels[trained]), list(net.parameters()))
    weights = {name: net.state_dict()[name].clone() for name in state_names(net)}
    shared = dict(zip(dict(net.named_parameters()), gradients, strict=True))
    message = Observation(
        shared, "gradient", weights, blank(net).eval(), (inputs.shape[1],), 2, ThreatModel(), num_examples=_ROWS
    )
    rows = torch.cat([numbers[trained, None].expand(-1, _VALUES, -1), choices.expand(_ROWS, -1, -1)], 2).flatten(0, 1)
    completed = samples(rows, labels[trained].repeat_interleave(_VALUES))
    prior = torch.full((_ROWS, _VALUES), 1 / _VALUES)
    (likelihoods,) = log_likelihoods([message], completed, prior, samples(inputs[_ROWS:], labels[_ROWS:]), [weights])
    return int((probabilities(prior, likelihoods).argmax(1) == hidden[trained]).sum())


def samples(inputs: Tensor, labels: Tensor) -> LabelledSamples:
    """Rows ``(n, F)`` with labels."""
    return LabelledSamples({"": inputs}, labels, lambda parts: parts[""])
