"""The result of an image attack, and the exception of an attack that does not apply."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from attacks.core.observation import Observation


class Inapplicable(Exception):
    """An attack that cannot be mounted on what was observed; the message says why and what can."""


def require_labels(observation: Observation) -> None:
    """For attacks that build the gradient of a cross-entropy on labels.

    Raises:
        Inapplicable: the client minimised something else.
    """
    if observation.loss is not None:
        raise Inapplicable(f"it is made for a cross-entropy on labels, and the client minimised {observation.loss}")


@contextmanager
def differentiating_twice() -> Iterator[None]:
    """A second derivative is tried out in the block.

    Raises:
        Inapplicable: an operation of the net has none; it is named.
    """
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        raise Inapplicable(f"the net cannot be differentiated twice: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class Reconstruction:
    """Images made from ``N`` observations of ``B`` samples each (``n = N * B``, those of an observation together).

    Attributes:
        raw: the images as the optimiser left them, pixels in [0, 1] where it is right ``(n, C, H, W)``; may be anything.
        labels: the attack's guess ``(n,)``; -1 where it makes none.
        loss: the attacker's own loss at the end, per observation ``(N,)``: comparable between restarts, not between attacks.
        curve: that loss after every outer step of the restart that was kept ``(steps, N)``; NaN after it stopped.
        iterations: outer steps (L-BFGS) or steps (Adam) that were used in all restarts together ``(N,)``.
        restart: which start was kept, from 0 ``(N,)``.
        cpu_seconds: for all of it.
    """

    raw: Tensor
    labels: Tensor
    loss: Tensor
    curve: Tensor
    iterations: Tensor
    restart: Tensor
    cpu_seconds: float = 0.0

    @property
    def images(self) -> Tensor:
        """Clipped to [0, 1] ``(n, C, H, W)``; what is not a number becomes grey."""
        return self.raw.nan_to_num(nan=0.5).clamp(0, 1)
