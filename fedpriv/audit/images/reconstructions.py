"""Attacks on the run's real messages, and on the easiest case: simulated clients that hold one image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attacks.core.observation import Observation, ThreatModel
from attacks.lab.attempts import Attacker, Attempt, attempt, controlled, joined, mountable, out_of_reach, run_controls, suited
from attacks.lab.setting import declared
from attacks.scoring.scores import RECOVERED, wilson
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.evidence.single_images import shared_out, single_images
from fedpriv.audit.formats import named
from fedpriv.audit.images import figures
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.images.target import Target, message, of_messages
from fedpriv.audit.progress import Say, spent
from fedpriv.errors import FedprivError, UsageError

Observe = Callable[[ThreatModel], list[Observation]]

SINGLES = 72
"""Largest number of images of the easiest case: if none of them is recovered, the rate may still be up to 5 %."""
FIRST = 6
"""Number of these on which every attack that optimises is tried first; more follow while the case is undecided."""
SETTLED = wilson(0, SINGLES).high
"""The easiest case is decided once the interval of an attack's success rate lies above or below this share."""


@dataclass(frozen=True)
class OnStatistic(Attacker):
    """An attacker on a statistic of the message instead of the model's change.

    Attributes:
        what: the statistic.
    """

    what: str = ""

    @property
    def name(self) -> str:
        return f"{self.attack.name} on {self.what}"


@dataclass(frozen=True)
class Attacked:
    """A target with all attempts on it."""

    target: Target
    kind: str
    round: int
    client: int | str
    attempts: list[Attempt]

    def best(self) -> Attempt | None:
        """The attempt that recovered most; among equals, the one with the least median error."""
        made = [one for one in self.attempts if one.scores is not None]
        return max(made, key=_success, default=None)

    def pictures(self) -> dict[str, Tensor]:
        """Originals and the reconstructions of each attacker, sorted by the error of the best attacker.

        Only images on which all attackers were tried.
        """
        best = self.best()
        if best is None or best.scores is None:
            return {}
        order = best.scores.mse[: self._common()].argsort()
        made = sorted((one for one in self.attempts if one.scores is not None), key=_success, reverse=True)
        rows = {"original": self.target.images[order]}
        return rows | {one.attacker.name: one.images[order] for one in made if one.images is not None}

    def controls(self) -> list[dict[str, Any]]:
        """The controls of all attackers, as JSON."""
        return [{"attacker": one.attacker.attack.name, **vars(control)} for one in self.attempts for control in one.controls]

    def _common(self) -> int:
        return min((len(one.images) for one in self.attempts if one.images is not None), default=0)

    def _shown(self) -> str:
        best, n = self.best(), self._common()
        assert best is not None
        if n <= SHOWN:
            return f"All {n} images, the best reconstruction by {best.attacker.name} first."
        return f"{SHOWN} of {n} images: those that {best.attacker.name} reconstructed best."

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
    """Attack a client's message, as :func:`on_target`."""
    target = message(evidence, round, client)
    steps = _steps(target)
    sender = evidence.sender(round, client)
    title = f"round {round}, {named(sender)}: {len(target.images)} training images" + (f", {steps} local steps" if steps else "")
    return on_target(replace(target, title=title), round, sender, seed, say)


def on_target(target: Target, round: int, sender: int | str, seed: int, say: Say) -> Attacked:
    """Attack a message with every attacker whose controls cover as many images per message."""
    tried = suited(target.masked)
    attempts = [_attempt(target, attacker, target.observe, seed, say) for attacker in tried]
    attempts += _on_statistics(target, tried, seed, say)
    return Attacked(target, "message", round, sender, attempts)


def on_single_images(evidence: Evidence, round: int, client: int, seed: int, say: Say, most: int) -> Attacked:
    """Attack the messages of simulated clients that hold one image each, until the result is decided.

    Closed forms are tried on all images. Attackers that optimise are tried on the first :data:`FIRST`, and then on half as many
    again each time, as long as no interval lies above :data:`SETTLED` and not all that count as evidence lie below it. Each
    interval is for the number of images that were tried.

    Args:
        most: largest number of images on which attackers that optimise are tried.
    """
    messages, alone = single_images(evidence, round, client, SINGLES), shared_out(evidence, client, SINGLES)
    n, truth = len(messages), {owner: evidence.truth(owner) for owner, _ in alone}
    title = f"clients with one image each, {n} in round {round}"
    images, labels = (torch.stack([getattr(truth[owner], what)[at] for owner, at in alone]) for what in ("images", "labels"))
    target = of_messages(evidence, title, messages, images, labels, first_turn=True)
    tried = suited(target.masked)
    quick = [attacker for attacker in tried if not declared(attacker.attack).optimises]
    attempts = {one: [_attempt(target, one, target.observe, seed, say)] for one in quick}
    done = 0
    for end in _stages(min(n, most)):
        part = _part(target, done, end)
        for attacker in (one for one in tried if one not in quick):
            so_far = attempts.setdefault(attacker, [])
            if not done or _may_decide(_together(so_far, target)):
                so_far.append(_attempt(part, attacker, part.observe, seed + done, say, controls=not so_far))
        done = end
        if _decided([_together(some, target) for some in attempts.values()]):
            break
    found = [_together(some, target) for some in attempts.values()]
    return Attacked(target, "single image", round, client, [*found, *_on_statistics(target, tried, seed, say)])


