"""What clients that augment their images trained on. A local update's draws depend on the run's seed, so its views can be made
again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.data.augmentation.augment import Augment
from fedpriv.server.clients import Instruction
from fedpriv.simulation.executors.build import in_this_process
from fedpriv.simulation.setup import Federation
from fedpriv.wire import Sealed


class Recorder:
    """An augmentation that keeps what it makes of each image. Images are known by their pixels.

    Args:
        mean, std: of the images' normalisation, by channel.
    """

    def __init__(self, augment: Augment, mean: Sequence[float], std: Sequence[float]) -> None:
        self._augment = augment
        self._mean, self._std = (torch.tensor(tuple(values)).view(-1, 1, 1) for values in (mean, std))
        self._made: defaultdict[bytes, list[Tensor]] = defaultdict(list)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        made = self._augment(images, generator)
        for before, after in zip(self._pictures(images), self._pictures(made), strict=True):
            self._made[_pixels(before)].append(after)
        return made

    def views(self, images: Tensor) -> Tensor:
        """Each image ``(n, C, H, W)`` in [0, 1] and what was made of it, ``(n, V, C, H, W)``; where that is less than of another,
        the last one again."""
        rows = [torch.stack([image, *self._made[_pixels(image)]]) for image in images]
        most = max(len(row) for row in rows)
        return pad_sequence([torch.cat([row, row[-1:].expand(most - len(row), -1, -1, -1)]) for row in rows], batch_first=True)

    def _pictures(self, images: Tensor) -> Tensor:
        return images.detach().cpu().float() * self._std + self._mean


def _pixels(image: Tensor) -> bytes:
    return (255 * image).round().to(torch.uint8).numpy().tobytes()


def recorded(federation: Federation) -> tuple[Federation, Recorder | None]:
    """The federation with an augmentation that is recorded; unchanged, and ``None``, where clients do not augment."""
    if federation.augment is None:
        return federation, None
    recorder = Recorder(federation.augment, federation.dataset.mean, federation.dataset.std)
    return replace(federation, augment=recorder), recorder


def views_of(
    federation: Federation, round: int, clients: Sequence[int], download: Sealed | None, images: Tensor
) -> Tensor | None:
    """The images ``(n, C, H, W)`` of these clients with their views in a round ``(n, V, C, H, W)``: the clients take that turn
    again. ``None``: they do not augment.

    What they kept from earlier rounds does not matter, as no draw depends on it. A local update that diverges ends early.
    """
    repeated, recorder = recorded(federation)
    if recorder is None:
        return None
    for _ in in_this_process(repeated, None, lambda text: None).train(Instruction(round, clients, download)):
        pass
    return recorder.views(images)
