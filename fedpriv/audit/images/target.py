"""The target of an attack: one step on chosen images, or a message of a run; with the true images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation, Public, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.attempts import ImageAttempt, Images, observations
from fedpriv.attacks.lab.explained import ONE_STEP, SIMULATED, Agreement, as_one_step, explained
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.kept import Control
from fedpriv.attacks.lab.same_net import on_same_net
from fedpriv.attacks.lab.trial import Attacker, Mounted, NotTried, Trial, unlike, with_same_net
from fedpriv.attacks.scoring.baselines import baselines
from fedpriv.attacks.scoring.scores import beyond, counts, mse, under
from fedpriv.audit.fitting import unfit
from fedpriv.audit.images.pairs import begun, beside_texts, knows_texts, of_images
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.malicious import Replay, replay
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.statistics import as_gradient, gradient_like, named, steps_behind
from fedpriv.data.sources import load_dataset
from fedpriv.errors import UsageError, first_line

SIDE = 32
"""Photographs are cropped and scaled to so many pixels a side, the input of the reference victim."""
HELD_AGAINST = 8
"""Messages whose true images are tried in the simulation of attacks."""
REFERENCES = 2000
"""Largest number of public images in the baselines; with more, the nearest one is hardly nearer."""


@dataclass(frozen=True, kw_only=True)
class Target(Images):
    """The messages to attack, and the truth behind them. Attackers who have public images get those of the baselines.

    Attributes:
        title: a description for tables.
        masked: number of hidden fully connected layers at the end.
        statistics: statistics of the messages that are gradients, by name, each a target of its own: a defence of the model may
            leave them as they are.
        reference, reference_labels: public images of the same kind, for the baselines; ``None`` where there are none.
        note: a further remark; for pairs, on the texts.
        doubt: why attacks that simulate the clients' steps say nothing on these messages; ``None``: they explain them.
        doubt_of_one_step: why attacks that read a change as the gradient of one step say nothing on these messages.
        doubts_all: whether others say nothing then, either: where the steps and their loss are given, a message that they do not
            explain may be of other images.
        on_same_net: the control of an attacker on the attacked net, at the weights of the messages
            (:mod:`fedpriv.attacks.lab.same_net`); ``None``: the net is that of the controls.
    """

    title: str
    masked: int = 0
    reference: Tensor | None = None
    reference_labels: Tensor | None = None
    statistics: Mapping[str, Target] = field(default_factory=dict)
    note: str | None = None
    doubt: Callable[[], str | None] = lambda: None
    doubts_all: bool = False
    doubt_of_one_step: Callable[[], str | None] = lambda: None
    on_same_net: Callable[[Attacker[ImageAttack]], Control | None] = lambda attacker: None

    def messages(self, attacker: Attacker[ImageAttack]) -> list[list[Observation]]:
        """See :meth:`fedpriv.attacks.lab.trial.Task.messages`."""
        try:
            return super().messages(attacker)
        except UsageError as error:
            raise NotTried(Reason("does not apply", str(error))) from None

    def judged(self, attacker: Attacker[ImageAttack], mounted: Mounted[Reconstruction], trial: Trial) -> ImageAttempt:
        """The scores, and :meth:`held_against`."""
        made = self.held_against(super().judged(attacker, mounted, trial))
        return made if mounted.reach is None else replace(made, reasons=unlike([mounted.reach.text]))

    def held_against(self, made: ImageAttempt) -> ImageAttempt:
        """An attempt, of which a failure is no evidence where the attack simulates steps that are not the clients', or recovers
        nothing from undefended messages of the same net either.

        Closed forms are held against the net, too: below a last layer that is still zero, as many nets begin, no gradient shows
        anything, and later ones may show all. A malicious server is not: it aims at one class, which the control's images may not
        have.
        """
        attack = made.attacker.attack
        if made.found is None:
            return made
        doubt = self.doubt() if self.doubts_all or attack.simulates else None
        if doubt is None and attack.one_step:
            doubt = self.doubt_of_one_step()
        if doubt is not None:
            return replace(made, reasons=(*made.reasons, *unlike([doubt])))
        failed = (made.recovered is not None and not made.recovered.successes) or self.guessed(made)
        asked = made.is_evidence and not attack.is_malicious() and failed
        return with_same_net(made, self.on_same_net(made.attacker) if asked else None)

    def guessed(self, made: ImageAttempt) -> bool:
        """Whether an attempt recovered no more images than one of the baselines would count for."""
        if made.scores is None:
            return False
        rates = [counts(under(errors)) for errors in self.guesses().values()]
        return beyond(counts(made.scores.recovered), {limit: max(one[limit] for one in rates) for limit in rates[0]}) is None

    def guesses(self) -> dict[str, Tensor]:
        """Errors ``(n,)`` of the baselines, by name; of each image the least over its views, as for attacks."""
        views = self.images[:, None] if self.views is None else self.views
        of_each = [(view, baselines(view, self.labels, self.reference, self.reference_labels)) for view in views.unbind(1)]
        return {name: torch.stack([mse(made[name], view) for view, made in of_each]).amin(0) for name in of_each[0][1]}

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


def message(evidence: RunRecord, round: int, client: int) -> Target:
    """A client's real upload in a round of a run.

    Raises:
        UsageError: the run was not trained on images, the client has none, or see :func:`of_messages`.
    """
    if "image" not in evidence.modalities:
        raise unfit(str(evidence.folder.path), "texts" if "text" in evidence.modalities else "rows of a table")
    if evidence.federation.data.lacking(client) == "image":
        raise UsageError(f"client {client} of {evidence.folder.path} has texts alone")
    truth = evidence.truth(client)
    title = f"round {round}, client {client} of {evidence.folder.path.name}: {len(truth.labels)} training images"
    views = evidence.views(round, client, truth.images)
    return of_messages(evidence, title, [evidence.message(round, client)], truth.images, truth.labels, views)


def altered(evidence: RunRecord, round: int, client: int, attack: ImageAttack, seed: int) -> tuple[Target, Replay]:
    """What a client answers to the download of a round, altered by an attack (:func:`fedpriv.audit.record.malicious.replay`).

    Raises:
        UsageError, FedprivError: see :func:`message` and the replay.
    """
    honest = message(evidence, round, client)
    assert honest.reference is not None
    played = replay(evidence, round, client, attack, honest.reference, seed)
    title = f"{honest.title}; download altered by {attack.name}"
    views = None if played.recorder is None else played.recorder.views(honest.images)
    return of_messages(evidence, title, [played.message], honest.images, honest.labels, views), played


def of_messages(
    evidence: RunRecord,
    title: str,
    found: Sequence[Message],
    images: Tensor,
    labels: Tensor,
    views: Tensor | None,
) -> Target:
    """Messages of a run, each of which stands for the same number of the images ``(n, C, H, W)``.

    Args:
        views: ``(n, V, C, H, W)``, see :class:`Target`.

    Raises:
        UsageError: for pairs, see :func:`fedpriv.audit.images.pairs.of_images`.
    """

    def target(of: Seen, masked: int) -> Target:
        return _of_seen(evidence, title, found, images, labels, masked, views, of)

    whole = evidence.observation(found[0], ThreatModel())
    masked, statistics = _hidden(of_images(evidence, found[0], whole)), {}
    for what in gradient_like(found[0]):
        own = _on_images(evidence, of_statistic(evidence, found[0], what))
        try:
            of_own = _hidden(own.read(found[0], ThreatModel()))
        except UsageError:  # every attack on it will say so
            of_own = masked
        statistics[what] = target(own, of_own)
    change = _on_images(evidence, Seen(evidence.attacker.observation, evidence.attacker.started))
    return replace(target(change, masked), statistics=statistics, note=beside_texts(evidence, found[0], whole))


@dataclass(frozen=True)
class Seen:
    """What of messages is attacked.

    Attributes:
        read: a message and a threat model -> what the attacker sees; :class:`UsageError` where it cannot be read.
        started: a message -> the weights at which the client began, by the names of what is read, hidden ones too; ``None``: they
            were not kept.
        steps: the client's steps of whose gradients what is read is the mean; ``None``: it is no such mean.
    """

    read: Callable[[Message, ThreatModel], Observation]
    started: Callable[[Message], Mapping[str, Tensor] | None]
    steps: Schedule | None = None

    @property
    def of_several_steps(self) -> bool:
        """Whether it is read as the gradient of one step, and is a mean of several."""
        return self.steps is not None and self.steps.steps > 1


def of_statistic(evidence: RunRecord, first: Message, what: str) -> Seen:
    """A statistic of messages like the first that is a gradient."""
    return Seen(
        lambda message, threat: as_gradient(evidence, message, what, threat),
        lambda message: evidence.attacker.started(message, named(message.uploaded, what)),
        steps_behind(evidence, first, what),
    )


def _on_images(evidence: RunRecord, of: Seen) -> Seen:
    """The same for the net on images alone, where a run is of pairs (:mod:`fedpriv.audit.images.pairs`)."""
    if "text" not in evidence.modalities:
        return of

    def read(message: Message, threat: ThreatModel) -> Observation:
        return of_images(evidence, message, of.read(message, threat))

    def started(message: Message) -> Mapping[str, Tensor] | None:
        weights = of.started(message)
        return None if weights is None else begun(read(message, ThreatModel()), weights)

    return replace(of, read=read, started=started)


def _of_seen(
    evidence: RunRecord, title: str, found: Sequence[Message], images: Tensor, labels: Tensor, masked: int, views: Tensor | None,
    of: Seen,
) -> Target:  # fmt: skip
    """The model's change, or a statistic, of messages that stand for the same number of the images each."""
    dataset = evidence.federation.dataset
    reference = public_images(dataset.test_images, dataset.test_labels)

    def observe(threat: ThreatModel) -> list[Observation]:
        return granted([of.read(one, threat) for one in found], reference)

    @cache
    def doubt(one_step: bool) -> str | None:
        if not knows_texts(of.read(found[0], ThreatModel())):  # the net that it is given stands for none
            return None
        return _unexplained(of, found, images if views is None else views[:, -1], labels, one_step)

    @cache
    def control(attacker: Attacker[ImageAttack]) -> Control | None:
        # In place of private layers that were not kept, those that every client began with: any are as good for this.
        weights = of.started(found[0]) or of.started(replace(found[0], first_update=True))
        if weights is None:
            return None
        return on_same_net(attacker.attack, observe(attacker.threat)[0], weights, evidence.config.seed, of.steps)

    return Target(
        images, labels, observe, views, title=title, masked=masked, reference=reference[0], reference_labels=reference[1],
        doubt=partial(doubt, of.of_several_steps), doubt_of_one_step=partial(doubt, True), on_same_net=control,
    )  # fmt: skip


