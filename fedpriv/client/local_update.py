"""One client's local update: local training (implements :class:`fedpriv.interfaces.LocalUpdate`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from fedpriv.client.learner import LocalBatch, ModelLearner
from fedpriv.client.model import CHUNK, ClientModel
from fedpriv.client.resident import Resident
from fedpriv.client.teachers import Teachers
from fedpriv.config import RunConfig
from fedpriv.data.augmentation.augment import Augment
from fedpriv.data.federated import Split
from fedpriv.errors import ClientDiverged, UsageError
from fedpriv.interfaces import Loss, Phase, PhaseResult, Private, StepRule
from fedpriv.models.net import Outputs
from fedpriv.noise_source import RandomSource, SeededSource
from fedpriv.objectives.cross_entropy import PLAIN
from fedpriv.privacy.canaries import HeldCanaries
from fedpriv.privacy.ghost import GhostGradients
from fedpriv.privacy.per_sample import PerSampleGradients
from fedpriv.privacy.steps import charge
from fedpriv.samples import Inputs, split, take
from fedpriv.wire import Draws, Sealed
from fedpriv.wire.coding import decoded

PLAIN_SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "weight_decay_bias": 0.0, "clip_grad_norm": None}
"""What a plain phase (:attr:`Phase.plain`) has in place of the config's."""
AUGMENTED_TOGETHER = 256
"""Samples, where a batch is smaller: an augmentation's own costs are those of many small tensors, whatever the batch."""


