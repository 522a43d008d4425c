"""Attempts of attacks on images: which attacks and controls are run, and how their reconstructions are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.attack import ImageAttack, for_audits, image_attack, image_attacks
from fedpriv.attacks.core.by_name import nearest
from fedpriv.attacks.core.observation import Observation, ThreatModel, batch_norms
from fedpriv.attacks.core.options import defaults_of, taken
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.image_controls import controls
from fedpriv.attacks.lab.nets import observe, reference_victim
from fedpriv.attacks.lab.trial import Attacker, Mounted, NotTried, SampleAttempt, SampleTask, Trial, difference_reasons
from fedpriv.attacks.scoring.baselines import nearest as nearest_public
from fedpriv.attacks.scoring.scores import (
    RECOVERED,
    Rate,
    Scores,
    closest,
    counts,
    match,
    mse,
    score,
    threshold_above,
    under,
    wilson,
)

LARGEST = 32
"""Largest side of the controls' images: controls on larger ones would take longer than the attacks."""


@dataclass(frozen=True)
class ImageAttempt(SampleAttempt[ImageAttack, Reconstruction, Scores]):
    """The result of one attacker on images.

    Attributes:
        true: what they are scored against ``(n, C, H, W)``: the originals or, where clients augment, the nearest views of them.
        copy_successes: threshold -> how many images copies of the nearest public ones would recover; ``None`` where the attacker
            knows no public images.
        cut: why it was not run on the images after these.
    """

    true: Tensor | None = None
    copy_successes: Mapping[float, int] | None = None
    cut: Reason | None = None

    @property
    def images(self) -> Tensor | None:
        """The reconstructed images; NaN becomes grey."""
        return None if self.raw is None else self.raw.nan_to_num(nan=0.5)

    @property
    def recovered(self) -> Rate | None:
        """How many images it recovered; if it knows public images, at the loosest threshold at which it recovers more images than
        copies would."""
        if self.scores is None:
            return None
        rates = self.scores.recovered
        if self.copy_successes is None:
            return rates[RECOVERED]
        limit = threshold_above(counts(rates), self.copy_successes)
        return wilson(0, rates[RECOVERED].n) if limit is None else rates[limit]


@dataclass(frozen=True)
class Images(SampleTask[ImageAttack, Reconstruction, ImageAttempt]):
    """Images to attack, and the messages on them.

    Attributes:
        images: the true ones ``(n, C, H, W)`` in [0, 1].
        views: each image and its augmented views that clients trained on ``(n, V, C, H, W)``; ``None``: they do not augment.
    """

    images: Tensor
    labels: Tensor
    observe: Callable[[ThreatModel], list[Observation]]
    views: Tensor | None = None

    def controls(self, attacker: Attacker[ImageAttack], part: Sequence[Observation], seed: int) -> tuple[Control, ...]:
        return run_controls(attacker, seed, part, self.images)

    def not_tried(self, attacker: Attacker[ImageAttack], reason: NotTried) -> ImageAttempt:
        return ImageAttempt(attacker, inapplicable=reason.reason, controls=reason.controls)

    def judge(self, attacker: Attacker[ImageAttack], mounted: Mounted[Reconstruction], trial: Trial) -> ImageAttempt:
        """Score the images against the true ones, or the nearest of their views.

        A gradient does not determine the order of a batch: where a message stands for several images, reconstructions are matched
        to them (:func:`fedpriv.attacks.scoring.scores.match`), and missing ones are scored as grey images that are no recovery.
        Where a message states no number of images, an attack may return more images than there are. Those that match none have no
        part in the scores, so the share recovered is the recall; the precision is the number recovered over the rows of
        ``reconstruction.raw`` that are not NaN.
        """
        (result,), observed, copy_successes = mounted.results, mounted.first, None
        assert isinstance(result, Reconstruction), "the one part was not refused"
        views = self.images[:, None] if self.views is None else self.views
        raw, guessed = _in_order(result, views, len(observed))
        true, public = closest(raw, views), observed[0].public
        if public is not None:
            near = torch.stack([mse(nearest_public(view, public.images), view) for view in views.unbind(1)])
            copy_successes = counts(under(near.amin(0)))
        clauses = (
            *observed[0].control_differences,
            *harder(attacker.attack, observed[0], self.labels.view(len(observed), -1)),
            *_empty(attacker.attack, observed, result),
        )
        return ImageAttempt(
            attacker, result, score(raw, true, guessed, self.labels), controls=mounted.controls,
            reasons=difference_reasons(clauses), raw=raw, true=true, copy_successes=copy_successes,
        )  # fmt: skip


