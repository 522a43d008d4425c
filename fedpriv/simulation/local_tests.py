"""The clients' tests: each client's model on its own test set, for one client or several at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.client.client import TEST_CHUNK
from fedpriv.client.model import ClientModel
from fedpriv.client.receiving import Received
from fedpriv.client.store import ClientStore
from fedpriv.methods.base import Phase, Private, ServerState
from fedpriv.models.batched.layers import ForwardContext
from fedpriv.models.batched.stacked import Form
from fedpriv.samples import Modality
from fedpriv.scores.predictions import Predictions
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.batched_models import BatchedModels

MAX_HEADS = 100
"""Clients whose heads are tested at a time."""
MAX_HEAD_BYTES = 32 * 2**20
"""Bytes of the heads that are tested at a time, if they are several."""
HEAD_BATCH = 32
"""Samples of each client that go through its head at a time."""


@dataclass(frozen=True)
class LocalTests:
    """The tests of one evaluation.

    Attributes:
        store: the clients' private states.
        last: client -> round of its last merged local update, of those that keep a private state.
        phases: each client's training before the test.
        common: features ``(N, d)`` of all test samples, by the modality that a client lacks; empty: clients have different
            encoders.
        on_divergence: called with (client, round) if that training diverged; unless it raises, the client is tested without it.
        keep_logits: whether predictions keep them.
    """

    federation: Federation
    store: ClientStore
    state: ServerState
    last: Mapping[int, int]
    round: int
    phases: Sequence[Phase]
    common: Mapping[Modality | None, Tensor]
    on_divergence: Callable[[int, int], None]
    keep_logits: bool = False

    def one_by_one(self, clients: Sequence[int]) -> dict[int, Predictions]:
        """Predictions by client, computed one after another."""
        return {client: self.predict(self.federation.resident, client) for client in clients}

    def together(self, clients: Sequence[int], models: BatchedModels) -> dict[int, Predictions]:
        """Predictions by client, computed for a group of clients at a time."""
        predictions: dict[int, Predictions] = {}
        order, size = sorted(clients, key=self._work, reverse=True), len(models.clients)
        for start in range(0, len(order), size):
            group = order[start : start + size]
            tests = [partial(self.predict, model, client) for model, client in zip(models.clients, group, strict=False)]
            predictions.update(zip(group, models.run(tests), strict=True))
        return predictions

    def heads(self, clients: Sequence[int], form: Form) -> dict[int, Predictions]:
        """Predictions by client, if clients have common features: many clients' heads are computed as one net."""
        resident, data, split = self.federation.resident, self.federation.data, self.federation.config.eval.split
        space = resident.space.restricted(entry.name for entry in resident.space.entries if entry.role != "encoder")
        most = max(1, min(MAX_HEADS, len(clients), MAX_HEAD_BYTES // max(1, space.size * resident.row.element_size())))
        rows = resident.row.new_empty(most, space.size)
        labels, predictions, task = data.labels(split), dict[int, Predictions](), self.federation.agreement.declared.task
        for lacking, features in self.common.items():
            # Groups of similar size: clients with fewer samples are padded with samples of weight 0.
            order = sorted((client for client in clients if data.lacking(client) == lacking), key=self._work, reverse=True)
            for start in range(0, len(order), most):
                group = order[start : start + most]
                for row, client in zip(rows, group, strict=False):
                    space.pack(self.federation.method.client_state(self.state.row, self._private(client)), row)
                parameters = {e.name: rows[: len(group), e.start : e.stop].view(len(group), *e.shape) for e in space.entries}
                ctx = ForwardContext(len(group), parameters, frozenset(), _no_dropout)
                held = [data.indices(split, client) for client in group]
                own = [data.weights(split, client) for client in group]
                weights = [_weights(weight, index) for weight, index in zip(own, held, strict=True)]
                index, weight = pad_sequence(held, batch_first=True), pad_sequence(weights, batch_first=True)
                with torch.no_grad():
                    parts = torch.split(index, HEAD_BATCH, 1)
                    logits = torch.cat([form.from_features(ctx, features[part]).logits for part in parts], 1)
                sizes = [len(positions) for positions in held]
                of_group = task.predictions_of_several(logits, labels[index], sizes, own, weight, self.keep_logits)
                predictions.update(zip(group, of_group, strict=True))
        return predictions

    def predict(self, model: ClientModel, client: int) -> Predictions:
        """The predictions of one client, whose state is loaded into ``model``."""
        fed = self.federation
        data, split = fed.data, fed.config.eval.split
        kept = self._private(client)
        if not self.common:
            predictions, diverged = fed.client(client, self.store).predict(
                model, self._received, kept, self.phases, self.keep_logits
            )
            if diverged:
                self.on_divergence(client, self.round)
            assert predictions is not None, "it has test samples"
            return predictions
        model.space.pack(fed.method.client_state(self.state.row, kept), model.row)
        index, features = data.indices(split, client), self.common[data.lacking(client)]
        logits = [model.from_features(features[part]).logits for part in torch.split(index, TEST_CHUNK)]
        task, weights = fed.agreement.declared.task, data.weights(split, client)
        return task.predictions(torch.cat(logits), data.labels(split)[index], weights, self.keep_logits)

    def _private(self, client: int) -> Private:
        return self.federation.client(client, self.store).private(self.last.get(client), self.federation.initial)

    @property
    def _received(self) -> Received:
        """The server's state as clients receive it for a test."""
        return Received(self.round, {}, self.federation.initial, self.state.row)

    def _work(self, client: int) -> int:
        """Number of samples on which the duration of a client's test depends."""
        data = self.federation.data
        return data.size(client) if self.phases else len(data.indices(self.federation.config.eval.split, client))


def _weights(weights: Tensor | None, index: Tensor) -> Tensor:
    return torch.ones(len(index), dtype=torch.float64, device=index.device) if weights is None else weights.double()


def _no_dropout(like: Tensor, probability: float) -> Tensor:
    raise RuntimeError("nothing is drawn in evaluation mode")
