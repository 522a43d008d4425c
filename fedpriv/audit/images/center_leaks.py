"""Inversion of class centres: images whose embedding is the centre."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.image.centers import Embed, embedding, invert_centers, read_label_set
from fedpriv.attacks.scoring.scores import RECOVERED, mse, wilson
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.images.figures import rate
from fedpriv.audit.images.target import public_images

HEAD = "head"


def inverted_centers(evidence: Evidence, round: int, client: int, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Images whose embeddings are the client's class centres, compared with the means of its images by class.

    The body has the weights that the client uploaded, the projector those of round 0's broadcast, as the client's own was never
    sent.

    Returns:
        figures as JSON, and the images by name; ``None`` where no centres were sent or no projector is known.
    """
    observation = evidence.observation(evidence.message(round, client), ThreatModel(top="initial"))
    try:
        sent = read_label_set(observation)
        made = invert_centers(observation, embedding(observation, _projector(observation)), sent.centers, seed=seed)
    except Inapplicable:
        return None
    truth = evidence.truth(client)
    present = sent.present.nonzero().flatten().tolist()
    own = [truth.images[truth.labels == label] for label in present]
    means = torch.stack([images.mean(0) for images in own])
    dataset = evidence.federation.dataset
    public, labels = public_images(dataset.test_images, dataset.test_labels)
    guess = torch.stack([public[labels == label].mean(0) if (labels == label).any() else public.mean(0) for label in present])
    nearest = torch.stack([mse(image.expand_as(images), images).min() for image, images in zip(made.images, own, strict=True)])
    figures = {
        "round": round,
        "client": evidence.sender(round, client),
        "classes": len(present),
        "samples_per_class": [len(images) for images in own],
        "to_class_mean": {
            "mse_median": float(mse(made.images, means).median()),
            "baseline_mse_median": float(mse(guess, means).median()),
        },
        "recovered": rate(wilson(int((nearest < RECOVERED).sum()), len(nearest))),
        "note": "baseline: the mean of public images of the class; recovered: nearer than that threshold to one of the samples",
    }
    return figures, {"class mean": means, "from the centre": made.images, "public class mean": guess}


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
