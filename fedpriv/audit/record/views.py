"""The augmented views on which clients trained. They follow from the run's seed, so that a local update can be repeated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.data.augmentation.augment import Augment
from fedpriv.server.clients import Instruction
from fedpriv.simulation.executors.in_process import in_process_executor
from fedpriv.simulation.setup import Federation
from fedpriv.wire import Sealed


class Recorder:
    """An augmentation that keeps the views of each image. Images are recognised by their pixels.

    Args:
        mean, std: of the images' normalisation, by channel.
    """

    def __init__(self, augment: Augment, mean: Sequence[float], std: Sequence[float]) -> None:
        self._augment = augment
        self._mean, self._std = (torch.tensor(tuple(values)).view(-1, 1, 1) for values in (mean, std))
        self._views: defaultdict[bytes, list[Tensor]] = defaultdict(list)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        views = self._augment(images, generator)
        for before, after in zip(self._pictures(images), self._pictures(views), strict=True):
            self._views[_pixels(before)].append(after)
        return views

    def views(self, images: Tensor) -> Tensor:
        """Each image ``(n, C, H, W)`` in [0, 1] with its views, ``(n, V, C, H, W)``; an image with
        fewer views than others repeats its last one."""
        rows = [torch.stack([image, *self._views[_pixels(image)]]) for image in images]
        most = max(len(row) for row in rows)
        return pad_sequence([torch.cat([row, row[-1:].expand(most - len(row), -1, -1, -1)]) for row in rows], batch_first=True)

    def _pictures(self, images: Tensor) -> Tensor:
        return images.detach().cpu().float() * self._std + self._mean


def _pixels(image: Tensor) -> bytes:
    return (255 * image).round().to(torch.uint8).numpy().tobytes()


def recorded(federation: Federation) -> tuple[Federation, Recorder | None]:
    """The federation with a recorded augmentation, and its recorder; unchanged, and ``None``, where clients do not augment."""
    if federation.augment is None:
        return federation, None
    recorder = Recorder(federation.augment, federation.dataset.mean, federation.dataset.std)
    return replace(federation, augment=recorder), recorder


def views_of(
    federation: Federation, round: int, clients: Sequence[int], download: Sealed | None, images: Tensor
) -> Tensor | None:
    """The images ``(n, C, H, W)`` of these clients with their views in a round ``(n, V, C, H, W)``: the clients train again.
    ``None``: they do not augment.

    Their state from earlier rounds does not matter, as no random number depends on it. A local update that diverges ends early.
    """
    repeated, recorder = recorded(federation)
    if recorder is None:
        return None
    for _ in in_process_executor(repeated, None, lambda text: None).train(Instruction(round, clients, download)):
        pass
    return recorder.views(images)
