"""The target of an attack: one step on chosen images, or a message of a run; with the true images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.lab.attempts import ImageAttempt, Images, observations
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.same_net import on_same_net
from fedpriv.attacks.scoring.baselines import baselines
from fedpriv.attacks.scoring.scores import counts, mse, threshold_above, under
from fedpriv.audit.doubts import Doubts, Source, granted, with_statistics, with_truth
from fedpriv.audit.fitting import unfit
from fedpriv.audit.pairs import beside_texts
from fedpriv.audit.record.base import Message, PublicImages, Record
from fedpriv.audit.record.malicious import Replay, replay
from fedpriv.audit.record.run import RunRecord, public_images
from fedpriv.data.sources import load_dataset
from fedpriv.errors import UsageError, first_line

SIDE = 32
"""Photographs are cropped and scaled to so many pixels a side, the input of the reference victim."""


@dataclass(frozen=True, kw_only=True)
class Target(Doubts[ImageAttack, Reconstruction, ImageAttempt], Images):
    """The messages to attack, and the truth behind them. Attackers who have public images get those of the baselines.

    Attributes:
        masked: number of hidden fully connected layers at the end.
        reference, reference_labels: public images of the same kind, for the baselines; ``None`` where there are none.
        note: a further note; for pairs, on the texts.
    """

    masked: int = 0
    reference: Tensor | None = None
    reference_labels: Tensor | None = None
    note: str | None = None

    def failed(self, attempt: ImageAttempt) -> bool:
        return (attempt.recovered is not None and not attempt.recovered.successes) or self.guessed(attempt)

    def guessed(self, attempt: ImageAttempt) -> bool:
        """Whether an attempt recovered no more images than the baselines."""
        if attempt.scores is None:
            return False
        rates = [counts(under(errors)) for errors in self.guesses().values()]
        most = {limit: max(rate[limit] for rate in rates) for limit in rates[0]}
        return threshold_above(counts(attempt.scores.recovered), most) is None

    def guesses(self) -> dict[str, Tensor]:
        """Errors ``(n,)`` of the baselines, by name; of each image the least over its views, as for attacks."""
        views = self.images[:, None] if self.views is None else self.views
        of_each = [(view, baselines(view, self.labels, self.reference, self.reference_labels)) for view in views.unbind(1)]
        return {name: torch.stack([mse(guesses[name], view) for view, guesses in of_each]).amin(0) for name in of_each[0][1]}

    def part(self, start: int, end: int) -> Target:
        """The messages of the images from ``start`` to ``end``, of which each has its own."""
        return replace(
            self,
            title=f"{self.title} ({start + 1} to {end})",
            images=self.images[start:end],
            labels=self.labels[start:end],
            observe=lambda threat: self.observe(threat)[start:end],
            views=None if self.views is None else self.views[start:end],
        )


def crops(count: int, masked: int, seed: int) -> Target:
    """One step of the reference victim on crops of scikit-learn's two photographs; needs no data set."""
    try:
        images, labels = default_images(count, seed)
    except ValueError as error:
        raise UsageError(f"--n {count}: {error}") from None
    return _one_step(f"{count} crops of two photographs, one step each", images, labels, 10, masked, seed)


def samples(name: str, data_dir: Path | None, count: int, masked: int, seed: int, label: str | None = None) -> Target:
    """One step of the reference victim on test images of a data set, drawn by ``seed``.

    Raises:
        UsageError: the data set has no images, or too few.
    """
    dataset = load_dataset(name, data_dir, label=label)
    if dataset.images is None:
        raise unfit(dataset.name, "texts" if dataset.vectors is None else "rows of a table")
    if count > len(dataset.test_images):
        raise UsageError(f"--n {count}: {name} has {len(dataset.test_images)} test images")
    order = torch.randperm(len(dataset.test_images), generator=torch.Generator().manual_seed(seed))[:count]
    images, labels = dataset.test_images[order].float() / 255, dataset.test_labels[order]
    title = f"{count} test images of {dataset.name}, one step each"
    reference = public_images(dataset.train_images, dataset.train_labels)
    return _one_step(title, images, labels, len(dataset.classes), masked, seed, reference)