def controls_ahead(evidence: Evidence, round: int, client: int, seed: int) -> list[Callable[[], object]]:
    """Calls that run the controls of :func:`on_single_images` and keep their results (:mod:`attacks.lab.kept`), so that several
    processes may share them before it does; none where the attacks cannot be mounted."""
    try:
        messages = single_images(evidence, round, client, 1)
        ((owner, at), *_) = shared_out(evidence, client, 1)
        truth = evidence.truth(owner)
        target = of_messages(evidence, "", messages, truth.images[at][None], truth.labels[at][None], first_turn=True)
        found = [(attacker, target.observe(attacker.threat)) for attacker in suited(target.masked)]
    except FedprivError:
        return []
    return [
        partial(run_controls, attacker, seed, observed, target.images)
        for attacker, observed in found
        if declared(attacker.attack).optimises and mountable(attacker, observed[0])
    ]


def _stages(most: int) -> Iterable[int]:
    """The total number of images after each stage."""
    end = min(FIRST, most)
    while end < most:
        yield end
        end = min(2 * end, most)
    yield end


def _part(target: Target, start: int, end: int) -> Target:
    """The messages of the images from ``start`` to ``end``."""
    title = f"{target.title} ({start + 1} to {end})"
    images, labels = target.images[start:end], target.labels[start:end]
    return replace(target, title=title, images=images, labels=labels, observe=lambda threat: target.observe(threat)[start:end])


def _together(parts: Sequence[Attempt], target: Target) -> Attempt:
    """Merge attempts on consecutive parts of the images."""
    if any(one.scores is None for one in parts):
        return next(one for one in parts if one.scores is None)
    n = sum(len(one.images) for one in parts if one.images is not None)
    return parts[0] if len(parts) == 1 else joined(parts, target.images[:n], target.labels[:n])


def _may_decide(one: Attempt) -> bool:
    return one.scores is not None and one.is_evidence


def _decided(attempts: Sequence[Attempt]) -> bool:
    """Whether the interval of an attacker lies above :data:`SETTLED`, or those of all that count as evidence below it."""
    rates = [one.scores.recovered[RECOVERED] for one in attempts if one.scores is not None]
    counting = [one.scores.recovered[RECOVERED] for one in attempts if one.scores is not None and one.is_evidence]
    return any(rate.low > SETTLED for rate in rates) or all(rate.high <= SETTLED for rate in counting)


def _on_statistics(target: Target, tried: Sequence[Attacker], seed: int, say: Say) -> list[Attempt]:
    """Attack statistics that are gradients, with closed forms that need no other layer."""
    found = []
    for what, observe in target.statistics.items():
        for attacker in tried:
            if not declared(attacker.attack).optimises:
                found.append(_attempt(target, OnStatistic(attacker.attack, attacker.threat, what), observe, seed, say))
    return found


def _attempt(target: Target, attacker: Attacker, observe: Observe, seed: int, say: Say, controls: bool = True) -> Attempt:
    """Attack, after the controls; without them where it has passed them on the images before."""
    if (cut := spent(say)) is not None:
        return Attempt(attacker, inapplicable=cut)
    say(f"{target.title}: {attacker.name}")
    try:
        observed = observe(attacker.threat)
    except UsageError as error:
        return Attempt(attacker, inapplicable=str(error))
    if reason := out_of_reach(attacker, observed, len(target.images)):
        return Attempt(attacker, inapplicable=f"not tried: {reason}")
    return (controlled if controls else attempt)(attacker, observed, target.images, target.labels, seed)


def _steps(target: Target) -> int | None:
    schedule = target.observe(ThreatModel())[0].schedule
    return None if schedule is None else schedule.steps


def _success(one: Attempt) -> tuple[int, float]:
    assert one.scores is not None
    return one.scores.recovered[RECOVERED].successes, -float(one.scores.mse.median())


def _described(one: Attempt) -> dict[str, Any]:
    """:func:`fedpriv.audit.images.figures.figures`, with the attacker's knowledge, budget and loss curve."""
    row = figures.figures(one) | {"knows": one.attacker.threat.sentences(), "budget": _budget(one.attacker)}
    row["is_evidence"] = one.is_evidence
    row.pop("threat")
    if one.found is None:
        return row
    middle = one.found.curve.nanmedian(dim=1).values
    return row | {"inapplicable": None, "curve": [[i + 1, float(v)] for i, v in enumerate(middle) if bool(v.isfinite())]}


def _budget(attacker: Attacker) -> str:
    words = {"steps": "steps", "adam_steps": "Adam steps", "adam": "Adam steps", "lbfgs": "L-BFGS steps", "iterations": "steps"}
    parts = []
    for f in fields(attacker.attack):  # type: ignore[arg-type]
        value = getattr(attacker.attack, f.name)
        if f.name in words:
            parts.append(f"{value} {words[f.name]}")
        elif f.name == "restarts":
            parts.append(f"{value} restarts" if value else "one start")
    return ", ".join(parts) or "no optimisation"
