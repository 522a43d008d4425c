"""Local training of one client (implements :class:`fedpriv.interfaces.LocalUpdate`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from fedpriv.client.kept_optimisers import KeptOptimisers
from fedpriv.client.learner import LocalBatch, ModelLearner
from fedpriv.client.model import CHUNK, ClientModel
from fedpriv.client.resident import Resident
from fedpriv.client.teachers import Teachers
from fedpriv.config import RunConfig
from fedpriv.data.augmentation.augment import Augment
from fedpriv.data.federated import Split
from fedpriv.errors import ClientDiverged, UsageError
from fedpriv.interfaces import CLASS_WEIGHTS, Loss, Phase, PhaseResult, Private, StepRule
from fedpriv.models.net import Outputs
from fedpriv.noise_source import RandomSource, SeededSource
from fedpriv.objectives.cross_entropy import PLAIN
from fedpriv.optim.rates import rate_of_round, rates_of_steps
from fedpriv.privacy.canaries import HeldCanaries
from fedpriv.privacy.ghost import GhostGradients
from fedpriv.privacy.per_sample import PerSampleGradients
from fedpriv.privacy.steps import charge
from fedpriv.samples import Inputs, split, take
from fedpriv.wire import RandomStream, Sealed
from fedpriv.wire.coding import decoded

PLAIN_SGD = {
    "optimizer": "sgd", "optimizer_options": {}, "momentum": 0.0, "weight_decay": 0.0, "weight_decay_bias": 0.0,
    "clip_grad_norm": None,
}  # fmt: skip
"""The options of a plain phase (:attr:`Phase.plain`), whatever the config says."""
AUGMENTED_TOGETHER = 256
"""Samples that are augmented at once, if a batch is smaller: an augmentation has a fixed cost per call."""


class ModelLocalUpdate:
    """A client's local update in a round, or (``purpose="adapt"``) its adaptation before a test.

    It starts from the present state of the model. Without augmentation, the outputs of a frozen encoder or teacher on the
    client's data are computed only once.

    Args:
        unused: tensors of the net that the client's data never reach.
        augment: (batch, generator) -> the batch with each sample augmented; ``None``: no augmentation.
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
        """If set, phases train with sample-level DP; it is called with (sampling rate, steps) before each phase."""
        self.canaries: HeldCanaries | None = None
        """If set, the canaries among the client's samples, under sample-level DP."""
        self.hidden: RandomSource = SeededSource(config.seed)
        """The source of DP's noise, and of the sampling, augmentation and dropout that observers must not know."""
        self.over = False
        """Whether training is over, so that nothing that is computed now changes the model or the private state."""
        self.upload: Sealed | None = None
        """The sealed upload, once there is one."""
        self._purpose = purpose
        self._phases = 0
        self._phase: Phase | None = None
        self._learner: ModelLearner | None = None
        self._companion: ModelLearner | None = None
        self._phase_steps = 0
        self._kept = KeptOptimisers(private) if config.train.carries_steps and purpose == "train" else None
        self._has_companion = False
        self._augment = augment
        self._caches = config.train.cache_features and augment is None
        # Features by the version of their encoder; a teacher that was frozen before the encoder moved shares them.
        self._encoder_version = 0
        self._features: dict[int, Tensor] = {}
        self._teachers = Teachers(model, self.inputs, self._caches, self._features)

    @property
    def sent(self) -> Mapping[str, Tensor]:
        return {} if self.upload is None else decoded(self.upload, self.received).tensors()

    @property
    def untrained(self) -> bool:
        """Whether no step was taken, as all batches are too small, and the model has not changed."""
        return bool(self.phase_results) and not self.steps and torch.equal(self.row, self.start)

    @property
    def learner(self) -> ModelLearner:
        if self._learner is None:
            raise RuntimeError("a client's model is trained only within a phase")
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
            raise RuntimeError("a companion is trained only within a phase")
        if self._companion is None:
            other = self.model.companion
            if not self._has_companion:
                other.row.copy_(self.start)
            self._has_companion = True
            self._companion = self._learner_on(other, self._phase, self._phase_steps, "companion")
        return self._companion

    def embed(self) -> Outputs:
        self._check_bounded("the outputs on all its samples")
        return self.model.from_features(self._features_now())

    def accuracy(self) -> float:
        self._check_bounded("its accuracy on them")
        # Without cached features: within a phase the encoder may have moved.
        chunks = zip(split(self.inputs, CHUNK), torch.split(self._labels, CHUNK), strict=True)
        logits = ((self.model.from_features(self.model.features(inputs)).logits, labels) for inputs, labels in chunks)
        return sum(int((scores.argmax(1) == labels).sum()) for scores, labels in logits) / self.num_examples

    def gradient(self, reduction: str = "mean") -> Tensor:
        self._check_bounded("the gradient on all its samples")
        weights = self.memo.get(CLASS_WEIGHTS)
        total = self.model.gradient(self.inputs, self._labels, weights)
        if reduction != "mean":
            return total.clone()
        return total / (self.num_examples if weights is None else weights[self._labels].sum())

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
        labels = (self.round, self.client, self._purpose, self._phases)
        # Under DP, augmentation and dropout must be unpredictable too. Random numbers go to samples by position in the batch. If
        # they were predictable, the augmentation of later samples would reveal whether an earlier sample was in it.
        source = SeededSource(self.config.seed) if self.spend is None else self.hidden
        augment = source.generator(*labels, "augment") if self._augment else None
        if self.model.parts(phase.trains):  # otherwise its roles have nothing to train, like a head that the net freezes
            with source.global_rng(*labels, "dropout"):
                if self.spend is None:
                    self._train(phase, loss, rule or PLAIN, source.generator(*labels, "shuffle"), augment)
                else:
                    sampling, noise, canaries = (source.noise(*labels, use) for use in ("shuffle", "dp noise", "canaries"))
                    self._train_privately(phase, loss, rule or PLAIN, sampling, augment, noise, canaries)
            self._keep_optimisers(phase)
        self._phase = None
        self.phase_results.append(PhaseResult(phase.trains, self.steps - before, self._lr(phase)))
        if "encoder" in phase.trains:
            self._encoder_version += 1

    def _train(self, phase: Phase, loss: Loss, rule: StepRule, shuffle: torch.Generator, augment: torch.Generator | None) -> None:
        """A phase of ordinary training: epochs over shuffled batches."""
        model, size = self.model, self.config.train.batch_size * rule.batches_per_step
        smallest = max(self.config.train.min_batch, rule.smallest_batch)
        cached = self._caches and "encoder" not in phase.trains and not rule.uses_companion
        inputs = self._features_now() if cached else self.inputs
        whole, rest = divmod(self.num_examples, size)
        an_epoch = whole * (size >= smallest) + (rest >= smallest)
        self._learner = self._learner_on(model, phase, phase.steps or phase.epochs * an_epoch)
        losses: list[tuple[Tensor, int]] = []
        steps, can_train = 0, min(size, self.num_examples) >= smallest
        for epoch in count() if phase.steps and can_train else range(phase.epochs):
            if steps == phase.steps:
                break
            losses.clear()
            rule.epoch(self, epoch)
            model.set_trained(phase.trains)
            order = torch.randperm(self.num_examples, generator=shuffle).to(model.device)
            shuffled = take(inputs, order)
            columns = (order, shuffled if cached else model.shaped(shuffled), self._labels.index_select(0, order))
            for index, views, targets in self._batches(columns, size, augment, rule.views):
                if len(index) < smallest or steps == phase.steps:
                    break
                batch = LocalBatch(index, views, targets, cached, phase.trains, self.received, self.memo, self._teachers)
                losses.append((self._step(rule, batch, loss), len(targets)))
                steps += 1
        self.steps += steps
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
            in_parts = f", in up to {parts} parts (train.accumulate)" if parts > 1 else ""
            raise UsageError(
                f"client {self.client} has a batch of {len(batch.labels)}{in_parts}, and BatchNorm needs more to train on images "
                "this small; --set train.min_batch=2 skips such batches; another --batch-size or a net without BatchNorm would "
                "do too"
            ) from None

    def _batches(
        self, columns: tuple[Tensor, Inputs, Tensor], size: int, augment: torch.Generator | None, views: int
    ) -> Iterator[tuple[Tensor, list[Inputs], Tensor]]:
        """Yield (positions, views, labels) of each batch; several small batches are augmented together.

        Args:
            columns: positions, samples and labels of an epoch, in its order.
        """
        together = size * max(1, AUGMENTED_TOGETHER // size)
        blocks = [columns] if augment is None else zip(*(split(column, together) for column in columns), strict=True)
        for index, samples, labels in blocks:
            augmented = [self._augmented(samples, augment) for _ in range(views)]
            for positions, targets, *inputs in zip(*(split(column, size) for column in (index, labels, *augmented)), strict=True):
                yield positions, inputs, targets

    def _augmented(self, samples: Inputs, augment: torch.Generator | None) -> Inputs:
        if augment is None or self._augment is None:
            return samples
        if isinstance(samples, Tensor):
            return self._augment(samples, augment)
        return samples if samples.image is None else samples._replace(image=self._augment(samples.image, augment))

    def _learner_on(self, model: ClientModel, phase: Phase, steps: int, name: str = "model") -> ModelLearner:
        """A model with the optimiser of a phase of ``steps`` steps."""
        # An adaptation has no warm-up: it may be shorter. Per-FedAvg adapts for one step by default.
        train, lr = self.config.train, self._lr(phase)
        rates = rates_of_steps(train, lr, steps) if self._purpose == "train" else [lr]
        if phase.plain:
            train = train.model_copy(update=PLAIN_SGD)
        self._phase_steps = steps
        kept = None if self._kept is None or phase.plain else self._kept.of(self._optimiser_name(phase, name))
        return ModelLearner(model, phase, train, rates, self.unused, kept)

    def _optimiser_name(self, phase: Phase, model: str) -> str:
        """The name of a phase's optimiser: by its roles, not its number, as phases may change from round to round."""
        number = sum(result.roles == phase.trains for result in self.phase_results)
        return f"{'+'.join(sorted(phase.trains))}/{number}/{model}"

    def _keep_optimisers(self, phase: Phase) -> None:
        for name, learner in (("model", self._learner), ("companion", self._companion)):
            if learner is not None and self._kept is not None and not phase.plain:
                self._kept.keep(self._optimiser_name(phase, name), learner)

    @property
    def optimisers(self) -> Mapping[str, Tensor]:
        """The states of the client's optimisers, for its next local update; empty unless ``train.keep_optimizer``."""
        return {} if self._kept is None else self._kept.states

    def _lr(self, phase: Phase) -> float:
        return rate_of_round(self.config.train, self.round, phase.lr)

    def _train_privately(
        self,
        phase: Phase,
        loss: Loss,
        rule: StepRule,
        sampling: RandomStream,
        augment: torch.Generator | None,
        noise: RandomStream,
        canaries: RandomStream,
    ) -> None:
        """A phase of DP-SGD (Abadi et al., CCS 2016).

        Each step draws every sample independently with probability q (Poisson sampling), and follows the gradient

        ``g = (sum_i g_i min(1, C / ||g_i||) + N(0, (Z C)^2 I)) / (q n)``

        with bound C (``privacy.clip``), noise Z (``privacy.noise``) and n samples. Momentum and weight decay see only ``g``.
        """
        train, privacy, model, n = self.config.train, self.config.privacy, self.model, self.num_examples
        if not isinstance(model, Resident):
            raise TypeError("per-sample gradients need a net that trains one client at a time")
        rate, steps = charge(phase, n, train.batch_size)
        if self.spend is None or privacy.noise is None:
            raise ValueError("no ledger or no noise")
        self.spend(rate, steps)
        cached = self._caches and "encoder" not in phase.trains
        inputs = self._features_now() if cached else self.inputs
        learner = self._learner = self._learner_on(model, phase, steps)
        kind = GhostGradients if privacy.clipping == "ghost" else PerSampleGradients
        gradients = kind(
            model.net, model.parameters, self.received, phase, loss, from_features=cached, clip=privacy.clip, memo=self.memo
        )
        losses = [torch.zeros_like(model.row[:0])]
        for _ in range(steps):
            index = (sampling.uniform((n,), torch.float64) < rate).nonzero().squeeze(1).to(model.device)
            batch = take(inputs, index)
            if len(index):
                batch = self._augmented(batch if cached else model.shaped(batch), augment)
            teachers = {name: self._teachers.outputs(name, index, batch) for name in self._teachers} if len(index) else {}
            total, values, _ = gradients(batch, self._labels.index_select(0, index), teachers)
            extra = {} if self.canaries is None else self.canaries.drawn(rate, canaries)
            for name, part in total.items():
                if name in extra:
                    part.add_(extra[name].to(part))
                gaussian = noise.normal(part.shape).to(part) * (privacy.noise * privacy.clip)
                model.space.view(model.grad, name).copy_((part + gaussian) / (rate * n))
            rule.correct(self, learner)
            learner.descend()
            losses.append(values.to(model.row))
        of_samples = torch.cat(losses)
        if len(of_samples):  # a small client may have drawn no sample
            self.mean_loss = float(of_samples.mean())
        self.steps += steps
        self._check_finite(spoiled=False)

    def _check_bounded(self, what: str) -> None:
        """Under sample-level DP, refuse what is computed from the samples and is not a clipped gradient, as epsilon covers only
        clipped gradients."""
        if self.spend is not None and not self.over:
            raise UsageError(
                f"privacy.level sample: a local update asks for {what}, which no clipping bounds; its method, objective or "
                "aggregation cannot be used with sample-level DP, and says so by `no_dp`"
            )

    def _check_finite(self, spoiled: bool) -> None:
        # Also check the weights, which the last step changes after the last loss. Their sum is finite only if all of them are.
        if spoiled or not math.isfinite(float(self.model.row.sum())):
            raise ClientDiverged(self.client, self.round, self.config.train.lr)

    def _features_now(self) -> Tensor:
        if self._encoder_version not in self._features:
            self._features[self._encoder_version] = self.model.features(self.inputs)
        return self._features[self._encoder_version]
