"""Class centres in a message, which can be inverted to images.

A client of MpFedcon uploads, for each class it holds, the mean projection of its samples. The centre of a class with one sample
is that sample's projection under the weights that the client uploads with it; with more samples it is their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.core.observation import Observation, state_names
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import known_net, normalise_images
from fedpriv.attacks.labels.stated import CENTERS, CLASSES, read_label_set
from fedpriv.attacks.optimise.lbfgs import STRONG_WOLFE
from fedpriv.attacks.optimise.search import lbfgs

FAINT = 1e-3
"""Least standard deviation of a principal component, as a share of the largest's."""
COMPONENTS = 500
"""Largest number of principal components."""
Embed = Callable[[Tensor], Tensor]
"""Normalised images ``(B, C, H, W)`` -> projections ``(B, k)``."""


def read_centers(observation: Observation) -> dict[int, Tensor]:
    """The centres ``(k,)`` by class, in ascending order.

    Raises:
        Inapplicable: no centres were sent, or not their classes.
    """
    if CENTERS not in observation.statistics:
        raise Inapplicable("no class centres were sent")
    centers, present = observation.statistics[CENTERS].cpu(), read_label_set(observation).present
    listed = observation.statistics.get(CLASSES, torch.arange(observation.classes)).long().cpu()
    return {c: centers[row] for c, row in sorted((c, row) for row, c in enumerate(listed.tolist())) if present[c]}


def uploaded_body(observation: Observation) -> Embed:
    """The net's body in evaluation mode with the uploaded weights, with which the client computed its centres.

    For a gradient, the body as it was sent to the client.
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
    """``projector(body(x))``; the projector is the attacker's (of round 0, or an oracle's), ``None`` where features are sent."""
    body = uploaded_body(observation)
    return body if projector is None else lambda x: projector(body(x))


@dataclass(frozen=True)
class Prior:
    """What the images behind ``m`` centres look like before these are seen: normally distributed, about a mean for each.

    Attributes:
        means: ``(m, C, H, W)``, of pixels in [0, 1].
        directions: ``(p, C * H * W)``, orthogonal and each as long as the standard deviation along it; the same for all.
    """

    means: Tensor
    directions: Tensor

    def images(self, rows: Tensor, factors: Tensor) -> Tensor:
        """Images ``(n, C, H, W)`` behind the centres ``rows``, of standard normal factors ``(n, p)``."""
        return self.means[rows] + (factors @ self.directions).reshape(-1, *self.means.shape[1:])


def fit_prior(public: Tensor, labels: Tensor, classes: Sequence[int]) -> Prior:
    """From public images ``(n, C, H, W)``: the mean of each of the ``classes``, and how images differ from their class's mean.

    A class without public images has the mean of all.

    Raises:
        Inapplicable: no two public images of a class differ.
    """
    if not len(public):
        raise Inapplicable("inverting centres needs public images, and there are none")
    means = {label: public[labels == label].mean(0) for label in set(labels.tolist())}
    differ = public - torch.stack([means[label] for label in labels.tolist()])
    flat = differ.flatten(1) / len(public) ** 0.5
    _, vectors = torch.linalg.eigh((flat @ flat.T).double())  # of n x n entries, where pixels may be many more
    directions = vectors.flip(1)[:, :COMPONENTS].T.to(flat) @ flat
    lengths = directions.norm(dim=1)
    kept = lengths > FAINT * lengths.amax()
    if not kept.any():
        raise Inapplicable("inverting centres needs to know how images of a class differ, and the public ones do not say")
    everything = public.mean(0)
    return Prior(torch.stack([means.get(label, everything) for label in classes]), directions[kept])


@dataclass(frozen=True)
class CenterOptions:
    """
    Attributes:
        slack: the length of the error of an embedding, as a share of the centre's length, that is as likely as factors of the
            prior that are all 1. Small where the whole net is known; large where its projector is only like the client's.
        steps: largest number of outer steps of L-BFGS, of up to 20 iterations each.
    """

    slack: float = 1e-3
    steps: int = 20


@dataclass(frozen=True)
class InvertedCenters:
    """
    Attributes:
        images: ``(m, C, H, W)`` in [0, 1], one for each centre.
        distance: ``(m,)`` of their embeddings to the centres, see :func:`relative_distance`.
    """

    images: Tensor
    distance: Tensor


def invert_centers(
    observation: Observation, embed: Embed, centers: Tensor, likely: Prior, options: CenterOptions | None = None
) -> InvertedCenters:
    """For each centre ``(m, k)`` the most likely image with about that embedding.

    Many images have the same embedding: layers are not injective, and what tells these images apart is how likely they are (as
    for features, Dosovitskiy & Brox 2016). So the attack looks for the largest posterior density, from the prior's mean.
    """
    options = options or CenterOptions()
    exact = Prior(likely.means.to(centers).double(), likely.directions.to(centers).double())

    def objective(rows: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            factors = factors.detach().requires_grad_()
            made = embed(normalise_images(observation, exact.images(rows, factors).to(centers.dtype)))
            loss = relative_distance(made, centers[rows]).double() / options.slack**2 + factors.square().mean(1)
            (gradient,) = torch.autograd.grad(loss.sum(), factors)
        return loss.detach(), gradient

    starts = exact.directions.new_zeros(len(centers), len(exact.directions))
    found = lbfgs(objective, starts, STRONG_WOLFE, options.steps)
    with torch.no_grad():
        images = exact.images(torch.arange(len(centers)), found.x).to(centers.dtype).clamp(0, 1)
        return InvertedCenters(images, relative_distance(embed(normalise_images(observation, images)), centers))


def relative_distance(embeddings: Tensor, centers: Tensor) -> Tensor:
    """``|z - m|^2 / |m|^2`` of embeddings and centres ``(n, k)``, ``(n,)``."""
    missed: Tensor = (embeddings - centers).square().sum(dim=1) / centers.square().sum(dim=1).clamp(min=1e-30)
    return missed
