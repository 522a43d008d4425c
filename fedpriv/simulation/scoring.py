"""One evaluation pass: every client's model on every client's local test set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.client.client import share
from fedpriv.client.model import CHUNK
from fedpriv.client.store import ClientStore
from fedpriv.data.federated import Whole
from fedpriv.evaluation.probe_during_run import Prober
from fedpriv.evaluation.protocols import client_summary, confusion_of, global_summary, mean
from fedpriv.methods.base import Phase, ServerState, phase
from fedpriv.models.net import AFTER_ENCODER
from fedpriv.samples import Modality, without
from fedpriv.simulation.local_tests import LocalTests
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.batched_models import BatchedModels
from fedpriv.wire.coding import Upload

if TYPE_CHECKING:
    from fedpriv.evaluation.protocols import Confusion

ALONE: Mapping[Modality, str] = {"text": "images_alone", "image": "texts_alone"}
"""What is left of pairs without their texts, and without their images."""


class AllClientsScorer:
    """Scores a server state with all clients' private states.

    What clients have in common is computed once: with one encoder for all, the test images' features; with one model for
    all, its predictions. What they have not is computed for several clients at a time where they train so, too.

    Args:
        store: where the clients keep their private states.
        on_divergence: called with (client, round) where a client's adaptation diverged; it may raise to stop the run, otherwise
            the client is tested as it was before.
    """

    def __init__(self, federation: Federation, store: ClientStore, on_divergence: Callable[[int, int], None]) -> None:
        self.federation, self.store, self.on_divergence = federation, store, on_divergence
        probes = federation.config.eval.probe != "none"
        self.prober = Prober(federation.resident, federation.dataset, federation.config) if probes else None
        self.resident, self.data, self.method = federation.resident, federation.data, federation.method
        clients, self.split = range(federation.config.data.clients), federation.config.eval.split
        self.sizes = [len(self.data.indices(self.split, client)) for client in clients]
        # Where clients are tested on all test samples of their classes, these are others' as well, and say nothing of their size.
        whole = self.split == "test" and federation.data.partition.test_weights is not None
        self._weights = [self.data.size(client) for client in clients] if whole else self.sizes
        self._lacking = {self.data.lacking(client) for client in clients}
        self._stack: BatchedModels | None = None
        self._confusion: Confusion | None = None  # of the last pass
        self.untested: Mapping[int, str] = {}

    def score(
        self, server: ServerState, last: Mapping[int, int], round: int, uploads: Sequence[Upload] = ()
    ) -> tuple[dict[str, float], list[float | None] | None]:
        """Metrics of the pass, and each client's accuracy (``None``: no test data); no list: the method learns without labels.

        The ``global_...`` metrics are of the server's model on the server's test set; a personalised method, whose server
        holds no complete model, has none, nor has a run whose clients are scored on validation data. Of pairs, two more say how
        good it is on the images, and on the texts, of that test set alone. A client is tested on what it has of its samples.
        ``accuracy_fresh_head``, in the last round, is the mean accuracy after ``eval.fresh_head`` more epochs of each head.
        With ``eval.before_merge``, two are means over the ``uploads``, which are tested as the server reads them.
        """
        if not self.method.objective.labels:
            return self._probe(server), None
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
                    hits[missing] = self._correct("server", missing)
                    metrics[f"global_accuracy_{name}"] = float(hits[missing].double().mean())
                for name, row in self.method.aggregation.extra_models(server.row, server.memory).items():
                    self.resident.row.copy_(row)
                    self.resident.space.renew_spectral_norms(self.resident.row)
                    metrics[f"global_accuracy_{name}"] = float(self._correct("server").double().mean())
                    self.resident.row.copy_(server.row)  # which is tested further below
            if self.split != "test" or not self.data.clients_share_the_server_test_set:
                hits = {}
            for lacking in self._lacking - hits.keys() if alike else ():
                hits[lacking] = self._correct(self.split, lacking)
        if hits and alike:
            accuracies = [self._share_of(hits[self.data.lacking(client)], client) for client in range(len(self.sizes))]
        else:
            accuracies = self._each(server, last, round, phases)
        config = self.federation.config
        if config.eval.fresh_head and round == config.train.rounds:
            fresh = phase(*AFTER_ENCODER, epochs=config.eval.fresh_head)
            metrics["accuracy_fresh_head"] = mean(self._each(server, last, round, [fresh])) or 0.0
        if config.eval.before_merge and uploads:
            metrics |= self._before_merge(server, uploads)
        return {**client_summary(accuracies, self._weights), **metrics, **self._probe(server)}, accuracies

    def confusion(self, server: ServerState) -> Confusion:
        """Confusion matrix ``(C, C)`` of the server's model on the server's test set, a row per true class.

        It is that of the last pass. Only a run that was killed after its last round lacks it, and computes it again.
        """
        if self._confusion is None:
            self.resident.row.copy_(server.row)
            scores, labels = self._global("server")
            self._confusion = _confusion(scores.argmax(1), labels, scores.shape[1])
        return self._confusion

    def _each(self, server: ServerState, last: Mapping[int, int], round: int, phases: Sequence[Phase]) -> list[float | None]:
        encoder = set(self.resident.space.select(["encoder"]))
        common: dict[Modality | None, Tensor] = {}
        if not phases and encoder <= set(self.method.shared_names) and not encoder & set(self.method.tested_names):
            self.resident.row.copy_(server.row)
            for lacking in self._lacking:
                chunks = (without(chunk, lacking) for chunk in self.data.chunks(self.split, CHUNK))
                common[lacking] = torch.cat([self.resident.features(chunk) for chunk in chunks])
        tests = LocalTests(self.federation, self.store, server, last, round, phases, common, self.on_divergence)
        tested, choice = [client for client, size in enumerate(self.sizes) if size], self.federation.choice
        if choice is None or choice.together is None:
            found = tests.one_by_one(tested)
        elif common:
            found = tests.heads(tested, choice.together[0])
        else:
            if self._stack is None:
                form, size = choice.together
                self._stack = BatchedModels(form, self.resident.space, size, self.resident.row)
            found = tests.together(tested, self._stack)
        return [found.get(client) for client in range(len(self.sizes))]

    def _before_merge(self, server: ServerState, uploads: Sequence[Upload]) -> dict[str, float]:
        """Mean accuracies of the models that were sent; what one leaves out (a masked layer) is the server's."""
        spans = {entry.name: slice(entry.start, entry.stop) for entry in self.resident.space.entries}
        own: list[float | None] = []
        whole: list[float | None] = []
        for upload in uploads:
            client = upload.sealed.client
            assert client is not None
            row, lacking = server.row.cpu().clone(), self.data.lacking(client)
            upload.copy_into(row, spans)
            self.resident.row.copy_(row)
            correct = None
            if self.split == "test":
                correct = self._correct("server")
                whole.append(float(correct.double().mean()))
            if correct is None or lacking or not self.data.clients_share_the_server_test_set:
                correct = self._correct(self.split, lacking)
            own.append(self._share_of(correct, client))
        self.resident.row.copy_(server.row)
        found = {"accuracy_before_merge": mean(own), "global_accuracy_before_merge": mean(whole)}
        return {name: value for name, value in found.items() if value is not None}

    def _correct(self, pool: Whole, lacking: Modality | None = None) -> Tensor:
        """Which samples ``(N,)`` of a pool the present row gets right, of what is left of them."""
        scores, labels = self._global(pool, lacking)
        return scores.argmax(1) == labels

    def _global(self, pool: Whole, lacking: Modality | None = None) -> tuple[Tensor, Tensor]:
        """Logits ``(N, C)`` of the present row on (what is left of) all samples of a pool, and their labels ``(N,)``."""
        chunks = (without(chunk, lacking) for chunk in self.data.chunks(pool, CHUNK))
        logits = [self.resident.from_features(self.resident.features(chunk)).logits for chunk in chunks]
        return torch.cat(logits), self.data.labels(pool)

    def _probe(self, server: ServerState) -> dict[str, float]:
        return self.prober(server.row) if self.prober else {}

    def _share_of(self, correct: Tensor, client: int) -> float | None:
        index = self.data.indices(self.split, client)
        return share(correct[index], self.data.weights(self.split, client)) if len(index) else None


def _confusion(predicted: Tensor, labels: Tensor, classes: int) -> Confusion:
    """The confusion matrix ``(C, C)`` of predicted and true classes ``(N,)``."""
    return confusion_of(labels.cpu().numpy(), predicted.cpu().numpy(), classes)
