"""Every attacker on the run's real messages, and on the easiest case: clients that hold one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from attacks.lab import Attacker, Attempt, attackers, attempt
from attacks.observation import Observation, ThreatModel
from attacks.scores import RECOVERED
from fedpriv.audit import figures
from fedpriv.audit.evidence import Evidence
from fedpriv.audit.pictures import SHOWN
from fedpriv.audit.single_images import single_images
from fedpriv.audit.target import Target, message, of_messages
from fedpriv.errors import UsageError

Say = Callable[[str], None]
Observe = Callable[[ThreatModel], list[Observation]]

EASIEST = 6
"""Images of the easiest case."""
LONGEST = 8
"""Local steps up to which training is unrolled: each doubles the work, and the order of the samples is guessed."""
MOST = 128
"""Images behind a message up to which they are optimised all at once."""
_ON_MESSAGES = ("analytic", "dlg", "inverting-gradients", "unrolled")
"""What is tried on a message; what is left out here is for single samples."""
_MESSAGE_BUDGET: dict[str, dict[str, Any]] = {
    **{name: {"steps": 4, "restarts": 0} for name in ("dlg", "random-head", "known-head")},
    **{name: {"adam_steps": 300, "steps": 4, "restarts": 0} for name in ("joint-head", "head-free")},
    "inverting-gradients": {"steps": 300},
    "unrolled": {"iterations": 20, "restarts": 1},
}
"""All samples of a client are unknowns at once, and in the pilots more steps brought these attackers no nearer."""
_ON_SINGLES = ("analytic", "analytic-features", "dlg", "idlg", "inverting-gradients")
_SINGLE_BUDGET: dict[str, dict[str, Any]] = {
    "analytic-features": {"adam": 300, "lbfgs": 20},
    "random-head": {"steps": 30, "restarts": 0},
    **{name: {"steps": 80, "restarts": 0} for name in ("dlg", "idlg", "known-head")},
    "joint-head": {"adam_steps": 300, "steps": 20, "restarts": 0},
    "head-free": {"restarts": 0},
    "inverting-gradients": {"steps": 800},
}
ON_STATISTICS = ("analytic",)
"""What is also tried on statistics that read as a gradient: what needs no other layer and no optimisation."""
Budget = dict[str, dict[str, Any]]
"""Attacker -> its options where they are not its own defaults."""


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
        """Originals and what each attacker made of them, the best reconstructions of the best attacker first."""
        best = self.best()
        if best is None or best.scores is None:
            return {}
        order = best.scores.mse.argsort()
        made = sorted((one for one in self.attempts if one.scores is not None), key=_success, reverse=True)
        rows = {"original": self.target.images[order]}
        return rows | {one.attacker.name: one.images[order] for one in made if one.images is not None}

    def _shown(self) -> str:
        best, n = self.best(), len(self.target.images)
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
    """Attack what the client sent in that round."""
    target = message(evidence, round, client)
    steps = _steps(target)
    title = f"round {round}, client {client}: {len(target.images)} training images" + (f", {steps} local steps" if steps else "")
    return _attack(
        replace(target, title=title), "message", round, client, _tried(_ON_MESSAGES, _MESSAGE_BUDGET, target.masked), seed, say
    )


def on_single_images(evidence: Evidence, round: int, client: int, seed: int, say: Say) -> Attacked:
    """Attack what clients that hold one image each would have sent in that round."""
    played, truth = single_images(evidence, round, client, EASIEST), evidence.truth(client)
    n = len(played)
    title = f"clients with one image each, {n} of client {client}'s, in round {round}"
    target = of_messages(evidence, title, played, truth.images[:n], truth.labels[:n], first_turn=True)
    return _attack(target, "single image", round, client, _tried(_ON_SINGLES, _SINGLE_BUDGET, target.masked), seed, say)


def _tried(names: Sequence[str], budget: Budget, masked: int) -> list[Attacker]:
    """The attackers of that name; where layers are hidden, those that stand for DLG there."""
    tried = {attacker.name: attacker for name in names for attacker in attackers(name, masked)}
    return [replace(one, attack=replace(one.attack, **budget.get(name, {}))) for name, one in tried.items()]  # type: ignore[type-var]


def _attack(target: Target, kind: str, round: int, client: int, tried: list[Attacker], seed: int, say: Say) -> Attacked:
    attempts = []
    for attacker in tried:
        say(f"{target.title}: {attacker.name}")
        attempts.append(_attempt(target, attacker, target.observe, seed))
    for what, observe in target.statistics.items():
        for attacker in tried:
            if attacker.name in ON_STATISTICS:
                reader = OnStatistic(attacker.attack, attacker.threat, what)
                say(f"{target.title}: {reader.name}")
                attempts.append(_attempt(target, reader, observe, seed))
    return Attacked(target, kind, round, client, attempts)


def _attempt(target: Target, attacker: Attacker, observe: Observe, seed: int) -> Attempt:
    try:
        observed = observe(attacker.threat)
    except UsageError as error:
        return Attempt(attacker, inapplicable=str(error))
    schedule, n = observed[0].schedule, len(target.images) // len(observed)
    if n > MOST and attacker.attack.name != "analytic":
        return Attempt(attacker, inapplicable=f"not tried: {n} images behind one message, and the budget is for {MOST} at once")
    if attacker.name == "unrolled" and schedule is not None and schedule.steps > LONGEST:
        return Attempt(
            attacker, inapplicable=f"not tried: {schedule.steps} local steps are more than the {LONGEST} of this budget"
        )
    return attempt(attacker, observed, target.images, target.labels, seed)


def _steps(target: Target) -> int | None:
    schedule = target.observe(ThreatModel())[0].schedule
    return None if schedule is None else schedule.steps


def _success(one: Attempt) -> tuple[int, float]:
    assert one.scores is not None
    return one.scores.recovered[RECOVERED].successes, -float(one.scores.mse.median())


def _described(one: Attempt) -> dict[str, Any]:
    """:func:`fedpriv.audit.figures.figures`, with what the attacker knows, its budget and its own loss along the way."""
    said = figures.figures(one) | {"knows": one.attacker.threat.sentences(), "budget": _budget(one.attacker)}
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
