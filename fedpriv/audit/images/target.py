"""The target of an attack: one step on chosen images, or a message of a run; with the true images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation, Public, ThreatModel
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.attempts import ImageAttempt, Images, observations
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.explained import ONE_STEP, SIMULATED, Agreement, as_one_step, explained
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.same_net import on_same_net
from fedpriv.attacks.lab.trial import Attacker, AttemptT, Mounted, NotTried, Trial, add_same_net_control, difference_reasons
from fedpriv.attacks.scoring.baselines import baselines
from fedpriv.attacks.scoring.scores import counts, mse, threshold_above, under
from fedpriv.audit.fitting import unfit
from fedpriv.audit.images.pairs import begun, beside_texts, knows_texts, of_images
from fedpriv.audit.record.base import Message, PublicImages, Record
from fedpriv.audit.record.malicious import Replay, replay
from fedpriv.audit.record.run import RunRecord, public_images
from fedpriv.data.sources import load_dataset
from fedpriv.errors import UsageError, first_line

SIDE = 32
"""Photographs are cropped and scaled to so many pixels a side, the input of the reference victim."""
EXPLAINED = 8
"""Messages that are simulated with the true images."""


@dataclass(frozen=True, kw_only=True)
class Doubts:
    """Why a failure on messages may be no evidence.

    Attributes:
        doubt: why attacks that simulate the clients' steps are inconclusive on these messages; ``None``: the steps explain them.
        doubt_of_one_step: why attacks that read a change as the gradient of one step are inconclusive; ``None``: one step
            explains the messages.
        doubts_all: whether messages that the steps do not explain make all attacks inconclusive. True where the steps are only
            the caller's claim: such a message may be of other samples.
        on_same_net: the control of an attacker on the attacked net, at the weights of the messages
            (:mod:`fedpriv.attacks.lab.same_net`); ``None``: the net is that of the controls.
    """

    doubt: Callable[[], str | None] = lambda: None
    doubts_all: bool = False
    doubt_of_one_step: Callable[[], str | None] = lambda: None
    on_same_net: Callable[[Attacker[Any]], Control | None] = lambda attacker: None

    def with_doubts(self, attempt: AttemptT, trial: Trial | None = None) -> AttemptT:
        """Mark a failed attempt inconclusive if its simulated steps are not the clients', or if it also fails on undefended
        messages of this net.

        Closed forms need the control on the same net, too: below a last layer that is still zero, as in many new nets, no
        gradient shows anything, and messages of later rounds may show everything. Attacks of a malicious server do not need this
        control: they target one class, which the control's samples may not have. Once the budget is spent, it is not begun.
        """
        attack = attempt.attacker.attack
        if attempt.reconstruction is None:
            return attempt
        doubt = self.doubt() if self.doubts_all or attack.simulates else None
        if doubt is None and attack.one_step:
            doubt = self.doubt_of_one_step()
        if doubt is not None:
            return replace(attempt, reasons=(*attempt.reasons, *difference_reasons([doubt])))
        needs_control = attempt.is_evidence and not attack.is_malicious() and self.failed(attempt)
        if needs_control and trial is not None and (over := trial.cut()) is not None:
            reason = Reason(over.kind, f"it was not tried on undefended messages of this net ({over})")
            return replace(attempt, reasons=(*attempt.reasons, reason))
        return add_same_net_control(attempt, self.on_same_net(attempt.attacker) if needs_control else None)

    def failed(self, attempt: Any) -> bool:
        """Whether an attempt recovered nothing, or no more than guesses."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Target(Doubts, Images):
    """The messages to attack, and the truth behind them. Attackers who have public images get those of the baselines.

    Attributes:
        title: a description for tables.
        masked: number of hidden fully connected layers at the end.
        statistics: statistics of the messages that are gradients, by name, each a target of its own: a defence of the model may
            leave them as they are.
        reference, reference_labels: public images of the same kind, for the baselines; ``None`` where there are none.
        note: a further note; for pairs, on the texts.
    """

    title: str
    masked: int = 0
    reference: Tensor | None = None
    reference_labels: Tensor | None = None
    statistics: Mapping[str, Target] = field(default_factory=dict)
    note: str | None = None

    def messages(self, attacker: Attacker[ImageAttack]) -> list[list[Observation]]:
        """See :meth:`fedpriv.attacks.lab.trial.Task.messages`."""
        try:
            return super().messages(attacker)
        except UsageError as error:
            raise NotTried(Reason("does not apply", str(error))) from None

    def judge(self, attacker: Attacker[ImageAttack], mounted: Mounted[Reconstruction], trial: Trial) -> ImageAttempt:
        """The scores, and :meth:`with_doubts`."""
        attempt = self.with_doubts(super().judge(attacker, mounted, trial), trial)
        return attempt if mounted.reach is None else replace(attempt, reasons=difference_reasons([mounted.reach.text]))

    def failed(self, attempt: ImageAttempt) -> bool:
        """See :meth:`Doubts.failed`."""
        return (attempt.recovered is not None and not attempt.recovered.successes) or self.guessed(attempt)

    def guessed(self, attempt: ImageAttempt) -> bool:
        """Whether an attempt recovered no more images than the baselines."""
        if attempt.scores is None:
            return False
        rates = [counts(under(errors)) for errors in self.guesses().values()]
        return (
            threshold_above(counts(attempt.scores.recovered), {limit: max(rate[limit] for rate in rates) for limit in rates[0]})
            is None
        )

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
        UsageError: for pairs, see :func:`fedpriv.audit.images.pairs.of_images`.
    """

    def target(what: str, masked: int) -> Target:
        return _of_source(Source(record, messages, what), title, images, labels, masked, views)

    whole = record.observation(messages[0], ThreatModel())
    masked, statistics = hidden_layers(of_images(record, messages[0], whole)), dict[str, Target]()
    for what in record.gradients(messages[0]):
        try:
            hidden = hidden_layers(Source(record, messages, what).read(messages[0], ThreatModel()))
        except UsageError:  # every attack on it will say so
            hidden = masked
        statistics[what] = target(what, hidden)
    return replace(target("", masked), statistics=statistics, note=beside_texts(record, messages[0], whole))


@dataclass(frozen=True)
class Source:
    """What of messages is attacked: a statistic or, where ``what`` is empty, the model's change. Of pairs, the net on images
    alone (:mod:`fedpriv.audit.images.pairs`)."""

    record: Record
    messages: Sequence[Message]
    what: str

    def read(self, message: Message, threat: ThreatModel) -> Observation:
        """A message as the attacker sees it; :class:`UsageError` where it cannot be read."""
        return of_images(self.record, message, self.record.observation(message, threat, self.what))

    def started(self, message: Message) -> Mapping[str, Tensor] | None:
        """The weights at which the client began, by the names of what is read, hidden ones too; ``None``: they were not kept."""
        weights = self.record.started(message, self.what)
        if weights is None or "text" not in self.record.modalities:
            return weights
        return begun(self.read(message, ThreatModel()), weights)


def _of_source(source: Source, title: str, images: Tensor, labels: Tensor, masked: int, views: Tensor | None) -> Target:
    record, first = source.record, source.messages[0]
    reference = record.public_images()
    steps = record.steps_behind(first, source.what) if source.what else None
    is_mean = steps is not None and steps.steps > 1  # read as the gradient of one step

    def observe(threat: ThreatModel) -> list[Observation]:
        return granted([source.read(message, threat) for message in source.messages], reference)

    @cache
    def doubt(one_step: bool) -> str | None:
        if not knows_texts(source.read(first, ThreatModel())):  # the text's features are unknown, so this net matches no real one
            return None
        return unexplained(source, images if views is None else views[:, -1], labels, one_step, is_mean)

    @cache
    def control(attacker: Attacker[ImageAttack]) -> Control | None:
        # In place of private layers that were not kept, those that every client began with: any are as good for this.
        weights = source.started(first) or source.started(replace(first, first_update=True))
        if weights is None:
            return None
        return on_same_net(attacker.attack, observe(attacker.threat)[0], weights, record.seed, steps)

    return Target(
        images, labels, observe, views, title=title, masked=masked, reference=reference[0], reference_labels=reference[1],
        doubt=partial(doubt, is_mean), doubt_of_one_step=partial(doubt, True), doubts_all=record.declared, on_same_net=control,
    )  # fmt: skip


def hidden_layers(seen: Observation) -> int:
    """The number of fully connected layers at the end that a message hides; a hidden end without any counts as one."""
    shown = any(name.startswith("top.") for name in seen.shared)
    return 0 if shown else max(1, sum(isinstance(module, nn.Linear) for module in seen.net.top.modules()))


def unexplained(source: Source, images: Tensor, labels: Tensor, one_step: bool, is_mean: bool) -> str | None:
    """Why attacks that simulate the clients' steps cannot succeed; ``None``: with the true images (or rows) the steps give the
    messages, or noise hides whether they do. Of many messages, the first :data:`EXPLAINED` are simulated."""
    size, agreements = len(images) // len(source.messages), list[Agreement]()
    samples = zip(source.messages[:EXPLAINED], torch.split(images, size), torch.split(labels, size), strict=False)
    for message, true_images, true_labels in samples:
        seen = source.read(message, ThreatModel())
        observation = as_one_step(seen) if one_step and not is_mean else seen
        if observation is None:
            continue
        weights = source.started(message)
        if weights is None:
            return "that its simulation gives the message cannot be told, as the client's private layers were not kept"
        agreement = explained(observation, weights, true_images, true_labels, one_step)
        agreements += [] if agreement is None else [agreement]
    what = ONE_STEP if one_step else SIMULATED
    doubts = [doubt for agreement in agreements if (doubt := agreement.doubt_of(what)) is not None]
    return doubts[0] if len(doubts) > len(agreements) // 4 else None


def granted(observed: list[Observation], reference: PublicImages) -> list[Observation]:
    """The messages with the public images ``reference`` and their labels, where the threat model gives them."""
    images, labels = reference
    if images is None or labels is None or not observed[0].threat.public:
        return observed
    return [replace(seen, public=Public(images, labels)) for seen in observed]


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
