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
    """An attack cannot be mounted on an observation; the message says why, and which attack can be."""


class Empty(Inapplicable):
    """A message shows nothing of any sample, whatever they are; another message of the same kind may."""


def require_labels(observation: Observation) -> None:
    """Check that the client minimised a cross-entropy on labels.

    Raises:
        Inapplicable: the client minimised something else.
    """
    if observation.loss is not None:
        raise Inapplicable(f"the attack needs a cross-entropy on labels, and the client minimised {observation.loss}")


@contextmanager
def mounting() -> Iterator[None]:
    """A block in which an attack runs: the global random state is left as it was, and attention has a second derivative."""
    with torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """A block in which torch computes with one thread.

    Nets as small as those of controls gain nothing from more. Beside other work, threads wait for each other at every operation:
    an evaluation of the reference victim on two busy cores took 7 ms of CPU time with one thread, and 490 with two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def differentiating_twice() -> Iterator[None]:
    """A block in which a second derivative is computed as a test.

    Raises:
        Inapplicable: an operation of the net has none; it is named.
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
        labels: the attack's guess ``(n,)``; -1 where it makes none.
        loss: the attack's final loss per observation ``(N,)``: comparable between restarts, not between attacks.
        curve: that loss after every outer step of the start that was kept ``(steps, N)``; NaN after it stopped.
        iterations: outer steps (L-BFGS) or steps (Adam) of all starts together ``(N,)``.
        restart: which start was kept, from 0 ``(N,)``.
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
class One:
    """The reconstruction of one message: images ``(B, C, H, W)``, labels ``(B,)``, loss along the way, losses of the starts."""

    images: Tensor
    labels: Tensor
    curve: list[float]
    losses: tuple[float, ...]


def together(observations: Sequence[Observation], attack: Callable[[Observation], One]) -> Reconstruction:
    """Attack one message after the other, for attacks that gain nothing from a batch of messages.

    Every message has as many rows: where fewer images are found than in another one, the rest is NaN, with label -1.

    Raises:
        Inapplicable: the attack refuses a message; one that is :class:`Empty` only if all are.
    """
    start = time.process_time()
    ones, nothing = list[One](), list[Empty]()
    for observation in observations:
        try:
            ones.append(attack(observation))
        except Empty as reason:
            nothing.append(reason)
            ones.append(One(torch.full((1, *observation.input_shape), torch.nan), torch.tensor([-1]), [torch.nan], (torch.nan,)))
    if len(nothing) == len(ones):
        raise nothing[0]
    steps = max(len(one.curve) for one in ones)
    curve = torch.full((steps, len(ones)), torch.nan)
    for column, one in enumerate(ones):
        curve[: len(one.curve), column] = torch.tensor(one.curve)
    losses = [torch.tensor(one.losses) for one in ones]
    return Reconstruction(
        raw=pad_sequence([one.images for one in ones], batch_first=True, padding_value=torch.nan).flatten(0, 1),
        labels=pad_sequence([one.labels for one in ones], batch_first=True, padding_value=-1).flatten(0, 1),
        loss=torch.stack([each.min() for each in losses]),
        curve=curve,
        iterations=torch.tensor([len(one.curve) * len(one.losses) for one in ones]),
        restart=torch.stack([each.argmin() for each in losses]),
        cpu_seconds=time.process_time() - start,
    )
