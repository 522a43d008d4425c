"""The evaluation of a simulation: every client's model on its own test set, and the global model on the server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.client.model import CHUNK
from fedpriv.client.store import ClientStore
from fedpriv.data.federated import Whole
from fedpriv.evaluation.probe_during_run import Prober
from fedpriv.evaluation.protocols import by_client, confusion_of, global_summary, mean
from fedpriv.methods.base import Phase, ServerState, phase
from fedpriv.models.net import AFTER_ENCODER
from fedpriv.objectives.cross_entropy import loss_on
from fedpriv.samples import Modality, without
from fedpriv.scores.custom import CustomScores, custom_scored
from fedpriv.scores.predictions import Predictions, pooled
from fedpriv.scores.tasks import Classes
from fedpriv.server.clients import Evaluation
from fedpriv.simulation.local_tests import LocalTests
from fedpriv.simulation.setup import Federation
from fedpriv.simulation.vectorized.batched_models import BatchedModels
from fedpriv.wire.coding import Upload

if TYPE_CHECKING:
    from fedpriv.evaluation.protocols import Confusion, PerClient
    from fedpriv.scores.catalogue import Scores

ALONE: Mapping[Modality, str] = {"text": "images_alone", "image": "texts_alone"}
"""Missing modality -> what is left of image-text pairs."""


class AllClientsScorer:
    """Scores a server state together with all clients' private states.

    What clients have in common is computed once: the predictions of a common model, or the features of a common encoder. The rest
    is computed for several clients at a time if they also train so.

    Args:
        store: the clients' private states.
        on_divergence: called with (client, round) if a client's adaptation diverged. It may raise to stop the run; otherwise the
            client is tested without the adaptation.
        custom: scores of the user's own.
    """

    def __init__(
        self,
        federation: Federation,
        store: ClientStore,
        on_divergence: Callable[[int, int], None],
        custom: CustomScores = MappingProxyType({}),
    ) -> None:
        self.federation, self.store, self.on_divergence, self.custom = federation, store, on_divergence, custom
        probes = federation.config.eval.probe != "none"
        self.prober = Prober(federation.resident, federation.dataset, federation.config) if probes else None
        self.resident, self.data, self.method = federation.resident, federation.data, federation.method
        clients, self.split = range(federation.config.data.clients), federation.config.eval.split
        self.sizes = [len(self.data.indices(self.split, client)) for client in clients]
        self._tested = [client for client, size in enumerate(self.sizes) if size]
        self.task = federation.agreement.declared.task
        # If clients are tested on all test samples of their classes, they share samples, and are weighted by their training
        # samples.
        whole = self.split == "test" and federation.data.partition.test_weights is not None
        self._weights = [self.data.size(client) for client in clients] if whole else self.sizes
        self._lacking = {self.data.lacking(client) for client in clients}
        self._models: BatchedModels | None = None
        self._confusion: Confusion | None = None  # of the last evaluation
        self.untested: Mapping[int, str] = {}

    def score(self, server: ServerState, last: Mapping[int, int], round: int, uploads: Sequence[Upload] = ()) -> Evaluation:
        """Metrics of the state, and each client's scores; of a method that learns without labels, at most a probe's.

        Of each score there are the summaries over the clients, and ``..._pooled``, that of all clients' predictions together. The
        ``global_...`` metrics are of the server's model on the server's test set. There are none if the server holds no complete
        model, or if clients are scored on validation data. Of image-text pairs, two more are of the images, and of the
        texts, of that test set alone; a client is tested on the modalities that it has. ``accuracy_fresh_head``, in the last
        round, is the mean accuracy after ``eval.fresh_head`` more epochs of each head. With ``eval.before_merge``, two metrics
        are means over the uploaded models, as the server reads them.
        """
        if not self.method.objective.labels:
            return Evaluation(self._probe(server))
        phases = self.method.adaptation(round)
        same_model = not phases and not self.method.tested_names  # every client is tested with the server's model as it is
        metrics: dict[str, float] = {}
        common: dict[Modality | None, Predictions] = {}  # of the global model on all samples, by the modality that clients lack
        if self.method.has_global_model:
            self.resident.row.copy_(server.row)
            if self.split == "test":
                logits, labels = self._global("server")
                common[None] = self.task.predictions(logits, labels, keep=bool(self.custom))
                metrics["test_loss"] = float(loss_on(logits, labels))
                metrics |= {f"global_{name}": value for name, value in self._scores([common[None]])[0].items()}
                if isinstance(self.task, Classes):
                    self._confusion = confusion_of(common[None].labels, common[None].predicted, self.task.count)
                    metrics |= global_summary(self._confusion)
                for missing, name in ALONE.items() if self.data.are_pairs else ():
                    common[missing] = self._predict("server", missing)
                    metrics |= self._usual("global", name, [common[missing]])
                for name, row in self.method.aggregation.extra_models(server.row, server.memory).items():
                    self.resident.row.copy_(row)
                    self.resident.space.renew_spectral_norms(self.resident.row)
                    metrics |= self._usual("global", name, [self._predict("server")])
                    self.resident.row.copy_(server.row)
            if self.split != "test" or not self.data.clients_share_the_server_test_set:
                common = {}
            for lacking in self._lacking - common.keys() if same_model else ():
                common[lacking] = self._predict(self.split, lacking)
        if common and same_model:
            predictions = {client: self._share_of(common[self.data.lacking(client)], client) for client in self._tested}
        else:
            predictions = self._each(server, last, round, phases)
        config = self.federation.config
        if config.eval.fresh_head and round == config.train.rounds:
            fresh = phase(*AFTER_ENCODER, epochs=config.eval.fresh_head)
            tested = self._each(server, last, round, [fresh])
            metrics |= self._usual("", "fresh_head", [tested[client] for client in self._tested])
        if config.eval.before_merge and uploads:
            metrics |= self._before_merge(server, uploads)
        summaries, per_client = self._by_client(predictions)
        return Evaluation({**summaries, **metrics, **self._probe(server)}, per_client)

    def _by_client(self, predictions: Mapping[int, Predictions]) -> tuple[dict[str, float], PerClient]:
        """The scores of the clients' predictions: their summaries with those of all predictions together, and each client's."""
        clients = [predictions[client] for client in self._tested]
        scores: list[Scores | None] = [None] * len(self.sizes)
        for client, values in zip(self._tested, self._scores(clients), strict=True):
            scores[client] = values
        summaries, per_client = by_client(scores, self._weights, self.task.usual)
        if clients:
            together = pooled(clients, [self._weights[client] for client in self._tested])
            summaries |= {f"{name}_pooled": value for name, value in self._scores([together])[0].items()}
        return summaries, per_client

    def _scores(self, clients: Sequence[Predictions]) -> list[Scores]:
        both = zip(self.task.scored(clients), custom_scored(self.custom, clients), strict=True)
        return [{**scores, **further} for scores, further in both]

    def confusion(self, server: ServerState) -> Confusion:
        """Confusion matrix ``(C, C)`` of the server's model on the server's test set, a row per true class.

        It is that of the last evaluation, or computed again if the run was killed since.
        """
        if self._confusion is None:
            self.resident.row.copy_(server.row)
            predictions = self._predict("server")
            assert isinstance(self.task, Classes), "there is no confusion of numbers"
            self._confusion = confusion_of(predictions.labels, predictions.predicted, self.task.count)
        return self._confusion

    def _each(self, server: ServerState, last: Mapping[int, int], round: int, phases: Sequence[Phase]) -> dict[int, Predictions]:
        """The predictions of each client's own model on its test samples, by client."""
        encoder = set(self.resident.space.select(["encoder"]))
        common: dict[Modality | None, Tensor] = {}
        if not phases and encoder <= set(self.method.shared_names) and not encoder & set(self.method.tested_names):
            self.resident.row.copy_(server.row)
            for lacking in self._lacking:
                chunks = (without(chunk, lacking) for chunk in self.data.chunks(self.split, CHUNK))
                common[lacking] = torch.cat([self.resident.features(chunk) for chunk in chunks])
        state = self.federation, self.store, server, last, round
        tests = LocalTests(*state, phases, common, self.on_divergence, bool(self.custom))
        choice = self.federation.choice
        if choice is None or choice.together is None:
            return tests.one_by_one(self._tested)
        if common:
            return tests.heads(self._tested, choice.together[0])
        if self._models is None:
            form, size = choice.together
            self._models = BatchedModels(form, self.resident.space, size, self.resident.row)
        return tests.together(self._tested, self._models)

    def _before_merge(self, server: ServerState, uploads: Sequence[Upload]) -> dict[str, float]:
        """Mean accuracies of the uploaded models; tensors that an upload lacks (masked layers) are the server's."""
        spans = {entry.name: slice(entry.start, entry.stop) for entry in self.resident.space.entries}
        local, on_server_set = list[Predictions](), list[Predictions]()
        for upload in uploads:
            client = upload.sealed.client
            assert client is not None
            row, lacking = server.row.cpu().clone(), self.data.lacking(client)
            upload.copy_into(row, spans)
            self.resident.row.copy_(row)
            predictions = None
            if self.split == "test":
                predictions = self._predict("server")
                on_server_set.append(predictions)
            if predictions is None or lacking or not self.data.clients_share_the_server_test_set:
                predictions = self._predict(self.split, lacking)
            if self.sizes[client]:
                local.append(self._share_of(predictions, client))
        self.resident.row.copy_(server.row)
        return self._usual("", "before_merge", local) | self._usual("global", "before_merge", on_server_set)

    def _usual(self, whose: str, of: str, predictions: Sequence[Predictions]) -> dict[str, float]:
        """The mean of the task's usual score of some predictions, as a metric such as ``global_accuracy_images_alone``."""
        name = self.task.usual.name
        value = mean([scores.get(name) for scores in self.task.scored(predictions)])
        return {} if value is None else {"_".join(filter(None, (whose, name, of))): value}

    def _predict(self, pool: Whole, lacking: Modality | None = None) -> Predictions:
        """The predictions of the resident model on all samples of a pool, without a modality."""
        return self.task.predictions(*self._global(pool, lacking), keep=bool(self.custom))

    def _global(self, pool: Whole, lacking: Modality | None = None) -> tuple[Tensor, Tensor]:
        """Logits ``(N, C)`` of the resident model on all samples of a pool, without a modality, and their labels ``(N,)``."""
        chunks = (without(chunk, lacking) for chunk in self.data.chunks(pool, CHUNK))
        logits = [self.resident.from_features(self.resident.features(chunk)).logits for chunk in chunks]
        return torch.cat(logits), self.data.labels(pool)

    def _probe(self, server: ServerState) -> dict[str, float]:
        return self.prober(server.row) if self.prober else {}

    def _share_of(self, predictions: Predictions, client: int) -> Predictions:
        """Of predictions on a whole pool, those on the client's samples."""
        return predictions.at(self.data.indices(self.split, client), self.data.weights(self.split, client))