def photographs(folder: Path, count: int, masked: int, seed: int) -> Target:
    """One step of the reference victim on a folder's first ``count`` images by name, cropped to a square and scaled to 32x32.

    Raises:
        UsageError: there is no such folder, it has no images, or one cannot be read.
    """
    images = _read(folder, count)
    labels = torch.randint(10, (len(images),), generator=torch.Generator().manual_seed(seed))
    return _one_step(f"{len(images)} images of {folder}, one step each", images, labels, 10, masked, seed)


def message(record: Record, round: int, client: int) -> Target:
    """A client's real upload in a round.

    Raises:
        UsageError: the record is not of images, the client has none, or see :func:`of_messages`.
    """
    if "image" not in record.modalities:
        raise unfit(record.name, "texts" if "text" in record.modalities else "rows of a table")
    if record.lacking(client) == "image":
        raise UsageError(f"client {client} of {record.name} has texts alone")
    truth = record.truth(client)
    title = f"round {round}, client {client} of {record.name}: {len(truth.labels)} training images"
    views = record.views(round, client, truth.images)
    return of_messages(record, title, [record.message(round, client)], truth.images, truth.labels, views)


def altered(record: RunRecord, round: int, client: int, attack: ImageAttack, seed: int) -> tuple[Target, Replay]:
    """What a client answers to the download of a round, altered by an attack (:func:`fedpriv.audit.record.malicious.replay`).

    Raises:
        UsageError, FedprivError: see :func:`message` and the replay.
    """
    honest = message(record, round, client)
    assert honest.reference is not None
    played = replay(record, round, client, attack, honest.reference, seed)
    title = f"{honest.title}; download altered by {attack.name}"
    views = None if played.recorder is None else played.recorder.views(honest.images)
    return of_messages(record, title, [played.message], honest.images, honest.labels, views), played


def of_messages(
    record: Record, title: str, messages: Sequence[Message], images: Tensor, labels: Tensor, views: Tensor | None
) -> Target:
    """Messages, each of which stands for the same number of the images ``(n, C, H, W)``.

    Args:
        views: ``(n, V, C, H, W)``, see :class:`Target`.

    Raises:
        UsageError: for pairs, see :func:`fedpriv.audit.pairs.of_images`.
    """

    def target(source: Source, masked: int) -> Target:
        public, public_labels = source.public
        bare = Target(
            images, labels, source.observe, views, title=title, masked=masked, reference=public, reference_labels=public_labels
        )
        return with_truth(bare, source, images if views is None else views[:, -1], labels, on_same_net)

    note = beside_texts(record, messages[0], record.observation(messages[0], ThreatModel()))
    return replace(with_statistics(Source(record, messages, record.public_images()), target), note=note)


def _one_step(
    title: str, images: Tensor, labels: Tensor, classes: int, masked: int, seed: int,
    reference: PublicImages = (None, None),
) -> Target:  # fmt: skip
    def observe(threat: ThreatModel) -> list[Observation]:
        return granted(observations(images, labels, threat, masked, classes, seed), reference)

    return Target(
        images, labels, observe, title=title, masked=masked, reference=reference[0], reference_labels=reference[1]
    )  # fmt: skip


def _read(folder: Path, count: int) -> Tensor:
    from PIL import Image
    from torchvision.transforms.v2.functional import center_crop, pil_to_tensor, resize

    if not folder.is_dir():
        raise UsageError(f"--images {folder}: no such folder")
    known = Image.registered_extensions()
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in known)[:count]
    if not files:
        raise UsageError(f"--images {folder}: holds no images (files such as photo.jpg or photo.png)")
    images = []
    for path in files:
        try:
            picture = Image.open(path).convert("RGB")
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(f"--images: {path} is not an image that can be read: {first_line(error)}") from None
        square = center_crop(pil_to_tensor(picture), [min(picture.size)] * 2)
        images.append(resize(square, [SIDE, SIDE], antialias=True).float() / 255)
    return torch.stack(images)
