"""Membership by a regression of a message on the candidates' gradients.

To first order a client's message is the mean of its samples' gradients at the weights that it received, and the server can
compute the gradient of any candidate at these weights. So it solves for the weight of each candidate in the message: 1 / N for
one of the N training samples, 0 for any other. With fewer candidates than weights of the net this is an overdetermined linear
system, exact for one step without a defence. It needs no shadow model.

The regression uses what the server knows:

* Its own samples of a class (all, where labels are numbers) have a mean gradient, which is subtracted from the gradients of the
  class's candidates. These class means, at the sent weights and along the server's own simulated update, are nuisance columns:
  they are fitted but not scored, since class sizes and the path of the weights say nothing about single samples.
* The deviations of its own samples from these means stand for members that are not candidates. The likelihood decides whether
  these deviations are used.
* Where the client normalises by its batch, the statistics of the server's own samples replace the batch's.
* Every tensor is weighted by its error: the known noise and rounding, and the error of the first-order approximation relative to
  the tensor's gradients, whose size is chosen by maximum likelihood.

A candidate's score is the log-likelihood ratio of the weights 1 / N and 0, given a Gaussian approximation of all others (the
cavity of expectation propagation). Unlike the coefficient, it is near 0 for a sample whose gradient is too small to decide.

Everything follows from the inner products of the gradients of each tensor
(:mod:`fedpriv.attacks.inference.gradient_columns`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, batch_norms, copied
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import known_net
from fedpriv.attacks.gradients.per_sample import LabelledSamples
from fedpriv.attacks.inference.gradient_columns import Products, Sent, columns
from fedpriv.attacks.inference.membership import Array

MISFITS = (0.0, *(10.0**power for power in range(-10, 5)))
"""Variances of the first-order error that are compared, relative to the mean square of an entry of one sample's contribution."""
_NEGLIGIBLE = 1e-10
"""Smallest relative eigenvalue of the nuisance columns' directions that are used."""


def gradient_regression(
    messages: Sequence[Observation],
    candidates: LabelledSamples,
    public: LabelledSamples,
    path: Sequence[Mapping[str, Tensor]],
    clip: float | None = None,
) -> list[Array]:
    """The scores of the candidates ``(n,)`` for each message; higher is likelier a member.

    Args:
        messages: of one net, at the same received weights, with the same tensors.
        public: the attacker's own samples, of every class of the candidates.
        path: weights and buffers of the whole net, by the names of the messages: first the received ones, with a stand-in for
            hidden layers; then those of the attacker's own update from there.
        clip: bound on the norm of each sample's gradient (DP-SGD).

    Raises:
        Inapplicable: the client minimised no loss on labels, no parameter was shared, the attacker has no sample of a candidate's
            class, or a gradient or a message is not finite.
    """
    systems = equations(messages, candidates, public, path, clip)
    shares = torch.unique(public.classes, return_counts=True)[1].double() / len(public)
    return [_scores(system, len(candidates), len(public), shares) for system in systems]


