"""Attacks on chosen images through a reference victim, and attacks with their controls: which can be tried, what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.attack import ImageAttack, image_attack, image_attacks
from fedpriv.attacks.core.by_name import nearest
from fedpriv.attacks.core.observation import Observation, ThreatModel, batch_norms
from fedpriv.attacks.core.options import defaults_of, taken
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.controls import Control, controls
from fedpriv.attacks.lab.nets import observe, reference_victim
from fedpriv.attacks.lab.trial import NO_PROMISE, Attacker, Attempt, Mounted, NotTried, Task, Trial, unlike
from fedpriv.attacks.scoring.baselines import nearest as nearest_public
from fedpriv.attacks.scoring.scores import (
    RECOVERED,
    Rate,
    Scores,
    beyond,
    closest,
    counts,
    match,
    mse,
    score,
    under,
    wilson,
)

LARGEST = 32
"""Largest side of the controls' images: controls on larger ones would take longer than the attacks."""


@dataclass(frozen=True)
class ImageAttempt(Attempt[ImageAttack, Reconstruction, Scores]):
    """One attacker's result on images.

    Attributes:
        raw: its reconstructions ``(n, C, H, W)``, in the order of the originals; NaN where it found none.
        true: what they are scored against ``(n, C, H, W)``: the originals or, where clients augment, the nearest views of them.
        copies: threshold -> how many of the images a copy of the nearest public one would count for, where the attacker has
            public images.
        cut: why it was not tried on the images after these.
    """

    raw: Tensor | None = None
    true: Tensor | None = None
    copies: Mapping[float, int] | None = None
    cut: Reason | None = None

    @property
    def images(self) -> Tensor | None:
        """The reconstructions; NaN becomes grey."""
        return None if self.raw is None else self.raw.nan_to_num(nan=0.5)

    @property
    def recovered(self) -> Rate | None:
        """How many images it recovered; if it knows public images, at a threshold at which these are more than copies."""
        if self.scores is None:
            return None
        rates = self.scores.recovered
        if self.copies is None:
            return rates[RECOVERED]
        limit = beyond(counts(rates), self.copies)
        return wilson(0, rates[RECOVERED].n) if limit is None else rates[limit]

    @property
    def promises(self) -> bool:
        """Whether it passed a positive control."""
        return any(control.name == "positive" and control.passed for control in self.controls)

    @property
    def doubts(self) -> tuple[Reason, ...]:
        """Why a failure is no evidence; empty: it is, as the attack passed a positive control, on messages like these."""
        return self.reasons or (() if self.promises else (NO_PROMISE,))


@dataclass(frozen=True)
class Images(Task[ImageAttack, Reconstruction, ImageAttempt]):
    """Images to attack, and the messages on them.

    Attributes:
        images, labels: the truth, ``(n, C, H, W)`` in [0, 1] and ``(n,)``; attacks are scored against it and never see it.
        observe: threat model -> the messages; together they stand for the ``n`` images, in order.
        views: ``(n, V, C, H, W)`` each image and its augmented views that clients trained on; ``None``: they do not augment.
    """

    images: Tensor
    labels: Tensor
    observe: Callable[[ThreatModel], list[Observation]]
    views: Tensor | None = None

    def messages(self, attacker: Attacker[ImageAttack]) -> list[list[Observation]]:
        """All messages in one part: many together cost less."""
        return [self.observe(attacker.threat)]

    def each(self, part: Sequence[Observation]) -> int:
        """See :meth:`Task.each`."""
        return len(self.images) // len(part)

    def controls(self, attacker: Attacker[ImageAttack], part: Sequence[Observation], seed: int) -> tuple[Control, ...]:
        """See :func:`run_controls`."""
        return run_controls(attacker, seed, part, self.images)

    def not_tried(self, attacker: Attacker[ImageAttack], reason: NotTried) -> ImageAttempt:
        """See :meth:`Task.not_tried`."""
        return ImageAttempt(attacker, inapplicable=reason.reason, controls=reason.controls)

    def judged(self, attacker: Attacker[ImageAttack], mounted: Mounted[Reconstruction], trial: Trial) -> ImageAttempt:
        """Scores against the true images, or the nearest of their views.

        A gradient does not determine the order of a batch: where a message stands for several images, reconstructions are matched
        to them (:func:`fedpriv.attacks.scoring.scores.match`), and missing ones are scored as grey images that are no recovery.
        Where a message states no number of images, an attack may show more than there are: those that match none have no part in
        the scores, so that the share recovered is the recall; the precision is the number recovered over the rows of
        ``found.raw`` that are not NaN.
        """
        (found,), observed, copies = mounted.found, mounted.first, None
        assert isinstance(found, Reconstruction), "the one part was not refused"
        views = self.images[:, None] if self.views is None else self.views
        made, guessed = _in_order(found, views, len(observed))
        true, public = closest(made, views), observed[0].public
        if public is not None:
            near = torch.stack([mse(nearest_public(view, public.images), view) for view in views.unbind(1)])
            copies = counts(under(near.amin(0)))
        clauses = (
            *observed[0].unlike,
            *harder(attacker.attack, observed[0], self.labels.view(len(observed), -1)),
            *_empty(attacker.attack, observed, found),
        )
        return ImageAttempt(
            attacker, found, score(made, true, guessed, self.labels), controls=mounted.controls, reasons=unlike(clauses),
            raw=made, true=true, copies=copies,
        )  # fmt: skip