def attempt(
    attacker: Attacker[ImageAttack], observed: list[Observation], images: Tensor, labels: Tensor, seed: int
) -> ImageAttempt:
    """Run an attack on messages of images, without its controls, and score it; see :meth:`Images.judge`."""
    return Images(images, labels, lambda threat: observed).run(attacker, Trial(seed, controls=False, in_reach=False))


def attackers(name: str, masked: int, options: dict[str, Any] | None = None) -> list[Attacker[ImageAttack]]:
    """The attackers to report for an attack by name.

    That is the attack itself. If the attack needs the last layer and ``masked`` linear layers hide it, all attackers of
    :func:`suited` are returned, with the options of audits: a defence is only as good as the best attack on it.

    Args:
        options: of the attack; with several attackers, of those that have them.

    Raises:
        KeyError: there is no such attack, or none of them has such an option.
        TypeError: the value of an option is not valid.
    """
    options, named = options or {}, image_attack(name)
    replaced = masked and named.head == "shared"
    chosen = suited(masked, published=name.endswith("published")) if replaced else [Attacker.of(named, {})]
    known = set[str]().union(*(defaults_of(attacker.attack) for attacker in chosen))
    for option in options.keys() - known:
        raise KeyError(f"{name} has no option {option!r}; {nearest(option, known)}")
    changed = []
    for attack in (attacker.attack for attacker in chosen):
        given = {option: options[option] for option in defaults_of(attack).keys() & options.keys()}
        changed.append(Attacker.of(type(attack), {**vars(attack), **taken(attack, given)}))
    return changed


def suited(masked: int, published: bool = False) -> list[Attacker[ImageAttack]]:
    """The attackers of audits for messages whose last ``masked`` linear layers are hidden; closed forms first.

    Args:
        published: attacks that assume a hidden head run as in their papers.
    """
    naive, chosen = {"assumed": masked, "published": published} if masked else {}, []
    for kind, options in for_audits(image_attacks().values(), masked > 0):
        own = {option: value for option, value in naive.items() if defaults_of(kind).get(option) is not None}
        chosen.append(Attacker.of(kind, {**own, **options}))
    return chosen


