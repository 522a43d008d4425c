"""Inversion of the class centres that a client of MpFedcon uploads.

For each of its classes the client sends the mean projection of its samples. With one sample per class, the centre is that
sample's projection under the weights sent along. The attacker knows these weights, and public images as a prior: it looks for the
most probable image with that projection (feature inversion, Dosovitskiy & Brox, CVPR 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import known_net, normalise_images
from fedpriv.attacks.labels.stated import CENTERS, CLASSES, read_label_set
from fedpriv.attacks.optimise.lbfgs import STRONG_WOLFE
from fedpriv.attacks.optimise.search import lbfgs

FAINT = 1e-3
"""Smallest standard deviation of a principal component, as a share of the largest."""
COMPONENTS = 500
"""Largest number of principal components."""
SLACK = 1e-3
"""The error of an embedding by the client's own net."""
PLATEAU = (3, 0.02)
"""The search ends where the loss falls by less than this share in so many outer steps: 60 iterations."""
Embed = Callable[[Tensor], Tensor]
"""Normalised images ``(B, C, H, W)`` -> projections ``(B, k)``."""


def read_centers(observation: Observation) -> dict[int, Tensor]:
    """The centres ``(k,)`` by class, in ascending order.

    Raises:
        Inapplicable: no centres were sent, or their classes are unknown.
    """
    if CENTERS not in observation.statistics:
        raise Inapplicable("no class centres were sent")
    centers, present = observation.statistics[CENTERS].cpu(), read_label_set(observation).present
    listed = observation.statistics.get(CLASSES, torch.arange(observation.classes)).long().cpu()
    return {c: centers[row] for c, row in sorted((c, row) for row, c in enumerate(listed.tolist())) if present[c]}


def uploaded_body(observation: Observation) -> Embed:
    """The body with the weights that the client uploaded, and used for its centres, in evaluation mode.

    For a gradient: the body as it was sent to the client.

    Raises:
        Inapplicable: some of its weights are not known.
    """
    net, weights = known_net(observation)
    if observation.kind == "change":
        weights = {name: w + observation.shared[name] if name in observation.shared else w for name, w in weights.items()}
    prefix = "body."
    body = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    missing = [name for name in state_names(net.get_submodule("body")) if name not in body]
    if missing:
        raise Inapplicable(f"inverting centres needs the weights of the body; {missing[0]!r} is not known")

    def embed(x: Tensor) -> Tensor:
        features: Tensor = functional_call(net.get_submodule("body"), body, (x,))
        return features

    return embed


def embedding(observation: Observation, projector: nn.Module | Embed | None) -> Embed:
    """The map ``projector(body(x))`` with the attacker's projector; ``None`` if the centres are of the body's features."""
    body = uploaded_body(observation)
    return body if projector is None else lambda x: projector(body(x))


@dataclass(frozen=True)
class Prior:
    """A normal prior of the images of ``m`` classes.

    Attributes:
        means: ``(m, C, H, W)``, pixels in [0, 1].
        directions: ``(p, C * H * W)``, orthogonal principal components times their standard deviations, shared by all classes.
    """

    means: Tensor
    directions: Tensor

    def images(self, rows: Tensor, factors: Tensor) -> Tensor:
        """Images ``(n, C, H, W)`` of the classes ``rows`` ``(n,)`` for standard normal factors ``(n, p)``."""
        return self.means[rows] + (factors @ self.directions).reshape(-1, *self.means.shape[1:])


def fit_prior(public: Tensor, labels: Tensor, classes: Sequence[int]) -> Prior:
    """Fit the prior to public images ``(n, C, H, W)``: the mean of each of ``classes``, and the deviations from class means.

    A class without public images gets the mean of all.

    Raises:
        Inapplicable: there are no public images, or those of each class are all equal.
    """
    if not len(public):
        raise Inapplicable("inverting centres needs public images, and there are none")
    means = {label: public[labels == label].mean(0) for label in set(labels.tolist())}
    deviations = public - torch.stack([means[label] for label in labels.tolist()])
    rows = deviations.flatten(1) / len(public) ** 0.5
    _, vectors = torch.linalg.eigh((rows @ rows.T).double())  # (n, n): usually fewer images than pixels
    directions = vectors.flip(1)[:, :COMPONENTS].T.to(rows) @ rows
    lengths = directions.norm(dim=1)
    varied = lengths > FAINT * lengths.amax()
    if not varied.any():
        raise Inapplicable("inverting centres needs to know how images of a class differ, and the public ones do not say")
    everything = public.mean(0)
    return Prior(torch.stack([means.get(label, everything) for label in classes]), directions[varied])


@dataclass(frozen=True)
class InvertedCenters:
    """
    Attributes:
        images: ``(m, C, H, W)`` in [0, 1], one per centre.
        distance: ``(m,)``, :func:`relative_distance` of their embeddings from the centres.
    """

    images: Tensor
    distance: Tensor


def invert_centers(
    observation: Observation,
    embed: Embed,
    centers: Tensor,
    likely: Prior,
    slack: float | Tensor = SLACK,
    steps: int = 20,
) -> InvertedCenters:
    """The maximum a posteriori image for each centre ``(m, k)``, by L-BFGS from the prior's mean.

    Args:
        slack: standard deviation of the embedding's error, as a share of the centre's norm; one for all, or one each ``(m,)``.
            Large if the projector is a guess.
        steps: largest number of outer steps of L-BFGS, of up to 20 iterations each.
    """
    error = torch.as_tensor(slack).double().expand(len(centers))
    exact = Prior(likely.means.to(centers).double(), likely.directions.to(centers).double())

    def objective(rows: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            factors = factors.detach().requires_grad_()
            embeddings = embed(normalise_images(observation, exact.images(rows, factors).to(centers.dtype)))
            loss = relative_distance(embeddings, centers[rows]).double() / error[rows].square() + factors.square().mean(1)
            (gradient,) = torch.autograd.grad(loss.sum(), factors)
        return loss.detach(), gradient

    starts = exact.directions.new_zeros(len(centers), len(exact.directions))
    minimum = lbfgs(objective, starts, STRONG_WOLFE, steps, stalled=PLATEAU)
    with torch.no_grad():
        images = exact.images(torch.arange(len(centers)), minimum.x).to(centers.dtype).clamp(0, 1)
        return InvertedCenters(images, relative_distance(embed(normalise_images(observation, images)), centers))


def relative_distance(embeddings: Tensor, centers: Tensor) -> Tensor:
    """``|z - m|^2 / |m|^2`` ``(n,)`` for embeddings ``z`` and centres ``m`` ``(n, k)``."""
    errors: Tensor = (embeddings - centers).square().sum(dim=1) / centers.square().sum(dim=1).clamp(min=1e-30)
    return errors
