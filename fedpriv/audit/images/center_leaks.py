"""Inversion of class centres: images whose embedding is the centre."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import from_picture
from fedpriv.attacks.image.centers import (
    CenterOptions,
    Embed,
    LabelSet,
    Prior,
    away,
    embedding,
    invert_centers,
    looks,
    read_label_set,
)
from fedpriv.attacks.scoring.scores import RECOVERED, beyond, counts, mse, under, wilson
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.images.figures import by_threshold, rate
from fedpriv.audit.images.target import public_images

HEAD = "head"


def inverted_centers(evidence: Evidence, round: int, client: int) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The most likely images whose embeddings are the client's class centres, compared with its images.

    The body has the weights that the client uploaded, the projector those of round 0's broadcast, as the client's own was never
    sent. What images look like is taken from public ones.

    Returns:
        figures as JSON, and the images by name; ``None`` where no centres were sent or no projector is known.
    """
    observation = evidence.observation(evidence.message(round, client), ThreatModel(top="initial"))
    dataset = evidence.federation.dataset
    public, labels = public_images(dataset.test_images, dataset.test_labels)
    try:
        sent, projector = read_label_set(observation), _projector(observation)
        present = sent.present.nonzero().flatten().tolist()
        embed, likely = embedding(observation, projector), looks(public, labels, present)
        options = CenterOptions() if projector is None else CenterOptions(slack=_unlike(observation, embed, sent, likely))
        made = invert_centers(observation, embed, sent.centers, likely, options)
    except Inapplicable:
        return None
    truth = evidence.truth(client)
    own = [truth.images[truth.labels == label] for label in present]
    means = torch.stack([images.mean(0) for images in own])
    with torch.no_grad():
        true = torch.stack([embed(from_picture(observation, images)).mean(0) for images in own])
    nearest = torch.stack([_to_nearest(image, images) for image, images in zip(made.images, own, strict=True)])
    copies = torch.stack([_of_guesses(images, public, mean) for images, mean in zip(own, likely.means, strict=True)])
    recovered, guessed = under(nearest), counts(under(copies))
    limit = beyond(counts(recovered), guessed)
    figures = {
        "round": round,
        "client": evidence.sender(round, client),
        "classes": len(present),
        "samples_per_class": [len(images) for images in own],
        "to_class_mean": {
            "mse_median": float(mse(made.images, means).median()),
            "baseline_mse_median": float(mse(likely.means, means).median()),
        },
        "success": by_threshold(recovered),
        "copies": {f"{limit:g}": count for limit, count in guessed.items()},
        "recovered": rate(wilson(0, len(own)) if limit is None else recovered[limit]) | {"limit": f"{limit or RECOVERED:g}"},
        "to_centers": {"truth": float(away(true, sent.centers).median()), "found": float(made.distance.median())},
    }
    return figures, {"class mean": means, "from the centre": made.images, "public class mean": likely.means}


def _unlike(observation: Observation, embed: Embed, sent: LabelSet, likely: Prior) -> float:
    """How far the centres are from those of public images, as a share of their length.

    That is how little the projector of round 0 may say of the client's, which has been trained since.
    """
    with torch.no_grad():
        return float(away(embed(from_picture(observation, likely.means)), sent.centers).median().sqrt())


def _of_guesses(images: Tensor, public: Tensor, mean: Tensor) -> Tensor:
    """The least error of a public image, or of the public mean of the class, to one of the images ``(n, C, H, W)``."""
    return torch.stack([_to_nearest(image, torch.cat([public, mean[None]])) for image in images]).min()


def _to_nearest(image: Tensor, images: Tensor) -> Tensor:
    """Error of an image ``(C, H, W)`` to the nearest of ``(n, C, H, W)``."""
    return mse(image.expand_as(images), images).min()


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
