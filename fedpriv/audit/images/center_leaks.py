"""Inversion of class centres: images whose embedding is the centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import normalise_images
from fedpriv.attacks.image.centers import (
    SLACK,
    Embed,
    InvertedCenters,
    embedding,
    fit_prior,
    invert_centers,
    read_centers,
    relative_distance,
)
from fedpriv.attacks.scoring.scores import RECOVERED, Rate, counts, mse, threshold_above, under, wilson
from fedpriv.audit.images.figures import by_threshold
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.images import CenterOutcome, RecoveryRate

HEAD = "head"
TOGETHER = 256
"""Number of images that are embedded, or compared, at once."""


def inverted_centers(record: RunRecord, round: int, client: int) -> tuple[CenterOutcome, dict[str, Tensor]] | None:
    """The most likely images whose embeddings are the client's class centres, compared with its images.

    The body is that which the client uploaded; the projector has the weights of round 0's broadcast, as the client's own was
    never sent. What images look like is taken from public ones. The attack is run twice: assuming that this net is the client's,
    and assuming that it differs from the client's by the distance between the centres that were sent and those of public images.
    The better result is returned.

    Returns:
        the figures, and the images by name; ``None`` where no centres were sent, or the attack cannot be mounted.
    """
    observation = _as_uploaded(record, record.message(round, client))
    public, labels = record.public_images()
    assert public is not None and labels is not None
    try:
        sent = read_centers(observation)
        present, centers = list(sent), torch.stack(list(sent.values()))
        embed, likely = embedding(observation, _projector(observation)), fit_prior(public, labels, present)
        far = float(relative_distance(_embedded(observation, embed, likely.means), centers).median().sqrt())
        slack = torch.tensor([far, SLACK])  # on a tie the first wins; with slack it stays near the guess
        twice = replace(likely, means=likely.means.repeat(2, 1, 1, 1))
        both = invert_centers(observation, embed, centers.repeat(2, 1), twice, slack.repeat_interleave(len(centers)))
        tried = list(map(InvertedCenters, both.images.chunk(2), both.distance.chunk(2)))
    except Inapplicable:
        return None
    truth = record.truth(client)
    own = [truth.images[truth.labels == label] for label in present]
    guesses = [torch.cat([public, mean[None]]) for mean in likely.means]
    guessed = counts(under(torch.stack([_least(images, guess) for images, guess in zip(own, guesses, strict=True)])))
    inverted, recovered, limit = max((_held(inverted, own, guessed) for inverted in tried), key=lambda held: _merit(*held))
    means = torch.stack([images.mean(0) for images in own])
    true = torch.stack([_embedded(observation, embed, images).mean(0) for images in own])
    counted = wilson(0, len(own)) if limit is None else recovered[limit]
    outcome = CenterOutcome(
        round=round,
        sender=record.sender(round, client),
        classes=tuple(present),
        samples_per_class=tuple(len(images) for images in own),
        mse_median=float(mse(inverted.images, means).median()),
        baseline_mse_median=float(mse(likely.means, means).median()),
        success=by_threshold(recovered),
        public_successes={f"{limit:g}": count for limit, count in guessed.items()},
        recovered=RecoveryRate(counted, f"{limit or RECOVERED:g}"),
        distance_of_truth=_finite(relative_distance(true, centers).median()),
        distance_of_recovered=_finite(inverted.distance.median()),
    )
    return outcome, {"class mean": means, "from the centre": inverted.images, "public class mean": likely.means}


Held = tuple[InvertedCenters, dict[float, Rate], float | None]
"""Images from centres; by threshold, the rate of those whose error to the client's nearest image is below it; and the loosest
threshold at which guesses are fewer."""


def _held(inverted: InvertedCenters, own: Sequence[Tensor], guessed: Mapping[float, int]) -> Held:
    recovered = under(torch.stack([_least(image[None], images) for image, images in zip(inverted.images, own, strict=True)]))
    return inverted, recovered, threshold_above(counts(recovered), guessed)


def _merit(inverted: InvertedCenters, recovered: Mapping[float, Rate], limit: float | None) -> tuple[int, int]:
    return (0 if limit is None else recovered[limit].successes, recovered[RECOVERED].successes)


def _as_uploaded(record: RunRecord, message: Message) -> Observation:
    """The observation with the buffers that the client uploaded, such as running means, in place of those that it got.

    Centres are computed in evaluation mode at the end of a local update.
    """
    seen, names = record.observation(message, ThreatModel(top="initial")), record.attacker.victim(message).names
    buffers = {names[name]: tensor for name, tensor in message.uploaded.items() if names.get(name, "") in seen.weights}
    return replace(seen, weights={**seen.weights, **{name: t for name, t in buffers.items() if name not in seen.shared}})


def _embedded(observation: Observation, embed: Embed, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([embed(normalise_images(observation, some)) for some in torch.split(images, TOGETHER)])


def _finite(value: Tensor) -> float | None:
    return float(value) if value.isfinite() else None


def _least(images: Tensor, others: Tensor) -> Tensor:
    """The least mean squared error between one of the images ``(n, C, H, W)`` and one of the others ``(m, C, H, W)``."""
    nearest = torch.stack([torch.cdist(some, others.flatten(1)).amin() for some in torch.split(images.flatten(1), TOGETHER)])
    return nearest.amin().square() / images[0].numel()


def _projector(observation: Observation) -> Embed | None:
    """The layers between body and head, with the weights of round 0; ``None`` where there are none.

    Raises:
        Inapplicable: its weights are not known.
    """
    parts = [(name, part) for name, part in observation.net.top.named_children() if not name.startswith(HEAD)]
    if not parts:
        return None
    weights = {name: {n: observation.weights.get(f"top.{name}.{n}") for n, _ in part.named_parameters()} for name, part in parts}
    if any(weight is None for known in weights.values() for weight in known.values()):
        raise Inapplicable("inverting centres needs the projector, and it was never sent")

    def project(features: Tensor) -> Tensor:
        for name, part in parts:
            features = functional_call(part, {n: w for n, w in weights[name].items() if w is not None}, (features,))
        return features

    return project
