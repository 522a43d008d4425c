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
from fedpriv.attacks.core.reconstruction import Inapplicable, Reconstruction, mounting
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.lab.controls import Control, controls
from fedpriv.attacks.lab.nets import observe, reference_victim
from fedpriv.attacks.lab.setting import Setting
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

NO_PROMISE = Reason("no control", "no control shows that it can succeed")
LARGEST = 32
"""Largest side of the controls' images: controls on larger ones would take longer than the attacks."""


@dataclass(frozen=True)
class Attacker:
    """An attack with its options, and what it is assumed to know."""

    attack: ImageAttack
    threat: ThreatModel

    @property
    def name(self) -> str:
        return self.attack.name


Mount = Callable[[Attacker, Sequence[Observation], int], Reconstruction]
"""An attacker, the messages and a seed -> what it reconstructs."""


@dataclass(frozen=True)
class Attempt:
    """One attacker's result on the observations.

    Attributes:
        raw: its reconstructions ``(n, C, H, W)``, in the order of the originals; NaN where it found none.
        true: what they are scored against ``(n, C, H, W)``: the originals or, where clients augment, the nearest views of them.
        inapplicable: why it was not run; then the others are ``None``.
        controls: the controls that it passed, at its budget and with as many images per message.
        copies: threshold -> how many of the images a copy of the nearest public one would count for, where the attacker has
            public images.
        reasons: why a failure is no evidence in spite of its controls.
        cut: why it was not tried on the images after these.
    """

    attacker: Attacker
    found: Reconstruction | None = None
    scores: Scores | None = None
    raw: Tensor | None = None
    true: Tensor | None = None
    inapplicable: Reason | None = None
    controls: tuple[Control, ...] = ()
    copies: Mapping[float, int] | None = None
    reasons: tuple[Reason, ...] = ()
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

    @property
    def is_evidence(self) -> bool:
        """Whether it was run, and a failure is evidence."""
        return self.found is not None and not self.doubts

    def status(self, found: bool) -> Status:
        """What the result says, where the attack ``found`` more than guesses would, or no more."""
        return Status.of(found, self.doubts) if self.inapplicable is None else Status.not_run(self.inapplicable)


def attackers(name: str, masked: int, options: dict[str, Any] | None = None) -> list[Attacker]:
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
    chosen = _suited(masked) if masked and named.head == "shared" else {name: named}
    defaults = {one: defaults_of(kind) for one, kind in chosen.items()}
    known = set().union(*defaults.values())
    for option in options.keys() - known:
        raise KeyError(f"{name} has no option {option!r}; {nearest(option, known)}")
    made = []
    for one, kind in chosen.items():
        naive = {} if one == name else {"assumed": masked, "published": name.endswith("published")}
        own = {option: value for option, value in naive.items() if defaults[one].get(option) is not None}
        if one != name:
            own |= kind.usual or {}
        given = taken(kind, {option: options[option] for option in defaults[one].keys() & options.keys()})
        made.append(_attacker(kind, own | given))
    return made


def suited(masked: int) -> list[Attacker]:
    """Every attacker for messages whose last ``masked`` linear layers are hidden, at its usual budget."""
    made = []
    for kind in _suited(masked).values():
        assumed = {"assumed": masked} if masked and defaults_of(kind).get("assumed") is not None else {}
        made.append(_attacker(kind, {**assumed, **(kind.usual or {})}))
    return made


def _suited(masked: int) -> dict[str, type[ImageAttack]]:
    """By name, closed forms first: attacks for such messages, except those that another attack supersedes."""
    fits = {name: kind for name, kind in image_attacks().items() if kind.usual is not None}
    wanted = ("either", "hidden" if masked else "shared")
    fits = {name: kind for name, kind in fits.items() if kind.head in wanted}
    return dict(sorted(fits.items(), key=lambda item: (item[1].optimises, item[0])))


def _attacker(kind: type[ImageAttack], options: dict[str, Any]) -> Attacker:
    control = kind.control
    return Attacker(kind(**options), ThreatModel() if control is None else control.threat)


def run_controls(
    attacker: Attacker, seed: int, observed: Sequence[Observation] = (), images: Tensor | None = None
) -> tuple[Control, ...]:
    """The controls of an attack at its own budget; none where it declares no setting for them.

    Args:
        observed: the messages to attack: the controls' victim hides the last layer where they do, takes as many local steps if
            the attack simulates them, and has BatchNorm where their net normalises by the batch.
        images: the images behind all messages ``(n, C, H, W)``: the controls have as many per message, up to what the attack
            declares, and of the same size, up to :data:`LARGEST`.
    """
    says = attacker.attack
    if (setting := says.control) is None:
        return ()
    if observed:
        hides, schedule = not any(name.startswith("top.") for name in observed[0].shared), observed[0].schedule
        setting = replace(setting, masked=max(setting.masked, int(hides)))
        if setting.steps and schedule is not None:
            setting = replace(setting, steps=schedule.steps)
        if says.optimises and batch_norms(observed[0].net):
            setting = setting.with_batch_norm()
    if observed and images is not None:
        each, side = len(images) // len(observed), max(images.shape[2:])
        setting = replace(setting, at_once=min(each, says.at_once or each), side=min(side, LARGEST))
    return controls(attacker.attack, setting, seed)


