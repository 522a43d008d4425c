"""The client part of a method: its loss and its optimisation step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from fedpriv.errors import UsageError
from fedpriv.interfaces import Batch, Context, Learner, LocalUpdate, Loss, Part, Step
from fedpriv.models.net import ROLES

Exchange = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
"""A client's download and its upload in one round, by name."""


class Objective(Part):
    """What a client minimises, and how; a subclass defines at least :meth:`loss`.

    A term whose gradient is known in closed form (a proximal term, a control variate) belongs into :meth:`correct`, which adds it
    once a step to the flat gradient: this is cheaper and more exact than differentiating through every tensor.
    """

    required_roles: ClassVar[frozenset[str]] = frozenset()
    """Roles that the net must have, such as ``projector`` or ``predictor``."""
    trained_roles: ClassVar[frozenset[str]] = frozenset(ROLES)
    """Roles that the loss depends on; other roles are neither trained nor sent."""
    labels: ClassVar[bool] = True
    """Whether the loss uses labels; if not, a run has no accuracy until the run's encoder is probed."""
    views: ClassVar[int] = 1
    """Number of augmented views of each batch."""
    batches_per_step: int = 1
    """Number of batches of ``train.batch_size`` that one step takes."""
    smallest_batch: int = 1
    """Smaller batches are skipped."""
    corrects: ClassVar[bool] = False
    """Whether this objective defines :meth:`correction`."""
    uses_companion: ClassVar[bool] = False
    """Whether :meth:`step` trains a second model (:attr:`LocalUpdate.companion`)."""
    weighs_classes: ClassVar[bool] = False
    """Whether :meth:`loss` reads labels through :func:`fedpriv.objectives.cross_entropy.label_loss` alone, which heeds
    ``train.class_weights`` and takes numbers; a class that defines :meth:`loss` anew declares it anew."""
    decomposes: ClassVar[bool] = True
    """Whether the loss is a mean over samples, so that a batch may be processed in chunks (``train.accumulate``)."""

    def __init__(self, params: Any, context: Context) -> None:
        """Check the options under ``train``.

        Raises:
            UsageError: an option does not fit this objective, or cannot be used with sample-level DP.
        """
        super().__init__(params, context)
        train, private = context.config.train, context.config.privacy.level == "sample"
        if train.accumulate > 1 and (reason := self._needs_whole_batches(private)):
            raise UsageError(f"train.accumulate {train.accumulate}: {reason}; use train.accumulate=1")
        if train.class_weights is not None:
            self._check_class_weights(private)
        if train.precision != "float32" and private:
            raise UsageError(
                f"train.precision {train.precision}: privacy.level sample bounds the norm of each sample's gradient, which takes "
                "float32; use train.precision=float32"
            )

    @property
    def passes_per_step(self) -> int | None:
        """Forward passes of a step that update BatchNorm's running statistics; ``None``: unknown.

        By default one for each view, unless a class outside fedpriv defines :meth:`step`.
        """
        owner = next(kind for kind in type(self).__mro__ if "step" in vars(kind))
        return self.views if owner.__module__.startswith("fedpriv.") else None

    def _needs_whole_batches(self, private: bool) -> str:
        """Why a batch cannot be processed in chunks; empty: it can."""
        if private:
            return "privacy.level sample clips sample by sample, and chooses the parts itself"
        if not self.decomposes:
            return f"the loss of objective {self.name} compares the samples of a batch, so it is not a mean over chunks"
        if type(self).step is not Objective.step:
            return f"objective {self.name} has its own step, which needs the whole batch"
        return ""

    @classmethod
    def why_classes(cls) -> str:
        """Why labels must be classes, and cannot be numbers; empty: they can."""
        if cls.needs_classes or not cls.labels or cls._by_label_loss():
            return cls.needs_classes
        return "its loss has no squared error"

    @classmethod
    def _by_label_loss(cls) -> bool:
        """Whether :attr:`weighs_classes` is declared by the class that defines :meth:`loss`, or by one that inherits it."""
        declaring, defining = (next(kind for kind in cls.__mro__ if name in vars(kind)) for name in ("weighs_classes", "loss"))
        return cls.weighs_classes and issubclass(declaring, defining)

    def _check_class_weights(self, private: bool) -> None:
        """Raise :class:`UsageError` unless this objective weighs classes (``train.class_weights``)."""
        why = ""
        if self.context.numbers:
            why = "the labels are numbers, and no classes"
        elif not self._by_label_loss():
            why = f"the loss of objective {self.name} has no cross-entropy in which classes have weights"
        elif private:
            why = "privacy.level sample takes the gradient of each sample alone, in which a weight has no effect"
        elif self.context.config.privacy.level == "client":
            why = "weights by noisy numbers of samples of each class are not supported; use privacy.level=none"
        elif self.context.config.train.accumulate > 1:
            why = "with weights the loss is no mean over parts of a batch; use train.accumulate=1"
        elif self.context.class_weights is None:
            why = "it takes the clients' numbers of samples of each class, which the server does not know here; simulations do"
        if why:
            raise UsageError(f"train.class_weights {self.context.config.train.class_weights}: {why}")

    def loss(self, step: Step) -> Tensor:
        """The scalar that a client minimises."""
        raise NotImplementedError

    def epoch(self, update: LocalUpdate, epoch: int) -> None:
        """Called before each local epoch, which is numbered from 0 within its phase."""

    def without_momentum(self, received: Mapping[str, Tensor]) -> frozenset[str]:
        """The parameters that are trained without ``train.momentum`` in a round with this download; audits use this."""
        return frozenset()

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        """Change ``learner.grad`` in place before a step.

        Under sample-level DP this follows clipping and noise, so it must not depend on the data.
        """

    def correction(
        self,
        received: Mapping[str, Tensor],
        earlier: Sequence[Exchange],
        examples: int | None,
    ) -> dict[str, Tensor]:
        """What :meth:`correct` adds to each gradient of a local update, by parameter.

        Terms that vanish at the starting weights, such as a proximal one, are left out. The correction is a function of what the
        server knows, so audits subtract it.

        Args:
            earlier: the client's earlier rounds, in order.
            examples: the client's number of samples; ``None``: not known.
        """
        return {}

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        """Take one optimisation step on a batch, and return the loss, detached.

        Args:
            loss: the loss to minimise: :meth:`loss`, or the method's own loss.
        """
        learner = update.learner
        if type(self).correct is Objective.correct:
            return learner.step(batch, loss)
        value = learner.differentiate(batch, loss)
        self.correct(update, learner)
        learner.descend()
        return value
