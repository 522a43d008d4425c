"""One evaluation pass: every client's model on every client's local test set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.config import RunConfig
from fedpriv.data.augment import Augment
from fedpriv.data.federated import FederatedData, Pool
from fedpriv.evaluation import client_summary
from fedpriv.methods.base import Method, Phase, Private, ServerState
from fedpriv.simulation.resident import CHUNK, Resident
from fedpriv.simulation.turn import ClientDiverged, Turn


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

    def score(
        self, server: ServerState, private: Callable[[int], Private], round: int
    ) -> tuple[dict[str, float], list[float | None]]:
        """Metrics of the pass, and each client's accuracy (``None``: no test data)."""
        phases = self.method.adaptation(round)
        alike = not phases and not self.method.tested_names  # every client is tested with the server's model as it is
        metrics: dict[str, float] = {}
        hits: Tensor | None = None  # of the global model, on all images of the pool that the clients are tested on
        if self.method.has_global_model:
            self.resident.row.copy_(server.row)
            if self.split == "test":
                hits, metrics["test_loss"] = self._global("server")
                metrics["global_accuracy"] = float(hits.double().mean())
            if self.split != "test" or not self.data.clients_share_the_server_test_set:
                hits = self._global(self.split)[0] if alike else None
        if hits is not None and alike:
            accuracies = [self._share(hits, client) for client in range(len(self.sizes))]
        else:
            accuracies = self._each(server, private, round, phases)
        return {**client_summary(accuracies, self.sizes), **metrics}, accuracies

    def _each(
        self, server: ServerState, private: Callable[[int], Private], round: int, phases: Sequence[Phase]
    ) -> list[float | None]:
        space = self.resident.space
        encoder = set(space.select(["encoder"]))
        labels = self.data.labels(self.split)
        common: Tensor | None = None
        if not phases and encoder <= set(self.method.shared_names) and not encoder & set(self.method.tested_names):
            self.resident.row.copy_(server.row)
            common = torch.cat([self.resident.features(chunk) for chunk in self.data.chunks(self.split, CHUNK)])
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
            features = self.resident.features(self.data.split(self.split, client).images) if common is None else common[index]
            hits = self.resident.from_features(features).logits.argmax(1) == labels[index]
            accuracies.append(_weighted(hits, self.data.weights(self.split, client)))
        return accuracies

    def _global(self, pool: Pool) -> tuple[Tensor, float]:
        """Hits ``(N,)`` of the present row on all images of a pool, and its mean loss."""
        labels = self.data.labels(pool)
        logits = [self.resident.from_features(self.resident.features(chunk)).logits for chunk in self.data.chunks(pool, CHUNK)]
        scores = torch.cat(logits)
        return scores.argmax(1) == labels, float(F.cross_entropy(scores, labels))

    def _share(self, correct: Tensor, client: int) -> float | None:
        index = self.data.indices(self.split, client)
        return _weighted(correct[index], self.data.weights(self.split, client)) if len(index) else None


def _weighted(hits: Tensor, weights: Tensor | None) -> float:
    if weights is None:
        return float(hits.double().mean())
    return float((hits.double() * weights).sum() / weights.sum())
