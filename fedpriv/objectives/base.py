"""The client's half of a method: what one client minimises, and how it steps."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedpriv.models.net import ROLES
from fedpriv.parts import Batch, ClientTurn, Learner, Loss, Part, Step


class Objective(Part):
    """What a client minimises; a subclass says at least its :meth:`loss`.

    Where a term's gradient is known (a proximal term, a control variate), it is cheaper and more exact to add it in
    :meth:`correct`, once a step on the flat row, than to differentiate through every tensor.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Roles that the net must have, such as ``projector`` or ``predictor``."""
    reaches: ClassVar[frozenset[str]] = frozenset(ROLES)
    """Roles that the loss depends on; the others are neither trained nor sent."""
    labels: ClassVar[bool] = True
    """Whether it looks at labels; without, a run has no accuracy until it is probed."""
    views: ClassVar[int] = 1
    """Augmented views of a batch that a step sees."""
    batches_per_step: int = 1
    """Batches of ``train.batch_size`` that a step takes together."""

    smallest_batch: ClassVar[int] = 1
    """A batch of fewer samples is skipped."""
    uses_companion: ClassVar[bool] = False
    """Whether its step trains a second model (:attr:`ClientTurn.companion`)."""

    def loss(self, step: Step) -> Tensor:
        """The scalar that a client minimises."""
        raise NotImplementedError

    def epoch(self, turn: ClientTurn, epoch: int) -> None:
        """Called before each local epoch (0, 1, ... within its phase)."""

    def correct(self, turn: ClientTurn, learner: Learner) -> None:
        """Change ``learner.grad`` in place before a step. Under sample-level DP: after clipping and noise, so it must not look
        at the data."""

    def step(self, turn: ClientTurn, batch: Batch, loss: Loss) -> Tensor:
        """One step on a batch; the value of ``loss``, detached.

        Args:
            loss: what to minimise: :meth:`loss`, or what a method makes of it.
        """
        learner = turn.learner
        value = loss(batch.under(learner))
        learner.backward(value)
        self.correct(turn, learner)
        learner.descend()
        return value.detach()