def attempt(
    attacker: Attacker[ImageAttack], observed: list[Observation], images: Tensor, labels: Tensor, seed: int
) -> ImageAttempt:
    """Mount an attack on messages of images, without its controls, and score it; see :meth:`Images.judged`."""
    return Images(images, labels, lambda threat: observed).tried(attacker, Trial(seed, controls=False, in_reach=False))


def attackers(name: str, masked: int, options: dict[str, Any] | None = None) -> list[Attacker[ImageAttack]]:
    """The attackers to report for an attack by name: itself or, where it needs a layer that is masked, all that can be tried.

    With ``masked`` linear layers an attack that needs the last layer is replaced by :func:`suited`, at the budgets of audits: a
    defence is only as good as the best attack on it.

    Args:
        options: of the attack; with several attackers, of those that have them.

    Raises:
        KeyError: there is no such attack, or none of them has such an option.
        TypeError: the value of an option is not valid.
    """
    options, named = options or {}, image_attack(name)
    replaced = masked and named.head == "shared"
    chosen = suited(masked, published=name.endswith("published")) if replaced else [_attacker(named, {})]
    known = set[str]().union(*(defaults_of(one.attack) for one in chosen))
    for option in options.keys() - known:
        raise KeyError(f"{name} has no option {option!r}; {nearest(option, known)}")
    made = []
    for one in chosen:
        given = {option: options[option] for option in defaults_of(one.attack).keys() & options.keys()}
        made.append(_attacker(type(one.attack), {**vars(one.attack), **taken(one.attack, given)}))
    return made


def suited(masked: int, published: bool = False) -> list[Attacker[ImageAttack]]:
    """Every attacker for messages whose last ``masked`` linear layers are hidden, but those that another one supersedes, at its
    usual budget; closed forms first.

    Args:
        published: naive ones as published.
    """
    made, wanted = [], ("either", "hidden" if masked else "shared")
    for kind in sorted(image_attacks().values(), key=lambda kind: (kind.optimises, kind.name)):
        if kind.usual is not None and kind.head in wanted:
            naive = {"assumed": masked, "published": published} if masked else {}
            own = {option: value for option, value in naive.items() if defaults_of(kind).get(option) is not None}
            made.append(_attacker(kind, {**own, **kind.usual}))
    return made


def _attacker(kind: type[ImageAttack], options: dict[str, Any]) -> Attacker[ImageAttack]:
    control = kind.control
    return Attacker(kind(**options), ThreatModel() if control is None else control.threat)


def run_controls(
    attacker: Attacker[ImageAttack], seed: int, observed: Sequence[Observation] = (), images: Tensor | None = None
) -> tuple[Control, ...]:
    """The controls of an attack at its own budget; none where it declares no setting for them.

    Args:
        observed: the messages to attack: the controls' victim hides the last layer where they do, takes as many local steps if
            the attack simulates them, and has BatchNorm where their net normalises by the batch.
        images: the images behind all messages ``(n, C, H, W)``: the controls have as many per message, up to what the attack
            declares, and of the same size, up to :data:`LARGEST`.
    """
    attack = attacker.attack
    if (setting := attack.control) is None:
        return ()
    if observed:
        hides, schedule = not any(name.startswith("top.") for name in observed[0].shared), observed[0].schedule
        setting = replace(setting, masked=max(setting.masked, int(hides)))
        if setting.steps and schedule is not None:
            setting = replace(setting, steps=schedule.steps)
        if attack.optimises and batch_norms(observed[0].net):
            setting = setting.with_batch_norm()
    if observed and images is not None:
        each, side = len(images) // len(observed), max(images.shape[2:])
        setting = replace(setting, at_once=min(each, attack.at_once or each), side=min(side, LARGEST))
    return controls(attack, setting, seed)


