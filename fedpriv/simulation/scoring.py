"""One evaluation pass: every client's model on every client's local test set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedpriv.config import RunConfig
from fedpriv.data.augment import Augment
from fedpriv.data.federated import FederatedData, Whole
from fedpriv.evaluation import client_summary, global_summary
from fedpriv.methods.base import Method, Phase, Private, ServerState
from fedpriv.samples import Modality, without
from fedpriv.simulation.client_model import CHUNK
from fedpriv.simulation.resident import Resident
from fedpriv.simulation.turn import ClientDiverged, Turn

ALONE: Mapping[Modality, str] = {"text": "images_alone", "image": "texts_alone"}
"""What is left of pairs without their texts, and without their images."""


class Scorer:
    """Scores a server state with all clients' private states.

    What clients have in common is computed once: with one encoder for all, the test images' features; with one model for
    all, its predictions.

    Args:
        on_drop: told of a client whose adaptation diverged; it may raise to stop the run, otherwise the client is tested
            as it was before.
    """

    def __init__(
        self,
        resident: Resident,
        data: FederatedData,
        method: Method,
        config: RunConfig,
        on_drop: Callable[[ClientDiverged], None],
        augment: Augment | None = None,
    ) -> None:
        self.resident, self.data, self.method, self.config, self.on_drop = resident, data, method, config, on_drop
        self.augment = augment
        self.split = config.eval.split
        self.sizes = [len(data.indices(self.split, client)) for client in range(config.data.clients)]
        self._lacking = {data.lacking(client) for client in range(config.data.clients)}
        self._confusion: NDArray[np.int64] | None = None  # of the last pass

    def score(
        self, server: ServerState, private: Callable[[int], Private], round: int
    ) -> tuple[dict[str, float], list[float | None]]:
        """Metrics of the pass, and each client's accuracy (``None``: no test data).

        The ``global_...`` metrics are of the server's model on the server's test set; a personalised method, whose server
        holds no complete model, has none, nor has a run whose clients are scored on validation data. Of pairs, two more say how
        good it is on the images, and on the texts, of that test set alone. A client is tested on what it has of its samples.
        """
        phases = self.method.adaptation(round)
        alike = not phases and not self.method.tested_names  # every client is tested with the server's model as it is
        metrics: dict[str, float] = {}
        hits: dict[Modality | None, Tensor] = {}  # of the global model, on the pool that clients without that are tested on
        if self.method.has_global_model:
            self.resident.row.copy_(server.row)
            if self.split == "test":
                scores, labels = self._global("server")
                predicted = scores.argmax(1)
                hits[None] = predicted == labels
                self._confusion = _confusion(predicted, labels, scores.shape[1])
                metrics["test_loss"] = float(F.cross_entropy(scores, labels))
                metrics["global_accuracy"] = float(hits[None].double().mean())
                metrics |= global_summary(self._confusion)
                for missing, name in ALONE.items() if self.data.are_pairs else ():
                    scores, _ = self._global("server", missing)
                    hits[missing] = scores.argmax(1) == labels
                    metrics[f"global_accuracy_{name}"] = float(hits[missing].double().mean())
            if self.split != "test" or not self.data.clients_share_the_server_test_set:
                hits = {}
            for lacking in self._lacking - hits.keys() if alike else ():
                scores, labels = self._global(self.split, lacking)
                hits[lacking] = scores.argmax(1) == labels
        if hits and alike:
            accuracies = [self._share(hits[self.data.lacking(client)], client) for client in range(len(self.sizes))]
        else:
            accuracies = self._each(server, private, round, phases)
        return {**client_summary(accuracies, self.sizes), **metrics}, accuracies

    def confusion(self, server: ServerState) -> NDArray[np.int64]:
        """Confusion matrix ``(C, C)`` of the server's model on the server's test set, a row per true class.

        It is that of the last pass. Only a run that was killed after its last round has not got it, and computes it anew.
        """
        if self._confusion is None:
            self.resident.row.copy_(server.row)
            scores, labels = self._global("server")
            self._confusion = _confusion(scores.argmax(1), labels, scores.shape[1])
        return self._confusion

    def _each(
        self, server: ServerState, private: Callable[[int], Private], round: int, phases: Sequence[Phase]
    ) -> list[float | None]:
        space = self.resident.space
        encoder = set(space.select(["encoder"]))
        labels = self.data.labels(self.split)
        common: dict[Modality | None, Tensor] = {}
        if not phases and encoder <= set(self.method.shared_names) and not encoder & set(self.method.tested_names):
            self.resident.row.copy_(server.row)
            for lacking in self._lacking:
                chunks = (without(chunk, lacking) for chunk in self.data.chunks(self.split, CHUNK))
                common[lacking] = torch.cat([self.resident.features(chunk) for chunk in chunks])
        accuracies: list[float | None] = []
        for client, size in enumerate(self.sizes):
            if not size:
                accuracies.append(None)
                continue
            kept = private(client)
            space.pack(self.method.client_state(server, kept), self.resident.row)
            if phases and self.data.size(client):
                turn = Turn(
                    self.resident, self.data.train(client), self.config, round, client, {}, kept, False, "adapt", self.augment
                )
                try:
                    for phase in phases:
                        turn.train(phase, self.method.local_loss)
                except ClientDiverged as error:
                    self.on_drop(error)
                    space.pack(self.method.client_state(server, kept), self.resident.row)
            index = self.data.indices(self.split, client)
            if common:
                features = common[self.data.lacking(client)][index]
            else:
                features = self.resident.features(self.data.split(self.split, client).inputs)
            hits = self.resident.from_features(features).logits.argmax(1) == labels[index]
            accuracies.append(_weighted(hits, self.data.weights(self.split, client)))
        return accuracies

    def _global(self, pool: Whole, lacking: Modality | None = None) -> tuple[Tensor, Tensor]:
        """Logits ``(N, C)`` of the present row on (what is left of) all samples of a pool, and their labels ``(N,)``."""
        chunks = (without(chunk, lacking) for chunk in self.data.chunks(pool, CHUNK))
        logits = [self.resident.from_features(self.resident.features(chunk)).logits for chunk in chunks]
        return torch.cat(logits), self.data.labels(pool)

    def _share(self, correct: Tensor, client: int) -> float | None:
        index = self.data.indices(self.split, client)
        return _weighted(correct[index], self.data.weights(self.split, client)) if len(index) else None


def _weighted(hits: Tensor, weights: Tensor | None) -> float:
    if weights is None:
        return float(hits.double().mean())
    return float((hits.double() * weights).sum() / weights.sum())


def _confusion(predicted: Tensor, labels: Tensor, classes: int) -> NDArray[np.int64]:
    """Number of samples ``(C, C)`` by true class (row) and predicted class (column); both arguments ``(N,)``."""
    counts: NDArray[np.int64] = torch.bincount(labels * classes + predicted, minlength=classes**2).cpu().numpy()
    return counts.reshape(classes, classes)
