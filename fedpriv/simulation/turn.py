"""One client's turn: local training on the resident net (what :class:`fedpriv.methods.base.ClientTurn` promises)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.data.augment import crop_flip
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError
from fedpriv.methods.base import Phase, Private
from fedpriv.models.net import Outputs
from fedpriv.objectives.step import Loss, Step
from fedpriv.seeding import generator, global_rng
from fedpriv.simulation.resident import Resident, channels_last


class ClientDiverged(FedprivError):
    """A client's loss is not finite."""

    def __init__(self, client: int, round: int, lr: float) -> None:
        super().__init__(
            f"client {client} diverged in round {round}: its loss is not finite; "
            f"lower train.lr ({lr:g}) or set train.on_nan=drop to go on without its upload"
        )


class Turn:
    """A client's turn in a round, or (``purpose="adapt"``) its adaptation before a test.

    Starts from the resident net's row as it stands. Where the data are the same in every epoch (no augmentation), what a
    frozen encoder or a frozen teacher makes of them is computed once.
    """

    def __init__(
        self,
        resident: Resident,
        data: Split,
        config: RunConfig,
        round: int,
        client: int,
        received: Mapping[str, Tensor],
        private: Private,
        first_time: bool,
        purpose: str = "train",
    ) -> None:
        self.resident, self.config = resident, config
        self.images, self.labels = data.images, data.labels
        self.round, self.client, self.received, self.private, self.first_time = round, client, received, private, first_time
        self.num_examples = len(self.labels)
        self.mean_loss = float("nan")
        self._purpose = purpose
        self._phases = 0
        self._augments = config.data.augment != "none"
        self._caches = config.train.cache_features and not self._augments
        # Features by the version of the encoder that made them: a teacher frozen before the encoder moved shares them.
        self._encoder_version = 0
        self._features: dict[int, Tensor] = {}
        self._teachers: dict[str, tuple[Tensor, int | None]] = {}
        self._teacher_tables: dict[str, Outputs] = {}

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        return self.resident.space.unpack(self.resident.row, names)

    def embed(self) -> Outputs:
        return self.resident.from_features(self._present_features())

    def freeze(self, name: str, state: Mapping[str, Tensor] | None = None) -> None:
        row = self.resident.row.clone()
        if state:
            self.resident.space.pack(state, row)
        self._teachers[name] = (row, None if state else self._encoder_version)
        self._teacher_tables.pop(name, None)

    def train(self, phase: Phase, loss: Loss) -> None:
        self._phases += 1
        labels = (self.config.seed, self.round, self.client, self._purpose, self._phases)
        stochastic = self.resident.stochastic or self._augments
        with global_rng(*labels, "dropout") if stochastic else nullcontext():
            self._train(phase, loss, generator(*labels, "shuffle"), generator(*labels, "augment") if self._augments else None)
        if "encoder" in phase.trains:
            self._encoder_version += 1

    def _train(self, phase: Phase, loss: Loss, shuffle: torch.Generator, augment: torch.Generator | None) -> None:
        train, resident = self.config.train, self.resident
        cached = self._caches and "encoder" not in phase.trains
        inputs = self._present_features() if cached else self.images
        forward = resident.net.from_features if cached else resident.net
        resident.set_trained(phase.trains)
        optimiser = resident.optimiser(phase.trains, train)
        flat_grads = [flat.grad for group in optimiser.param_groups for flat in group["params"]]
        total = torch.zeros((), device=resident.device)
        for _ in range(phase.epochs):
            total.zero_()
            order = torch.randperm(self.num_examples, generator=shuffle).to(resident.device)
            columns = (order, channels_last(inputs[order]), self.labels[order])
            for index, batch, targets in zip(*(column.split(train.batch_size) for column in columns), strict=True):
                if augment is not None:
                    batch = crop_flip(batch, augment)
                for grad in flat_grads:
                    grad.zero_()
                value = loss(
                    Step(targets, forward(batch), self.received, phase.trains, lambda name, i=index, x=batch: self._teacher(name, i, x))  # type: ignore[misc]
                )
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                total += value.detach() * len(targets)
        if phase.epochs:
            self.mean_loss = float(total) / self.num_examples
            if not torch.isfinite(total):
                raise ClientDiverged(self.client, self.round, train.lr)

    def _present_features(self) -> Tensor:
        if self._encoder_version not in self._features:
            self._features[self._encoder_version] = self.resident.features(self.images)
        return self._features[self._encoder_version]

    def _teacher(self, name: str, index: Tensor, batch: Tensor) -> Outputs:
        if not self._caches:
            row, _ = self._teachers[name]
            frozen = self.resident.frozen
            frozen.row.copy_(row)
            return frozen.from_features(frozen.features(batch))
        if name not in self._teacher_tables:
            row, version = self._teachers[name]
            frozen = self.resident.frozen
            frozen.row.copy_(row)
            features = self._features[version] if version in self._features else frozen.features(self.images)
            self._teacher_tables[name] = frozen.from_features(features)
        table = self._teacher_tables[name]
        prediction = None if table.prediction is None else table.prediction[index]
        return Outputs(table.features[index], table.projection[index], prediction, table.logits[index])
