"""The clients' tests: each client's model on its own test set, one client after another or several at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.client.client import AT_ONCE, Received, share
from fedpriv.client.model import ClientModel
from fedpriv.client.store import ClientStore
from fedpriv.methods.base import Phase, Private, ServerState
from fedpriv.models.batched.layers import ForwardContext
from fedpriv.models.batched.stacked import Form
from fedpriv.samples import Modality
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.batched_models import BatchedModels

MOST_HEADS = 100
"""Clients whose heads are tested together."""
ROOM = 32 * 2**20
"""Bytes that these heads may take, where they are more than one."""
HEADS_AT_ONCE = 32
"""Samples of each client that go through its head at a time."""


@dataclass(frozen=True)
class LocalTests:
    """The tests of one evaluation.

    Attributes:
        store: what each client keeps; ``last``: client -> round of its last local update that counted, of those that keep
            something.
        phases: its training before the test.
        common: features ``(N, d)`` of the whole pool, by what a client lacks; empty: clients differ in their encoders.
        on_divergence: called with (client, round) where that training diverged; unless it raises, the client is tested as it was
            before.
    """

    federation: Federation
    store: ClientStore
    server: ServerState
    last: Mapping[int, int]
    round: int
    phases: Sequence[Phase]
    common: Mapping[Modality | None, Tensor]
    on_divergence: Callable[[int, int], None]

    def one_by_one(self, clients: Sequence[int]) -> dict[int, float]:
        """Accuracy by client, each on the one net of the process."""
        return {client: self.accuracy(self.federation.resident, client) for client in clients}

    def together(self, clients: Sequence[int], stack: BatchedModels) -> dict[int, float]:
        """The same, on the lanes of a stack; what is in memory is of one group of clients at a time."""
        found: dict[int, float] = {}
        order, lanes = sorted(clients, key=self._work, reverse=True), stack.lanes
        for start in range(0, len(order), len(lanes)):
            group = order[start : start + len(lanes)]
            tests = [partial(self.accuracy, lane, client) for lane, client in zip(lanes, group, strict=False)]
            found.update(zip(group, stack.run(tests), strict=True))
        return found

    def heads(self, clients: Sequence[int], form: Form) -> dict[int, float]:
        """The same where clients have common features: what follows the encoder, of many clients as one net."""
        resident, data, split = self.federation.resident, self.federation.data, self.federation.config.eval.split
        space = resident.space.restricted(entry.name for entry in resident.space.entries if entry.role != "encoder")
        most = max(1, min(MOST_HEADS, len(clients), ROOM // max(1, space.size * resident.row.element_size())))
        rows = resident.row.new_empty(most, space.size)
        labels, found = data.labels(split), dict[int, float]()
        for lacking, features in self.common.items():
            # Of like size, as those with fewer samples are tested on made-up ones besides, which weigh nothing.
            order = sorted((client for client in clients if data.lacking(client) == lacking), key=self._work, reverse=True)
            for start in range(0, len(order), most):
                group = order[start : start + most]
                for row, client in zip(rows, group, strict=False):
                    space.pack(self.federation.method.client_state(self.server.row, self._private(client)), row)
                own = {e.name: rows[: len(group), e.start : e.stop].view(len(group), *e.shape) for e in space.entries}
                ctx = ForwardContext(len(group), own, frozenset(), _no_draws)
                held = [data.indices(split, client) for client in group]
                weights = [_weights(data.weights(split, client), index) for client, index in zip(group, held, strict=True)]
                index, heavy = pad_sequence(held, batch_first=True), pad_sequence(weights, batch_first=True)
                with torch.no_grad():
                    parts = torch.split(index, HEADS_AT_ONCE, 1)
                    predicted = [form.from_features(ctx, features[part]).logits.argmax(2) for part in parts]
                hits = (torch.cat(predicted, 1) == labels[index]) * heavy
                found.update(zip(group, (hits.sum(1) / heavy.sum(1)).tolist(), strict=True))
        return found

    def accuracy(self, model: ClientModel, client: int) -> float:
        """Of one client, on a model that it has for the time being."""
        fed = self.federation
        data, split = fed.data, fed.config.eval.split
        own, kept = fed.client(client, self.store), self._private(client)
        if not self.common:
            accuracy, diverged = own.score(model, self._received, kept, self.phases)
            if diverged:
                self.on_divergence(client, self.round)
            assert accuracy is not None, "it has test samples"
            return accuracy
        model.space.pack(fed.method.client_state(self.server.row, kept), model.row)
        index, features = data.indices(split, client), self.common[data.lacking(client)]
        logits = [model.from_features(features[part]).logits for part in torch.split(index, AT_ONCE)]
        return share(torch.cat(logits).argmax(1) == data.labels(split)[index], data.weights(split, client))

    def _private(self, client: int) -> Private:
        return self.federation.client(client, self.store).private(self.last.get(client), self.federation.initial)

    @property
    def _received(self) -> Received:
        """The server's state as clients are tested with it."""
        return Received(self.round, {}, self.federation.initial, self.server.row)

    def _work(self, client: int) -> int:
        """Samples by which tests take about as many passes: neighbours in this order go well together."""
        data = self.federation.data
        return data.size(client) if self.phases else len(data.indices(self.federation.config.eval.split, client))


def _weights(weights: Tensor | None, index: Tensor) -> Tensor:
    return torch.ones(len(index), dtype=torch.float64, device=index.device) if weights is None else weights.double()


def _no_draws(like: Tensor, probability: float) -> Tensor:
    raise RuntimeError("nothing is drawn in evaluation mode")