@dataclass(frozen=True)
class Equations:
    """The linear system of a message: the inner products of its columns, tensor by tensor.

    Attributes:
        gradient: the message, read as a gradient.
    """

    products: Sequence[Products]
    gradient: Observation

    def informative(self) -> Equations:
        """Without the tensors that nothing is known of.

        Raises:
            Inapplicable: a gradient or the message is not finite, or nothing of the message changed.
        """
        if not all(math.isfinite(products.square) and bool(products.gram.isfinite().all()) for products in self.products):
            raise Inapplicable("a gradient or the message is not finite")
        kept = [products for products in self.products if products.square or products.error]
        if not kept:
            raise Inapplicable("nothing of the message changed")
        return Equations(kept, self.gradient)

    def amount(self, samples: int, shares: Tensor) -> float:
        """The factor of the mean gradient in the message: 1, or estimated from the attacker's own mean gradient if not known.

        Args:
            samples: the number of columns before those of the classes.
            shares: of the classes among the attacker's own samples.
        """
        if not self.gradient.altered.rescaled:
            return 1.0
        means = slice(samples, samples + len(shares))
        weights = [1 / max(products.size, 1e-300) for products in self.products]
        pairs = list(zip(weights, self.products, strict=True))
        together = sum(weight * float(shares @ products.message[means]) for weight, products in pairs)
        alone = sum(weight * float(shares @ products.gram[means, means] @ shares) for weight, products in pairs)
        return abs(together / alone) if alone and together else 1.0

    def weighted(self, samples: int, amount: float, misfit: float) -> Weighted:
        """All tensors together, each weighted by its error, and projected off the columns after the first ``samples``.

        Args:
            amount: the factor of one sample's gradient in the message.
            misfit: one of :data:`MISFITS`.
        """
        system = self.products
        errors = [max(products.error + misfit * amount**2 * products.size, 1e-300) for products in system]
        gram = torch.stack([products.gram / error for products, error in zip(system, errors, strict=True)]).sum(0)
        message = torch.stack([products.message / error for products, error in zip(system, errors, strict=True)]).sum(0)
        square = sum(products.square / error for products, error in zip(system, errors, strict=True))
        logs = sum(products.entries * math.log(error) for products, error in zip(system, errors, strict=True))
        gram, message, square = _without(gram, message, square, samples)
        return Weighted(gram * amount**2, message * amount, square, logs)


@dataclass(frozen=True)
class Weighted:
    """Inner products in which every entry has an error of variance 1.

    Attributes:
        gram: of the samples' columns ``(s, s)``.
        message: of these columns with the message ``(s,)``; ``square``: of the message with itself.
        logs: the sum of the logarithms of the errors' variances.
    """

    gram: Tensor
    message: Tensor
    square: float
    logs: float

    def without(self, combinations: Tensor) -> Weighted:
        """Projected off combinations of the columns ``(s, k)``."""
        if not combinations.shape[1]:
            return self
        along = self.gram @ combinations
        s, within = len(self.gram), combinations.T @ along
        joint = torch.cat([torch.cat([self.gram, along], 1), torch.cat([along.T, within], 1)])
        gram, message, square = _without(joint, torch.cat([self.message, combinations.T @ self.message]), self.square, s)
        return Weighted(gram, message, square, self.logs)


def equations(
    messages: Sequence[Observation],
    candidates: LabelledSamples,
    public: LabelledSamples,
    path: Sequence[Mapping[str, Tensor]],
    clip: float | None = None,
    certain: LabelledSamples | None = None,
) -> list[Equations]:
    """The linear system of each message; arguments and errors as for :func:`gradient_regression`.

    The columns are the candidates, the attacker's own samples, and the means of its samples of each class along the path.

    Args:
        certain: samples that are certainly behind the messages; the means of their gradients are further columns.
    """
    if (loss := messages[0].loss) is not None:
        raise Inapplicable(f"the client minimised {loss}, and the regression needs gradients of a loss on labels")
    net = known_net(messages[0])[0].to(candidates.labels.device)
    names = [name for name, _ in net.named_parameters() if name in messages[0].shared]
    if not names:
        raise Inapplicable("no parameter was sent in both directions, so that the message shows no gradient")
    if lacking := set(candidates.classes.tolist()) - set(public.classes.tolist()):
        raise Inapplicable(f"the attacker has no sample of its own of class {min(lacking)}")
    path = [_normalised(messages[0], point, public) for point in path]
    sent, systems = [Sent.of(message) for message in messages], list[list[Products]]([] for _ in messages)
    own = slice(len(candidates), len(candidates) + len(public))
    for name, of_tensor in columns(net, names, candidates, public, path, clip, certain):
        for message, system in zip(sent, systems, strict=True):
            system.append(message.products(name, of_tensor, own))
    return [Equations(system, message.gradient) for system, message in zip(systems, sent, strict=True)]


