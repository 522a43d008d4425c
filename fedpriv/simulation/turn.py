"""One client's turn: local training on the resident net (what :class:`fedpriv.methods.base.ClientTurn` promises)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.data.augment import crop_flip
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError
from fedpriv.methods.base import Phase, Private
from fedpriv.models.net import Outputs
from fedpriv.objectives.step import Loss, Step
from fedpriv.privacy.ghost import GhostGradients
from fedpriv.privacy.per_sample import PerSampleGradients
from fedpriv.seeding import generator, global_rng
from fedpriv.simulation.resident import Resident, channels_last


class ClientDiverged(FedprivError):
    """A client's loss or weights are not finite."""

    def __init__(self, client: int, round: int, lr: float) -> None:
        self.client = client
        super().__init__(
            f"client {client} diverged in round {round}: its loss or its weights are not finite; "
            f"lower train.lr ({lr:g}) or set train.on_nan=drop to go on without what it trained"
        )


def schedule(samples: int, batch_size: int) -> tuple[float, int]:
    """Sampling rate and steps an epoch of DP-SGD: batches of ``batch_size`` in expectation, and as many as plain SGD takes."""
    return min(1.0, batch_size / samples), math.ceil(samples / batch_size)


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
        self.spend: Callable[[float, int], None] | None = None
        """Set: train with sample-level DP, and tell (sampling rate, steps) before each phase."""
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
        return {name: self.resident.views[name] for name in names}

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
        draws = (generator(*labels, "shuffle"), generator(*labels, "augment") if self._augments else None)
        with global_rng(*labels, "dropout"):
            if self.spend is None:
                self._train(phase, loss, *draws)
            else:
                self._train_privately(phase, loss, *draws, generator(*labels, "dp noise"))
        if "encoder" in phase.trains:
            self._encoder_version += 1

    def _train(self, phase: Phase, loss: Loss, shuffle: torch.Generator, augment: torch.Generator | None) -> None:
        train, resident, parameters = self.config.train, self.resident, self.resident.parameters
        cached = self._caches and "encoder" not in phase.trains
        inputs = self._present_features() if cached else self.images
        forward = resident.net.from_features if cached else resident.net
        resident.set_trained(phase.trains)
        optimiser = resident.optimiser(phase.trains, train)
        losses: list[tuple[Tensor, int]] = []
        for _ in range(phase.epochs):
            losses.clear()
            order = torch.randperm(self.num_examples, generator=shuffle).to(resident.device)
            # index_select copies whole samples; indexing goes entry by entry.
            columns = (order, channels_last(inputs.index_select(0, order)), self.labels.index_select(0, order))
            for index, batch, targets in zip(*(torch.split(column, train.batch_size) for column in columns), strict=True):
                if augment is not None:
                    batch = crop_flip(batch, augment)
                optimiser.zero_grad()
                teacher = partial(self._teacher, index, batch)
                value = loss(Step(targets, self._outputs(forward, batch), parameters, self.received, phase.trains, teacher))
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                losses.append((value.detach(), len(targets)))
        if phase.epochs:
            self.mean_loss = sum(float(value) * size for value, size in losses) / self.num_examples
            self._check_finite()

    def _train_privately(
        self, phase: Phase, loss: Loss, draw: torch.Generator, augment: torch.Generator | None, noise: torch.Generator
    ) -> None:
        """DP-SGD (Abadi et al. 2016): in each step every sample with probability q, on its own, and

        ``g = (sum_i g_i min(1, C / ||g_i||) + N(0, (Z C)^2 I)) / (q n)``; momentum and weight decay only see ``g``.
        """
        train, privacy, resident, n = self.config.train, self.config.privacy, self.resident, self.num_examples
        rate, steps = schedule(n, train.batch_size)
        if self.spend is None or privacy.noise is None:
            raise ValueError("no ledger or no noise")
        self.spend(rate, phase.epochs * steps)
        cached = self._caches and "encoder" not in phase.trains
        inputs = self._present_features() if cached else self.images
        resident.set_trained(phase.trains)
        optimiser = resident.optimiser(phase.trains, train)
        kind = GhostGradients if privacy.clipping == "ghost" else PerSampleGradients
        gradients = kind(resident.net, resident.parameters, self.received, phase, loss, from_features=cached, clip=privacy.clip)
        losses = [self.labels.new_zeros(0, dtype=inputs.dtype)]
        for _ in range(phase.epochs * steps):
            index = (torch.rand(n, generator=draw, dtype=torch.float64) < rate).nonzero().squeeze(1).to(resident.device)
            batch = inputs.index_select(0, index)
            if augment is not None and len(index):
                batch = crop_flip(batch, augment)
            teachers = {name: self._teacher(index, batch, name) for name in self._teachers} if len(index) else {}
            total, values, _ = gradients(batch, self.labels.index_select(0, index), teachers)
            for name, part in total.items():
                drawn = torch.randn(part.shape, generator=noise).to(part) * (privacy.noise * privacy.clip)
                resident.space.view(resident.grad, name).copy_((part + drawn) / (rate * n))
            optimiser.step()
            losses.append(values.to(inputs))
        seen = torch.cat(losses)
        if len(seen):  # small clients may draw nobody; then there is no loss to speak of
            self.mean_loss = float(seen.mean())
        self._check_finite()

    def _check_finite(self) -> None:
        # The weights too: the last step may ruin them after the last loss. Their sum is finite only if they all are.
        spoiled = not math.isfinite(self.mean_loss) and self.spend is None
        if spoiled or not math.isfinite(float(self.resident.row.sum())):
            raise ClientDiverged(self.client, self.round, self.config.train.lr)

    def _outputs(self, forward: Callable[[Tensor], Outputs], batch: Tensor) -> Outputs:
        try:
            return forward(batch)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise UsageError(
                f"client {self.client} has a batch of {len(batch)}, and BatchNorm needs more to train on images this small; "
                "another --batch-size, larger images or a net without BatchNorm would do"
            ) from None

    def _present_features(self) -> Tensor:
        if self._encoder_version not in self._features:
            self._features[self._encoder_version] = self.resident.features(self.images)
        return self._features[self._encoder_version]

    def _teacher(self, index: Tensor, batch: Tensor, name: str) -> Outputs:
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
