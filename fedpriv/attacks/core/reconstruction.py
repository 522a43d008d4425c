"""The result of an image attack, and the exception of an attack that does not apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.core.observation import Observation


class Inapplicable(Exception):
    """An attack cannot be run on an observation; the message says why, and which attack can."""


class Empty(Inapplicable):
    """A message shows nothing of any sample; another message of the same kind may."""


def require_labels(observation: Observation) -> None:
    """Check that the client minimised a cross-entropy on labels.

    Raises:
        Inapplicable: the client minimised something else.
    """
    if observation.numbers:
        raise Inapplicable("the attack needs labels that are classes, and these are numbers")
    if observation.loss is not None:
        raise Inapplicable(f"the attack needs a cross-entropy on labels, and the client minimised {observation.loss}")


@contextmanager
def mounting() -> Iterator[None]:
    """Run a block with an attack: the global random state is restored, and attention has a second derivative."""
    with torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def differentiating_twice() -> Iterator[None]:
    """Run a block that tests whether the net has a second derivative.

    Raises:
        Inapplicable: an operation of the net has none; the message names it.
    """
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        raise Inapplicable(f"the net cannot be differentiated twice: {str(error).splitlines()[0]}") from error


@dataclass(frozen=True)
class Reconstruction:
    """Images reconstructed from ``N`` observations of ``B`` samples each (``n = N * B``, observation by observation).

    Attributes:
        raw: the images as the optimiser left them ``(n, C, H, W)``; pixels may lie outside [0, 1] or be NaN.
        labels: the attack's guesses ``(n,)``; -1 where it makes none.
        loss: the attack's final loss per observation ``(N,)``: comparable between restarts, not between attacks.
        curve: that loss after every outer step of the best start ``(steps, N)``; NaN after it stopped.
        iterations: outer steps (L-BFGS) or steps (Adam) of all starts together ``(N,)``.
        restart: the number of the best start, from 0 ``(N,)``.
        cpu_seconds: of the whole attack.
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
        """The images clipped to [0, 1] ``(n, C, H, W)``; NaN becomes grey."""
        return self.raw.nan_to_num(nan=0.5).clamp(0, 1)


@dataclass(frozen=True)
class SingleReconstruction:
    """The reconstruction of one message.

    Attributes:
        images: ``(B, C, H, W)``.
        labels: ``(B,)``; -1 where the attack makes no guess.
        curve: the loss after every step of the best start.
        losses: the final loss of each start.
    """

    images: Tensor
    labels: Tensor
    curve: list[float]
    losses: tuple[float, ...]


def filled(samples: Tensor, n: int) -> Tensor:
    """The first ``n`` of samples ``(m, ...)``, with NaN for those that are missing: ``(n, ...)``."""
    missing = samples.new_full((max(0, n - len(samples)), *samples.shape[1:]), torch.nan)
    return torch.cat([samples[:n], missing])


def together(observations: Sequence[Observation], attack: Callable[[Observation], SingleReconstruction]) -> Reconstruction:
    """Attack one message after the other, for attacks that gain nothing from a batch of messages.

    Every message gets the same number of rows: rows beyond its own images are NaN, with label -1.

    Raises:
        Inapplicable: the attack refuses a message; an :class:`Empty` message is refused only if all are empty.
    """
    start = time.process_time()
    results, empty = list[SingleReconstruction](), list[Empty]()
    for observation in observations:
        try:
            results.append(attack(observation))
        except Empty as reason:
            empty.append(reason)
            blank = torch.full((1, *observation.input_shape), torch.nan)
            results.append(SingleReconstruction(blank, torch.tensor([-1]), [torch.nan], (torch.nan,)))
    if len(empty) == len(results):
        raise empty[0]
    curve = torch.full((max(len(result.curve) for result in results), len(results)), torch.nan)
    for column, result in enumerate(results):
        curve[: len(result.curve), column] = torch.tensor(result.curve)
    losses = [torch.tensor(result.losses) for result in results]
    return Reconstruction(
        raw=pad_sequence([result.images for result in results], batch_first=True, padding_value=torch.nan).flatten(0, 1),
        labels=pad_sequence([result.labels for result in results], batch_first=True, padding_value=-1).flatten(0, 1),
        loss=torch.stack([of_starts.min() for of_starts in losses]),
        curve=curve,
        iterations=torch.tensor([len(result.curve) * len(result.losses) for result in results]),
        restart=torch.stack([of_starts.argmin() for of_starts in losses]),
        cpu_seconds=time.process_time() - start,
    )