def run_controls(
    attacker: Attacker[ImageAttack], seed: int, observed: Sequence[Observation] = (), images: Tensor | None = None
) -> tuple[Control, ...]:
    """The controls of an attack with its own options; none where it declares no setting for them.

    Args:
        observed: the messages to attack. The controls' victim hides the last layer if the messages do, takes as many local steps
            as the messages' client if the attack simulates steps, and has BatchNorm if the messages' net normalises by the batch.
        images: the images behind all messages ``(n, C, H, W)``. The controls have as many images per message as the target, up to
            what the attack declares, and images of the same size, up to :data:`LARGEST`.
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
        behind, side = len(images) // len(observed), max(images.shape[2:])
        setting = replace(setting, per_message=min(behind, attack.max_batch or behind), side=min(side, LARGEST))
    return controls(attack, setting, seed)


def joined(attempts: Sequence[ImageAttempt], labels: Tensor) -> ImageAttempt:
    """Merge the attempts of one attacker on consecutive parts of the images, each with a result."""
    parts = [part.reconstruction for part in attempts if part.reconstruction is not None]
    raw = torch.cat([part.raw for part in attempts if part.raw is not None])
    true = torch.cat([part.true for part in attempts if part.true is not None])
    whole = Reconstruction(
        curve=pad_sequence([curve for part in parts for curve in part.curve.T], padding_value=torch.nan),
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        **{
            name: torch.cat([getattr(part, name) for part in parts])
            for name in ("raw", "labels", "loss", "iterations", "restart")
        },
    )
    copies = [part.copy_successes for part in attempts if part.copy_successes is not None]
    return replace(
        attempts[0],
        reconstruction=whole,
        scores=score(raw, true, whole.labels, labels),
        raw=raw,
        true=true,
        copy_successes={limit: sum(part[limit] for part in copies) for limit in copies[0]} if copies else None,
        reasons=tuple(dict.fromkeys(reason for part in attempts for reason in part.reasons)),
    )


def observations(images: Tensor, labels: Tensor, threat: ThreatModel, masked: int, classes: int, seed: int) -> list[Observation]:
    """One gradient step on each image ``(n, C, H, W)`` by a reference victim drawn for it, the last ``masked`` layers hidden.

    Each image has its own victim, as success depends on the net: with a single net, a rate would be that net's.
    """
    channels, height, width = images.shape[1:]
    seeds = torch.randint(2**31, (len(images),), generator=torch.Generator().manual_seed(seed)).tolist()
    nets = [reference_victim(own, classes, max(1, masked), masked, channels, height, width) for own in seeds]
    triples = zip(nets, torch.split(images, 1), torch.split(labels, 1), strict=True)
    return [observe(net, image, label, threat, hidden=masked > 0) for net, image, label in triples]


def harder(attack: ImageAttack, first: Observation, labels: Tensor) -> Iterator[str]:
    """How messages like the first, with labels ``(messages, n)``, are harder than those of the positive control: clauses."""
    behind = labels.shape[1]
    if first.num_examples is None and behind > 1:
        yield f"messages do not say how many images are behind them ({behind}), and those of its control do"
    if not attack.optimises and attack.exceeds_control(behind):  # an attack that optimises is not run on so many images
        yield f"{behind} images are behind a message, and its control has at most {attack.max_batch}"
    if attack.optimises and not attack.any_labels and any(len(own.unique()) < behind for own in labels):
        yield "images behind a message share classes, and those of its control do not"
    if clause := attack.harder(first):
        yield clause


def _empty(attack: ImageAttack, observed: Sequence[Observation], result: Reconstruction) -> Iterator[str]:
    """A clause where some messages show the attack nothing, so that it had a chance on fewer images than are scored."""
    blank = result.raw.isnan().flatten(1).all(1).view(len(observed), -1).all(1).tolist()
    why = [attack.empty(message) for message, nothing in zip(observed, blank, strict=True) if nothing]
    if clauses := [clause for clause in why if clause is not None]:
        yield f"in {len(clauses)} of {len(observed)} messages {clauses[0]}"


def _in_order(result: Reconstruction, views: Tensor, messages: int) -> tuple[Tensor, Tensor]:
    """Images and labels, matched to the true images ``(n, V, C, H, W)`` within each message.

    All messages have the same number of true images, and the same number of reconstructed ones.
    """
    images = result.raw.clamp(0, 1)
    size, shown = len(views) // messages, len(images) // messages
    if size == shown == 1:
        return images, result.labels
    raw = torch.full((messages, max(size, shown), *views.shape[2:]), torch.nan).to(views)
    labels = torch.full(raw.shape[:2], -1)
    raw[:, :shown], labels[:, :shown] = images.view(messages, shown, *images.shape[1:]).to(raw), result.labels.view(messages, -1)
    order = torch.stack([match(own, true) for own, true in zip(raw, torch.split(views, size), strict=True)])
    at = torch.arange(messages)[:, None]
    return raw[at, order].flatten(0, 1), labels[at, order].flatten()
