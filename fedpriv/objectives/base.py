"""The client's half of a method: its loss, and its optimisation step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from fedpriv.errors import UsageError
from fedpriv.interfaces import Batch, Context, Learner, LocalUpdate, Loss, Part, Step
from fedpriv.models.net import ROLES

Exchange = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
"""What a client was sent in a local update, and what it uploaded, by name."""


class Objective(Part):
    """The loss and the step of a client; a subclass defines at least :meth:`loss`.

    If a term's gradient is known (a proximal term, a control variate), adding it in :meth:`correct`, once per step on the flat
    row, is cheaper and more exact than differentiating through every tensor.
    """

    required_roles: ClassVar[frozenset[str]] = frozenset()
    """Roles that the net must have, such as ``projector`` or ``predictor``."""
    trained_roles: ClassVar[frozenset[str]] = frozenset(ROLES)
    """Roles that the loss depends on; the others are neither trained nor sent."""
    labels: ClassVar[bool] = True
    """Whether it uses labels; without, a run has no accuracy until it is probed."""
    views: ClassVar[int] = 1
    """Number of augmented views of a batch in a step."""
    batches_per_step: int = 1
    """Number of batches of ``train.batch_size`` in a step."""

    smallest_batch: int = 1
    """Batches with fewer samples are skipped."""
    corrects: ClassVar[bool] = False
    """Whether its gradients have a :meth:`correction`."""
    uses_companion: ClassVar[bool] = False
    """Whether its step trains a second model (:attr:`LocalUpdate.companion`)."""
    decomposes: ClassVar[bool] = True
    """Whether its loss is a mean over samples, so that a batch may be processed in parts (``train.accumulate``)."""

    def __init__(self, params: Any, context: Context) -> None:
        """Raises :class:`UsageError` where an option of the run does not fit this objective's steps, or private ones."""
        super().__init__(params, context)
        train, private = context.config.train, context.config.privacy.level == "sample"
        if train.accumulate > 1 and (reason := self._needs_whole_batches(private)):
            raise UsageError(f"train.accumulate {train.accumulate}: {reason}; use train.accumulate=1")
        if train.precision != "float32" and private:
            raise UsageError(
                f"train.precision {train.precision}: privacy.level sample bounds the norm of each sample's gradient, which takes "
                "float32; use train.precision=float32"
            )

    @property
    def passes_per_step(self) -> int | None:
        """Forward passes of a step that move the running statistics of the client's model; ``None``: not known.

        One for each view, also in fedpriv's objectives with a step of their own that do not say otherwise.
        """
        by = next(kind for kind in type(self).__mro__ if "step" in vars(kind))
        return self.views if by.__module__.startswith("fedpriv.") else None

    def _needs_whole_batches(self, private: bool) -> str:
        """Why a batch cannot be processed in parts; empty: it can."""
        if private:
            return "privacy.level sample clips sample by sample, and chooses the parts itself"
        if not self.decomposes:
            return f"the loss of objective {self.name} compares the samples of a batch, so it is not a mean over parts"
        if type(self).step is not Objective.step:
            return f"objective {self.name} has its own step, which needs the whole batch"
        return ""

    def loss(self, step: Step) -> Tensor:
        """The scalar that a client minimises."""
        raise NotImplementedError

    def epoch(self, update: LocalUpdate, epoch: int) -> None:
        """Called before each local epoch (0, 1, ... within its phase)."""

    def without_momentum(self, received: Mapping[str, Tensor]) -> frozenset[str]:
        """The parameters that step without ``train.momentum``, after this download; attackers know it as they know the method."""
        return frozenset()

    def correct(self, update: LocalUpdate, learner: Learner) -> None:
        """Change ``learner.grad`` in place before a step. Under sample-level DP it is called after clipping and noise, so it must
        not use the data."""

    def correction(
        self,
        received: Mapping[str, Tensor],
        earlier: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]],
        examples: int | None,
    ) -> dict[str, Tensor]:
        """What :meth:`correct` adds to each gradient of a local update, apart from terms that are zero at the received weights;
        by the parameters' names. The server can compute it, too, and an audit undoes it.

        Args:
            earlier: the client's local updates before, in their order.
            examples: its number of samples, where that is known.
        """
        return {}

    def step(self, update: LocalUpdate, batch: Batch, loss: Loss) -> Tensor:
        """One step on a batch; the value of ``loss``, detached.

        Args:
            loss: the loss to minimise: :meth:`loss`, or the method's variant of it.
        """
        learner = update.learner
        if type(self).correct is Objective.correct:
            return learner.step(batch, loss)
        value = learner.differentiate(batch, loss)
        self.correct(update, learner)
        learner.descend()
        return value