def _hidden(seen: Observation) -> int:
    """The number of fully connected layers at the end that a message hides."""
    shown = any(name.startswith("top.") for name in seen.shared)
    return 0 if shown else sum(isinstance(module, nn.Linear) for module in seen.net.top.modules())


def _unexplained(of: Seen, found: Sequence[Message], images: Tensor, labels: Tensor, one_step: bool) -> str | None:
    """Why attacks that simulate the clients' steps cannot succeed; ``None``: with the true images the steps give the messages, or
    noise hides whether they do. Of many messages, the first :data:`HELD_AGAINST`."""
    size, agreements = len(images) // len(found), list[Agreement]()
    for message, own, true in zip(found[:HELD_AGAINST], torch.split(images, size), torch.split(labels, size), strict=False):
        seen = of.read(message, ThreatModel())
        observation = as_one_step(seen) if one_step and not of.of_several_steps else seen
        if observation is None:
            continue
        weights = of.started(message)
        if weights is None:
            return "that its simulation gives the message cannot be told, as the client's private layers were not kept"
        agreement = explained(observation, weights, own, true, one_step)
        agreements += [] if agreement is None else [agreement]
    what = ONE_STEP if one_step else SIMULATED
    doubts = [doubt for one in agreements if (doubt := one.doubt_of(what)) is not None]
    return doubts[0] if len(doubts) > len(agreements) // 4 else None


def public_images(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The first :data:`REFERENCES` of uint8 images ``(N, C, H, W)`` in [0, 1], and their labels."""
    return images[:REFERENCES].float().cpu() / 255, labels[:REFERENCES].cpu()


def granted(observed: list[Observation], reference: tuple[Tensor, Tensor] | tuple[None, None]) -> list[Observation]:
    """The messages with the public images ``reference`` and their labels, where the threat model gives them."""
    images, labels = reference
    if images is None or labels is None or not observed[0].threat.public:
        return observed
    return [replace(one, public=Public(images, labels)) for one in observed]


def _one_step(
    title: str, images: Tensor, labels: Tensor, classes: int, masked: int, seed: int,
    reference: tuple[Tensor, Tensor] | tuple[None, None] = (None, None),
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
    found = []
    for path in files:
        try:
            picture = Image.open(path).convert("RGB")
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(f"--images: {path} is not an image that can be read: {first_line(error)}") from None
        square = center_crop(pil_to_tensor(picture), [min(picture.size)] * 2)
        found.append(resize(square, [SIDE, SIDE], antialias=True).float() / 255)
    return torch.stack(found)
