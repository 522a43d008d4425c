"""One step of the reference victim on chosen images, and the attackers that a choice of masked layers calls for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attacks.by_name import nearest
from attacks.controls import Control, Setting, negative_control, positive_control
from attacks.nets import observe, reference_victim
from attacks.observation import Observation, ThreatModel
from attacks.options import defaults_of, like
from attacks.reconstruction import Inapplicable, Reconstruction
from attacks.registry import ImageAttack, image_attack
from attacks.scores import Scores, match_batches, score

NEEDS_THE_LAST_LAYER = ("dlg", "idlg", "dlg-published", "idlg-published")
"""Attacks that say nothing of masked layers themselves: with a mask, the attackers of :func:`attackers` stand for them."""
_WHOLE, _HIDDEN, _PERCEPTRON = Setting(), Setting(masked=1), Setting(net="perceptron")
_MUST_WORK = {
    **dict.fromkeys(("dlg", "idlg"), _WHOLE),
    # A third of the published runs diverges, so that four images say no more than that the attack can succeed.
    **dict.fromkeys(("dlg-published", "idlg-published"), replace(_WHOLE, least=0.25)),
    **dict.fromkeys(("analytic", "inverting-gradients"), _PERCEPTRON),
    "analytic-features": Setting(layers=2, masked=1, images=2),
    "head-free": _HIDDEN,
    "known-head": replace(_HIDDEN, threat=ThreatModel(top="initial")),
    "unrolled": replace(_PERCEPTRON, steps=2, images=2),
}
"""Where an attack must recover images, or it is broken."""
_MUST_NOT_INVENT = {"random-head": _HIDDEN, "joint-head": _HIDDEN}
"""Attacks of which nobody says that they must work anywhere; from a random gradient they must not make images either."""


@dataclass(frozen=True)
class Attacker:
    """An attack with its options, and what it is assumed to know."""

    attack: ImageAttack
    threat: ThreatModel

    @property
    def name(self) -> str:
        return self.attack.name


@dataclass(frozen=True)
class Attempt:
    """What one attacker made of the observations.

    Attributes:
        images: what it made ``(n, C, H, W)``, each beside the original that it stands for.
        inapplicable: why it could not be mounted; then the others are ``None``.
    """

    attacker: Attacker
    found: Reconstruction | None = None
    scores: Scores | None = None
    images: Tensor | None = None
    inapplicable: str | None = None


def attackers(name: str, masked: int, options: dict[str, Any] | None = None) -> list[Attacker]:
    """The attackers to report for an attack by name: itself, or where it cannot see the last layer, all that can be tried.

    With ``masked`` linear layers DLG becomes the paper's naive attacker with a head of its own (``random-head``), the one that
    knows the head which the server broadcast in round 0 (``known-head``), the one that optimises a head (``joint-head``), and
    the one that needs none (``head-free``): a defence is as good as the best of them.

    Args:
        options: of the attack; with several attackers, of those that have them.

    Raises:
        KeyError: no attack has that name, or none of them that option.
        TypeError: an option cannot be that.
    """
    options = options or {}
    chosen: dict[str, dict[str, Any]] = {name: {}}
    if masked and name in NEEDS_THE_LAST_LAYER:
        naive = {"assumed": masked, "published": name.endswith("published")}
        chosen = {"random-head": naive, "known-head": {}, "joint-head": {}, "head-free": {}}
    made = []
    defaults = {one: defaults_of(image_attack(one)) for one in chosen}
    known = set().union(*defaults.values())
    for option in options.keys() - known:
        raise KeyError(f"{name} has no option {option!r}; {nearest(option, known)}")
    for one, own in chosen.items():
        given = {option: like(default, options[option], option) for option, default in defaults[one].items() if option in options}
        threat = ThreatModel(top="initial") if one == "known-head" else ThreatModel()
        made.append(Attacker(image_attack(one)(**own | given), threat))
    return made


def run_controls(attacker: Attacker, seed: int) -> list[Control]:
    """Positive and negative control; the negative one alone where there is no setting in which the attack must work.

    For attacks of other packages none: what they must do is not known here.
    """
    name, attack = attacker.name, attacker.attack
    if name in _MUST_NOT_INVENT:
        return [negative_control(attack, _MUST_NOT_INVENT[name], seed)]
    if name not in _MUST_WORK:
        return []
    return [positive_control(attack, _MUST_WORK[name], seed), negative_control(attack, _MUST_WORK[name], seed)]


def observations(images: Tensor, labels: Tensor, threat: ThreatModel, masked: int, classes: int, seed: int) -> list[Observation]:
    """One gradient step on each image ``(n, C, H, W)``, each of a reference victim of its own, the last ``masked`` layers hidden.

    Of its own, because how easily an image is found depends on the net: with one for all, a rate would be that net's.
    """
    channels, height, width = images.shape[1:]
    seeds = torch.randint(2**31, (len(images),), generator=torch.Generator().manual_seed(seed)).tolist()
    nets = [reference_victim(own, classes, max(1, masked), masked, channels, height, width) for own in seeds]
    triples = zip(nets, torch.split(images, 1), torch.split(labels, 1), strict=True)
    return [observe(net, image, label, threat, hidden=masked > 0) for net, image, label in triples]


def attempt(attacker: Attacker, observed: Sequence[Observation], images: Tensor, labels: Tensor, seed: int) -> Attempt:
    """Mount the attack and score it against what it was kept from seeing.

    A gradient does not tell the order of a batch: where a message stands for several of the images ``(n, C, H, W)``, what was
    made of it is matched to them (:func:`attacks.scores.match_batches`), and images that are missing count as grey ones.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            found = attacker.attack.run(observed, seed)
    except Inapplicable as error:
        return Attempt(attacker, inapplicable=str(error))
    made, guessed = _in_order(found, images, len(observed))
    return Attempt(attacker, found, score(made, images, guessed, labels), images=made)


def _in_order(found: Reconstruction, images: Tensor, messages: int) -> tuple[Tensor, Tensor]:
    """Reconstructions and labels, matched to the images within each message."""
    size, made_each = len(images) // messages, len(found.images) // messages
    if size == 1:
        return found.images, found.labels
    made, labels = torch.full_like(images, 0.5), torch.full((len(images),), -1)
    here = torch.arange(len(images)) % size < made_each
    made[here], labels[here] = found.images.to(made), found.labels
    order = match_batches(made, images, size)
    return made[order], labels[order]
