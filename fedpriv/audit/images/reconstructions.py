"""Every attacker on the run's real messages, and on the easiest case: clients that hold one image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from attacks.core.observation import Observation, ThreatModel
from attacks.lab.attempts import Attacker, Attempt, controlled, joined, out_of_reach, suited
from attacks.lab.setting import declared
from attacks.scoring.scores import RECOVERED, wilson
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.evidence.single_images import shared_out, single_images
from fedpriv.audit.images import figures
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.images.target import Target, message, of_messages
from fedpriv.errors import UsageError

Say = Callable[[str], None]
Observe = Callable[[ThreatModel], list[Observation]]

SINGLES = 72
"""Images of the easiest case at most: none of so many leaves 5 % open."""
FIRST = 6
"""Of them, those on which every attacker that optimises is tried; it gets more as long as the case is undecided."""
SETTLED = wilson(0, SINGLES).high
"""Share of the images that decides the easiest case once the interval of an attacker lies above it, or below."""


@dataclass(frozen=True)
class OnStatistic(Attacker):
    """An attacker that reads a statistic of the message in place of the model.

    Attributes:
        what: the statistic.
    """

    what: str = ""

    @property
    def name(self) -> str:
        return f"{self.attack.name} on {self.what}"


@dataclass(frozen=True)
class Attacked:
    """One target with all attempts on it."""

    target: Target
    kind: str
    round: int
    client: int
    attempts: list[Attempt]

    def best(self) -> Attempt | None:
        """The attempt that recovered most; of equals the one with the least median error."""
        made = [one for one in self.attempts if one.scores is not None]
        return max(made, key=_success, default=None)

    def pictures(self) -> dict[str, Tensor]:
        """Originals and what each attacker made of them, the best reconstructions of the best attacker first.

        Of the images that all attackers were tried on.
        """
        best = self.best()
        if best is None or best.scores is None:
            return {}
        order = best.scores.mse[: self._common()].argsort()
        made = sorted((one for one in self.attempts if one.scores is not None), key=_success, reverse=True)
        rows = {"original": self.target.images[order]}
        return rows | {one.attacker.name: one.images[order] for one in made if one.images is not None}

    def controls(self) -> list[dict[str, Any]]:
        """The controls of all that were to be tried, as JSON."""
        return [{"attacker": one.attacker.attack.name, **vars(control)} for one in self.attempts for control in one.controls]

    def _common(self) -> int:
        return min((len(one.images) for one in self.attempts if one.images is not None), default=0)

    def _shown(self) -> str:
        best, n = self.best(), self._common()
        assert best is not None
        if n <= SHOWN:
            return f"All {n} images, the best reconstruction by {best.attacker.name} first."
        return f"{SHOWN} of {n} images: those that {best.attacker.name} came nearest to. Of the others less was recovered."

    def described(self, picture: str | None) -> dict[str, Any]:
        """As JSON."""
        return {
            "target": self.target.title,
            "kind": self.kind,
            "round": self.round,
            "client": self.client,
            "images": len(self.target.images),
            "note": self.target.note,
            "pictures": picture,
            "pictures_note": None if picture is None else self._shown(),
            "attempts": [_described(one) for one in self.attempts],
            "baselines": figures.guess_figures(figures.guesses(self.target)),
        }


def on_message(evidence: Evidence, round: int, client: int, seed: int, say: Say) -> Attacked:
    """Attack what the client sent in that round, with every attacker that its controls show to reach so many images at once."""
    target = message(evidence, round, client)
    steps = _steps(target)
    title = f"round {round}, client {client}: {len(target.images)} training images" + (f", {steps} local steps" if steps else "")
    target = replace(target, title=title)
    tried = suited(target.masked)
    attempts = [_attempt(target, attacker, target.observe, seed, say) for attacker in tried]
    attempts += _on_statistics(target, tried, seed, say)
    return Attacked(target, "message", round, client, attempts)


def on_single_images(evidence: Evidence, round: int, client: int, seed: int, say: Say, most: int) -> Attacked:
    """Attack what clients that hold one image each would have sent in that round, until it is decided what they give away.

    Closed forms are tried on all images. Attackers that optimise are tried on the first :data:`FIRST`, and, while no interval
    lies above :data:`SETTLED` and not all that count as evidence lie below, on more: each time on as many again, and
    a half. The interval of each is for the number that it was tried on.

    Args:
        most: images on which they are tried at most.
    """
    played, alone = single_images(evidence, round, client, SINGLES), shared_out(evidence, client, SINGLES)
    n, truth = len(played), {owner: evidence.truth(owner) for owner, _ in alone}
    title = f"clients with one image each, {n} in round {round}"
    images, labels = (torch.stack([getattr(truth[owner], what)[at] for owner, at in alone]) for what in ("images", "labels"))
    target = of_messages(evidence, title, played, images, labels, first_turn=True)
    tried = suited(target.masked)
    quick = [attacker for attacker in tried if not declared(attacker.attack).optimises]
    attempts = {one: [_attempt(target, one, target.observe, seed, say)] for one in quick}
    done = 0
    for end in _stages(min(n, most)):
        part = _part(target, done, end)
        for attacker in (one for one in tried if one not in quick):
            so_far = attempts.setdefault(attacker, [])
            if not done or _may_decide(_together(so_far, target)):
                so_far.append(_attempt(part, attacker, part.observe, seed + done, say))
        done = end
        if _decided([_together(some, target) for some in attempts.values()]):
            break
    found = [_together(some, target) for some in attempts.values()]
    return Attacked(target, "single image", round, client, [*found, *_on_statistics(target, tried, seed, say)])


def _stages(most: int) -> Iterable[int]:
    """How many images were tried after each part."""
    end = min(FIRST, most)
    while end < most:
        yield end
        end = min(2 * end, most)
    yield end


def _part(target: Target, start: int, end: int) -> Target:
    """Messages of single images, those from ``start`` to ``end``."""
    title = f"{target.title} ({start + 1} to {end})"
    images, labels = target.images[start:end], target.labels[start:end]
    return replace(target, title=title, images=images, labels=labels, observe=lambda threat: target.observe(threat)[start:end])


def _together(parts: Sequence[Attempt], target: Target) -> Attempt:
    """One attempt of those on consecutive parts of the images, as far as they go."""
    if any(one.scores is None for one in parts):
        return next(one for one in parts if one.scores is None)
    n = sum(len(one.images) for one in parts if one.images is not None)
    return parts[0] if len(parts) == 1 else joined(parts, target.images[:n], target.labels[:n])


def _may_decide(one: Attempt) -> bool:
    return one.scores is not None and one.is_evidence


def _decided(attempts: Sequence[Attempt]) -> bool:
    """Whether an attacker surely recovers more than a few images, or all that count surely no more."""
    rates = [one.scores.recovered[RECOVERED] for one in attempts if one.scores is not None]
    counting = [one.scores.recovered[RECOVERED] for one in attempts if one.scores is not None and one.is_evidence]
    return any(rate.low > SETTLED for rate in rates) or all(rate.high <= SETTLED for rate in counting)


def _on_statistics(target: Target, tried: Sequence[Attacker], seed: int, say: Say) -> list[Attempt]:
    """Statistics that read as a gradient, by what needs no other layer and no optimisation."""
    found = []
    for what, observe in target.statistics.items():
        for attacker in tried:
            if not declared(attacker.attack).optimises:
                found.append(_attempt(target, OnStatistic(attacker.attack, attacker.threat, what), observe, seed, say))
    return found


def _attempt(target: Target, attacker: Attacker, observe: Observe, seed: int, say: Say) -> Attempt:
    say(f"{target.title}: {attacker.name}")
    try:
        observed = observe(attacker.threat)
    except UsageError as error:
        return Attempt(attacker, inapplicable=str(error))
    if reason := out_of_reach(attacker, observed, len(target.images)):
        return Attempt(attacker, inapplicable=f"not tried: {reason}")
    return controlled(attacker, observed, target.images, target.labels, seed)


def _steps(target: Target) -> int | None:
    schedule = target.observe(ThreatModel())[0].schedule
    return None if schedule is None else schedule.steps


def _success(one: Attempt) -> tuple[int, float]:
    assert one.scores is not None
    return one.scores.recovered[RECOVERED].successes, -float(one.scores.mse.median())


def _described(one: Attempt) -> dict[str, Any]:
    """:func:`fedpriv.audit.images.figures.figures`, with what the attacker knows, its budget and its own loss along the way."""
    said = figures.figures(one) | {"knows": one.attacker.threat.sentences(), "budget": _budget(one.attacker)}
    said["is_evidence"] = one.is_evidence
    said.pop("threat")
    if one.found is None:
        return said
    middle = one.found.curve.nanmedian(dim=1).values
    return said | {"inapplicable": None, "curve": [[i + 1, float(v)] for i, v in enumerate(middle) if bool(v.isfinite())]}


def _budget(attacker: Attacker) -> str:
    words = {"steps": "steps", "adam_steps": "Adam steps", "adam": "Adam steps", "lbfgs": "L-BFGS steps", "iterations": "steps"}
    said = []
    for f in fields(attacker.attack):  # type: ignore[arg-type]
        value = getattr(attacker.attack, f.name)
        if f.name in words:
            said.append(f"{value} {words[f.name]}")
        elif f.name == "restarts":
            said.append(f"{value} restarts" if value else "one start")
    return ", ".join(said) or "no optimisation"