def joined(attempts: Sequence[ImageAttempt], labels: Tensor) -> ImageAttempt:
    """Merge attempts of one attacker on consecutive parts of the images, each with a result."""
    found = [one.found for one in attempts if one.found is not None]
    made = torch.cat([one.raw for one in attempts if one.raw is not None])
    true = torch.cat([one.true for one in attempts if one.true is not None])
    whole = Reconstruction(
        raw=torch.cat([one.raw for one in found]),
        labels=torch.cat([one.labels for one in found]),
        loss=torch.cat([one.loss for one in found]),
        curve=pad_sequence([curve for one in found for curve in one.curve.T], padding_value=torch.nan),
        iterations=torch.cat([one.iterations for one in found]),
        restart=torch.cat([one.restart for one in found]),
        cpu_seconds=sum(one.cpu_seconds for one in found),
    )
    copies = None
    if attempts[0].copies is not None:
        copies = {limit: sum(one.copies[limit] for one in attempts if one.copies is not None) for limit in attempts[0].copies}
    scores, reasons = score(made, true, whole.labels, labels), dict.fromkeys(reason for one in attempts for reason in one.reasons)
    return replace(attempts[0], found=whole, scores=scores, raw=made, true=true, copies=copies, reasons=tuple(reasons))


def observations(images: Tensor, labels: Tensor, threat: ThreatModel, masked: int, classes: int, seed: int) -> list[Observation]:
    """One gradient step on each image ``(n, C, H, W)`` by a reference victim drawn for it, the last ``masked`` layers hidden.

    Each image has its own victim, since the success depends on the net: with a single one, a rate would be that net's.
    """
    channels, height, width = images.shape[1:]
    seeds = torch.randint(2**31, (len(images),), generator=torch.Generator().manual_seed(seed)).tolist()
    nets = [reference_victim(own, classes, max(1, masked), masked, channels, height, width) for own in seeds]
    triples = zip(nets, torch.split(images, 1), torch.split(labels, 1), strict=True)
    return [observe(net, image, label, threat, hidden=masked > 0) for net, image, label in triples]


def harder(attack: ImageAttack, first: Observation, labels: Tensor) -> Iterator[str]:
    """In what messages like the first, with labels ``(messages, n)``, are harder than those of the attack's positive control: a
    clause each."""
    each = labels.shape[1]
    if first.num_examples is None and each > 1:
        yield f"messages do not say how many images are behind them ({each}), and those of its control do"
    if not attack.optimises and attack.is_beyond(each):  # an attack that optimises is not tried on as many
        yield f"{each} images are behind a message, and its control has at most {attack.at_once}"
    if attack.optimises and not attack.any_labels and any(len(of.unique()) < each for of in labels):
        yield "images behind a message share classes, and those of its control do not"
    if clause := attack.harder(first):
        yield clause


def _empty(attack: ImageAttack, observed: Sequence[Observation], found: Reconstruction) -> Iterator[str]:
    """A clause where some messages show the attack nothing, so that it was tried on fewer than are counted."""
    nothing = found.raw.isnan().flatten(1).all(1).view(len(observed), -1).all(1).tolist()
    why = [clause for one, blank in zip(observed, nothing, strict=True) if blank and (clause := attack.empty(one)) is not None]
    if why:
        yield f"in {len(why)} of {len(observed)} messages {why[0]}"


def _in_order(found: Reconstruction, views: Tensor, messages: int) -> tuple[Tensor, Tensor]:
    """Reconstructions and labels, matched to the images ``(n, V, C, H, W)`` within each message; all messages have as many of
    either."""
    images = found.raw.clamp(0, 1)
    size, shown = len(views) // messages, len(images) // messages
    if size == shown == 1:
        return images, found.labels
    made = torch.full((messages, max(size, shown), *views.shape[2:]), torch.nan).to(views)
    labels = torch.full(made.shape[:2], -1)
    made[:, :shown], labels[:, :shown] = images.view(messages, shown, *images.shape[1:]).to(made), found.labels.view(messages, -1)
    order = torch.stack([match(own, true) for own, true in zip(made, torch.split(views, size), strict=True)])
    at = torch.arange(messages)[:, None]
    return made[at, order].flatten(0, 1), labels[at, order].flatten()