@torch.no_grad()
def _normalised(message: Observation, weights: Mapping[str, Tensor], public: LabelledSamples) -> Mapping[str, Tensor]:
    """The weights and buffers. Where the client normalised by its batch (BatchNorm), the running statistics are those of the
    public samples, so that the gradients of samples do not depend on each other."""
    if not batch_norms(message.net):
        return weights
    net, normalised = copied(message.net).to(public.labels.device), {name: tensor.clone() for name, tensor in weights.items()}
    net.eval()
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.train().momentum = 1.0
    functional_call(net, normalised, (public.joined(public.inputs),))
    return normalised


def _scores(system: Equations, asked: int, own: int, shares: Tensor) -> Array:
    """The log-likelihood ratios of the candidates, by the error and the prior of the largest likelihood."""
    system = system.informative()
    amount = system.amount(asked + own, shares) / (system.gradient.num_examples or asked // 2)
    fits = {misfit: _Fit.of(system, asked, own, amount, misfit, False) for misfit in MISFITS}
    near = sorted(MISFITS, key=lambda misfit: fits[misfit].likelihood)[-3:]
    with_others = [_Fit.of(system, asked, own, amount, misfit, True) for misfit in near]
    scores: Array = max([*fits.values(), *with_others], key=lambda fit: fit.likelihood).ratios().numpy()
    return scores


@dataclass(frozen=True)
class _Fit:
    """A regression with Gaussian priors; a candidate's coefficient has mean 1/2 and variance 1/4.

    Coefficients are in units of one sample's share of the message: 1 for a member, 0 for others.

    Attributes:
        root: square roots of the prior variances ``(s,)``.
        factor: Cholesky factor of ``1 + root gram root``.
        residual: ``root`` times the inner products with the message less its prior mean ``(s,)``.
        asked: number of candidates, which are the first samples.
    """

    root: Tensor
    factor: Tensor
    residual: Tensor
    asked: int
    likelihood: float

    @classmethod
    def of(cls, system: Equations, asked: int, own: int, amount: float, misfit: float, others: bool) -> _Fit:
        """Fit the regression.

        Args:
            amount: the factor of one sample's gradient in the message.
            misfit: one of :data:`MISFITS`.
            others: whether the attacker's own samples stand for members that are no candidates.
        """
        s, weighted = asked + own, system.weighted(asked + own, amount, misfit)
        gram, message, square = weighted.gram, weighted.message, weighted.square
        mean, root = torch.zeros(s, dtype=gram.dtype), torch.zeros(s, dtype=gram.dtype)
        mean[:asked], root[:asked], root[asked:] = 0.5, 0.5, 0.5 * others
        square = square - 2 * float(mean @ message) + float(mean @ gram @ mean)
        factor = torch.linalg.cholesky(torch.eye(s, dtype=gram.dtype) + root[:, None] * gram * root)
        residual = root * (message - gram @ mean)
        solved = torch.linalg.solve_triangular(factor, residual[:, None], upper=False)
        quadratic = square - float(solved.square().sum())
        likelihood = -0.5 * (quadratic + weighted.logs) - float(factor.diagonal().log().sum())
        return cls(root, factor, residual, asked, likelihood)

    def ratios(self) -> Tensor:
        """``log p(message | member) - log p(message | not)`` of each candidate ``(n,)``, the others Gaussian."""
        inverse = torch.cholesky_inverse(self.factor)
        root, variance = self.root[: self.asked], inverse.diagonal()[: self.asked]
        mean = 0.5 + root * (inverse @ self.residual)[: self.asked]
        variance = variance * root.square()
        precision = 1 / variance - 1 / root.square()
        return mean / variance - 0.5 / root.square() - precision / 2


def _without(gram: Tensor, message: Tensor, square: float, s: int) -> tuple[Tensor, Tensor, float]:
    """The products of the first ``s`` columns and the message, all projected off the span of the other columns."""
    scale = gram.diagonal()[s:].clamp(min=1e-300).rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * gram[s:, s:] * scale)
    used = values > _NEGLIGIBLE * values.max()
    basis = scale[:, None] * vectors[:, used] * values[used].rsqrt()
    across, along = gram[:s, s:] @ basis, message[s:] @ basis
    return gram[:s, :s] - across @ across.T, message[:s] - across @ along, square - float(along.square().sum())