def out_of_reach(attacker: Attacker, observed: Sequence[Observation], images: int) -> Reason | None:
    """Why a failure of the attacker would be no evidence, as the task is harder than its control; ``None`` if it is not."""
    says, schedule, each = attacker.attack, observed[0].schedule, images // len(observed)
    if says.optimises and says.is_beyond(each):
        reach = f"at this budget its control recovers up to {says.at_once} at once" if _promises(says.control) else (
            f"it has no positive control, and is tried on up to {says.at_once}"
        )  # fmt: skip
        return Reason("too many samples", f"{each} images behind one message; {reach}")
    if says.most_steps is not None and schedule is not None and schedule.steps > says.most_steps:
        return Reason("too many steps", f"{schedule.steps} local steps are more than the {says.most_steps} of this budget")
    return None


def mountable(attacker: Attacker, observation: Observation) -> bool:
    """Whether the attack does not refuse a message by its cheap check."""
    try:
        attacker.attack.check(observation)
    except Inapplicable:
        return False
    return True


def mount(attacker: Attacker, observed: Sequence[Observation], seed: int) -> Reconstruction:
    """Mount the attack; the global random state is left as it was."""
    with mounting():
        return attacker.attack.run(observed, seed)


def controlled(
    attacker: Attacker, observed: Sequence[Observation], images: Tensor, labels: Tensor, seed: int, mount: Mount = mount,
    views: Tensor | None = None,
) -> Attempt:  # fmt: skip
    """:func:`attempt`, if the attacker passes its controls at the same budget, with as many images per message."""
    try:
        attacker.attack.check(observed[0])
    except Inapplicable as error:
        return Attempt(attacker, inapplicable=Reason("does not apply", str(error)))
    passed = run_controls(attacker, seed, observed, images)
    if failed := [control.sentence for control in passed if not control.passed]:
        reason = Reason("control failed", f"not tried, as a control failed: {failed[0]}")
        return Attempt(attacker, inapplicable=reason, controls=passed)
    return replace(attempt(attacker, observed, images, labels, seed, mount, views), controls=passed)


def joined(attempts: Sequence[Attempt], labels: Tensor) -> Attempt:
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


def _promises(control: Setting | None) -> bool:
    return control is not None and control.least > 0


def observations(images: Tensor, labels: Tensor, threat: ThreatModel, masked: int, classes: int, seed: int) -> list[Observation]:
    """One gradient step on each image ``(n, C, H, W)`` by a reference victim drawn for it, the last ``masked`` layers hidden.

    Each image has its own victim, since the success depends on the net: with a single one, a rate would be that net's.
    """
    channels, height, width = images.shape[1:]
    seeds = torch.randint(2**31, (len(images),), generator=torch.Generator().manual_seed(seed)).tolist()
    nets = [reference_victim(own, classes, max(1, masked), masked, channels, height, width) for own in seeds]
    triples = zip(nets, torch.split(images, 1), torch.split(labels, 1), strict=True)
    return [observe(net, image, label, threat, hidden=masked > 0) for net, image, label in triples]


def attempt(
    attacker: Attacker, observed: Sequence[Observation], images: Tensor, labels: Tensor, seed: int, mount: Mount = mount,
    views: Tensor | None = None,
) -> Attempt:  # fmt: skip
    """Mount the attack and score it against the true images ``(n, C, H, W)``, or the nearest of their views.

    A gradient does not determine the order of a batch: where a message stands for several images, reconstructions are matched to
    them (:func:`fedpriv.attacks.scoring.scores.match`), and missing ones are scored as grey images that are no recovery. Where a
    message states no number of images, an attack may show more than there are: those that match none have no part in the scores,
    so that the share recovered is the recall; the precision is the number recovered over the rows of ``found.raw`` that are not
    NaN.

    Args:
        views: ``(n, V, C, H, W)`` each image and the augmented views of it that the client trained on; ``None``: it has none.
    """
    try:
        found = mount(attacker, observed, seed)
    except Inapplicable as error:
        return Attempt(attacker, inapplicable=Reason("does not apply", str(error)))
    views = images[:, None] if views is None else views
    made, guessed = _in_order(found, views, len(observed))
    true, public, copies = closest(made, views), observed[0].public, None
    if public is not None:
        copies = counts(under(torch.stack([mse(nearest_public(view, public.images), view) for view in views.unbind(1)]).amin(0)))
    scores = score(made, true, guessed, labels)
    unlike = (
        *observed[0].unlike,
        *harder(attacker, observed[0], labels.view(len(observed), -1)),
        *_empty(attacker, observed, found),
    )
    reasons = tuple(Reason("unlike the controls", clause) for clause in unlike)
    return Attempt(attacker, found, scores, raw=made, true=true, copies=copies, reasons=reasons)


def harder(attacker: Attacker, first: Observation, labels: Tensor) -> Iterator[str]:
    """In what messages like the first, with labels ``(messages, n)``, are harder than those of the attack's positive control: a
    clause each."""
    says, each = attacker.attack, labels.shape[1]
    if first.num_examples is None and each > 1:
        yield f"messages do not say how many images are behind them ({each}), and those of its control do"
    if not says.optimises and says.is_beyond(each):  # an attack that optimises is not tried on as many
        yield f"{each} images are behind a message, and its control has at most {says.at_once}"
    if says.optimises and not says.any_labels and any(len(of.unique()) < each for of in labels):
        yield "images behind a message share classes, and those of its control do not"
    if clause := says.harder(first):
        yield clause


def _empty(attacker: Attacker, observed: Sequence[Observation], found: Reconstruction) -> Iterator[str]:
    """A clause where some messages show the attack nothing, so that it was tried on fewer than are counted."""
    nothing = found.raw.isnan().flatten(1).all(1).view(len(observed), -1).all(1).tolist()
    says = attacker.attack
    why = [clause for one, blank in zip(observed, nothing, strict=True) if blank and (clause := says.empty(one)) is not None]
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