class ModelLocalUpdate:
    """A client's local update in a round, or (``purpose="adapt"``) its adaptation before a test.

    Starts from the model's row as it stands. Where the data are the same in every epoch (no augmentation), what a
    frozen encoder or a frozen teacher makes of them is computed once.

    Args:
        unused: tensors that the client's data never reach.
        augment: (batch, generator) -> the batch, each sample changed by a draw of its own; ``None``: as they are.
    """

    def __init__(
        self,
        model: ClientModel,
        data: Split,
        config: RunConfig,
        round: int,
        client: int,
        received: Mapping[str, Tensor],
        private: Private,
        first_time: bool,
        purpose: str = "train",
        augment: Augment | None = None,
        unused: frozenset[str] = frozenset(),
    ) -> None:
        self.model, self.config, self.unused = model, config, unused
        self.inputs, self._labels = data.inputs, data.labels
        self.round, self.client, self.received, self.private, self.first_time = round, client, received, private, first_time
        self.num_examples = len(self._labels)
        self.mean_loss = float("nan")
        self.steps = 0
        self.phase_results: list[PhaseResult] = []
        self.start = model.row.clone()
        self.row = model.row
        self.memo: dict[str, Tensor] = {}
        self.reported: dict[str, float] = {}
        self.spend: Callable[[float, int], None] | None = None
        """Set: train with sample-level DP, and tell (sampling rate, steps) before each phase."""
        self.canaries: HeldCanaries | None = None
        """Set: sample-level DP with canaries among the client's samples."""
        self.hidden: RandomSource = SeededSource(config.seed)
        """What DP's noise, its choice of samples, and what augmentation and dropout do to them are drawn from."""
        self.over = False
        """Whether what is computed now reaches neither the client's model nor its state."""
        self.upload: Sealed | None = None
        """What it sends, once that is known."""
        self._purpose = purpose
        self._phases = 0
        self._phase: Phase | None = None
        self._learner: ModelLearner | None = None
        self._companion: ModelLearner | None = None
        self._has_companion = False
        self._augment = augment
        self._caches = config.train.cache_features and augment is None
        # Features by the version of the encoder that made them: a teacher frozen before the encoder moved shares them.
        self._encoder_version = 0
        self._features: dict[int, Tensor] = {}
        self._teachers = Teachers(model, self.inputs, self._caches, self._features)

    @property
    def sent(self) -> Mapping[str, Tensor]:
        return {} if self.upload is None else decoded(self.upload, self.received).tensors()

    @property
    def untrained(self) -> bool:
        """Whether its phases took no step, as all its batches are smaller than may be, and its model is as it was."""
        return bool(self.phase_results) and not self.steps and torch.equal(self.row, self.start)

    @property
    def learner(self) -> ModelLearner:
        if self._learner is None:
            raise RuntimeError("a client's model learns only within a phase")
        return self._learner

    @property
    def labels(self) -> Tensor:
        self._check_bounded("its labels")
        return self._labels

    def report(self, name: str, value: float) -> None:
        self.reported[name] = value

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: self.model.views[name] for name in names}

    @property
    def companion(self) -> ModelLearner:
        if self._phase is None:
            raise RuntimeError("a companion learns only within a phase")
        if self._companion is None:
            other = self.model.companion
            if not self._has_companion:
                other.row.copy_(self.start)
            self._has_companion = True
            self._companion = self._learner_on(other, self._phase)
        return self._companion

    def embed(self) -> Outputs:
        self._check_bounded("the outputs on all its samples")
        return self.model.from_features(self._present_features())

    def accuracy(self) -> float:
        self._check_bounded("its accuracy on them")
        # Not by way of the cache: the model may have moved within a phase.
        chunks = zip(split(self.inputs, CHUNK), torch.split(self._labels, CHUNK), strict=True)
        logits = ((self.model.from_features(self.model.features(inputs)).logits, labels) for inputs, labels in chunks)
        return sum(int((scores.argmax(1) == labels).sum()) for scores, labels in logits) / self.num_examples

    def gradient(self, reduction: str = "mean") -> Tensor:
        self._check_bounded("the gradient on all its samples")
        total = self.model.gradient(self.inputs, self._labels)
        return total / self.num_examples if reduction == "mean" else total.clone()

    def freeze(self, name: str, state: Mapping[str, Tensor] | Tensor | None = None) -> None:
        row = state.clone() if isinstance(state, Tensor) else self.model.row.clone()
        if isinstance(state, Mapping):
            self.model.space.pack(state, row)
        # Within a phase the encoder may have moved since its features were computed.
        present = state is None and self._phase is None
        self._teachers.freeze(name, row, self._encoder_version if present else None)

    def train(self, phase: Phase, loss: Loss, rule: StepRule | None = None) -> None:
        self._phases += 1
        phase = replace(phase, trains=phase.trains & self.model.roles)
        self._phase, self._companion = phase, None
        before = self.steps
        here = (self.round, self.client, self._purpose, self._phases)
        # Under DP all draws are hidden. Those of augmentation and dropout go to samples by their place in a batch: to an observer
        # who knew them, the draws of all others would tell whether a sample before them was drawn.
        source = SeededSource(self.config.seed) if self.spend is None else self.hidden
        augment = source.generator(*here, "augment") if self._augment else None
        if self.model.parts(phase.trains):  # or its roles are constant, as a head that its net freezes
            with source.global_rng(*here, "dropout"):
                if self.spend is None:
                    self._train(phase, loss, rule or PLAIN, source.generator(*here, "shuffle"), augment)
                else:
                    sampled, noise, planted = (source.noise(*here, what) for what in ("shuffle", "dp noise", "canaries"))
                    self._train_privately(phase, loss, rule or PLAIN, sampled, augment, noise, planted)
        self._phase = None
        self.phase_results.append(PhaseResult(phase.trains, self.steps - before, self._lr(phase)))
        if "encoder" in phase.trains:
            self._encoder_version += 1

    def _train(self, phase: Phase, loss: Loss, rule: StepRule, shuffle: torch.Generator, augment: torch.Generator | None) -> None:
        model, size = self.model, self.config.train.batch_size * rule.batches_per_step
        smallest = max(self.config.train.min_batch, rule.smallest_batch)
        cached = self._caches and "encoder" not in phase.trains and not rule.uses_companion
        inputs = self._present_features() if cached else self.inputs
        self._learner = self._learner_on(model, phase)
        losses: list[tuple[Tensor, int]] = []
        taken, trainable = 0, min(size, self.num_examples) >= smallest
        for epoch in count() if phase.steps and trainable else range(phase.epochs):
            if taken == phase.steps:
                break
            losses.clear()
            rule.epoch(self, epoch)
            model.set_trained(phase.trains)
            order = torch.randperm(self.num_examples, generator=shuffle).to(model.device)
            shuffled = take(inputs, order)
            columns = (order, shuffled if cached else model.shaped(shuffled), self._labels.index_select(0, order))
            for index, views, targets in self._batches(columns, size, augment, rule.views):
                if len(index) < smallest or taken == phase.steps:
                    break
                batch = LocalBatch(index, views, targets, cached, phase.trains, self.received, self.memo, self._teachers)
                losses.append((self._step(rule, batch, loss), len(targets)))
                taken += 1
        self.steps += taken
        if losses:
            self.mean_loss = sum(float(value) * size for value, size in losses) / sum(size for _, size in losses)
        self._check_finite(spoiled=bool(losses) and not math.isfinite(self.mean_loss))

    def _step(self, rule: StepRule, batch: LocalBatch, loss: Loss) -> Tensor:
        try:
            return rule.step(self, batch, loss)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            parts = self.config.train.accumulate
            cut = f", in up to {parts} parts (train.accumulate)" if parts > 1 else ""
            raise UsageError(
                f"client {self.client} has a batch of {len(batch.labels)}{cut}, and BatchNorm needs more to train on images this "
                "small; --set train.min_batch=2 skips such batches; another --batch-size or a net without BatchNorm would do too"
            ) from None

    def _batches(
        self, columns: tuple[Tensor, Inputs, Tensor], size: int, augment: torch.Generator | None, views: int
    ) -> Iterator[tuple[Tensor, list[Inputs], Tensor]]:
        """(positions, views, labels) of one batch after another; several small ones are augmented together."""
        together = size * max(1, AUGMENTED_TOGETHER // size)
        stretches = [columns] if augment is None else zip(*(split(column, together) for column in columns), strict=True)
        for index, samples, labels in stretches:
            seen = [self._augmented(samples, augment) for _ in range(views)]
            for part, targets, *shown in zip(*(split(column, size) for column in (index, labels, *seen)), strict=True):
                yield part, shown, targets

    def _augmented(self, samples: Inputs, augment: torch.Generator | None) -> Inputs:
        if augment is None or self._augment is None:
            return samples
        if isinstance(samples, Tensor):
            return self._augment(samples, augment)
        return samples if samples.image is None else samples._replace(image=self._augment(samples.image, augment))

    def _learner_on(self, model: ClientModel, phase: Phase) -> ModelLearner:
        # A few steps before a test, as Per-FedAvg's one, would be over before they are warm.
        train, warms = self.config.train, self._purpose == "train"
        if phase.plain:
            train = train.model_copy(update=PLAIN_SGD)
        return ModelLearner(model, phase, train, self._lr(phase), train.warmup_steps if warms else 0, self.unused)

    def _lr(self, phase: Phase) -> float:
        return (phase.lr or self.config.train.lr) * self.config.train.lr_decay ** (max(self.round, 1) - 1)

    def _train_privately(
        self,
        phase: Phase,
        loss: Loss,
        rule: StepRule,
        sampled: Draws,
        augment: torch.Generator | None,
        noise: Draws,
        planted: Draws,
    ) -> None:
        """DP-SGD (Abadi et al. 2016): in each step every sample with probability q, on its own, and

        ``g = (sum_i g_i min(1, C / ||g_i||) + N(0, (Z C)^2 I)) / (q n)``; momentum and weight decay only see ``g``.
        """
        train, privacy, resident, n = self.config.train, self.config.privacy, self.model, self.num_examples
        if not isinstance(resident, Resident):
            raise TypeError("gradients of single samples are taken on a net that a client has to itself")
        rate, steps = charge(phase, n, train.batch_size)
        if self.spend is None or privacy.noise is None:
            raise ValueError("no ledger or no noise")
        self.spend(rate, steps)
        cached = self._caches and "encoder" not in phase.trains
        inputs = self._present_features() if cached else self.inputs
        learner = self._learner = self._learner_on(resident, phase)
        kind = GhostGradients if privacy.clipping == "ghost" else PerSampleGradients
        gradients = kind(
            resident.net, resident.parameters, self.received, phase, loss, from_features=cached, clip=privacy.clip, memo=self.memo
        )
        losses = [torch.zeros_like(resident.row[:0])]
        for _ in range(steps):
            index = (sampled.uniform((n,), torch.float64) < rate).nonzero().squeeze(1).to(resident.device)
            batch = take(inputs, index)
            if len(index):
                batch = self._augmented(batch if cached else resident.shaped(batch), augment)
            teachers = {name: self._teachers.outputs(name, index, batch) for name in self._teachers} if len(index) else {}
            total, values, _ = gradients(batch, self._labels.index_select(0, index), teachers)
            extra = {} if self.canaries is None else self.canaries.drawn(rate, planted)
            for name, part in total.items():
                if name in extra:
                    part.add_(extra[name].to(part))
                drawn = noise.normal(part.shape).to(part) * (privacy.noise * privacy.clip)
                resident.space.view(resident.grad, name).copy_((part + drawn) / (rate * n))
            rule.correct(self, learner)
            learner.descend()
            losses.append(values.to(resident.row))
        seen = torch.cat(losses)
        if len(seen):  # small clients may draw no samples; then there is no loss
            self.mean_loss = float(seen.mean())
        self.steps += steps
        self._check_finite(spoiled=False)

    def _check_bounded(self, what: str) -> None:
        """Refuse what depends on the samples otherwise than by clipped gradients, where epsilon covers these alone."""
        if self.spend is not None and not self.over:
            raise UsageError(
                f"privacy.level sample: a local update asks for {what}, which no clipping bounds; its method, objective or "
                "aggregation cannot be used with sample-level DP, and says so by `no_dp`"
            )

    def _check_finite(self, spoiled: bool) -> None:
        # The weights too: the last step may ruin them after the last loss. Their sum is finite only if they all are.
        if spoiled or not math.isfinite(float(self.model.row.sum())):
            raise ClientDiverged(self.client, self.round, self.config.train.lr)

    def _present_features(self) -> Tensor:
        if self._encoder_version not in self._features:
            self._features[self._encoder_version] = self.model.features(self.inputs)
        return self._features[self._encoder_version]
