"""Attacks on the run's real messages, and on the easiest case: simulated clients that hold one image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.lab.attempts import ImageAttempt, suited
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.audit.images import figures
from fedpriv.audit.images.attempts import SINGLES, all_found, attempt_on, until_decided
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.images.target import Target, message, of_messages
from fedpriv.audit.judge.images import limit_beyond
from fedpriv.audit.progress import Say
from fedpriv.audit.record.base import Record
from fedpriv.audit.results.images import ImageOutcome, ImageTarget
from fedpriv.audit.results.outcome import ControlResult, Sender, TargetKind


@dataclass(frozen=True)
class Attacked:
    """A target with all attempts on it."""

    target: Target
    kind: TargetKind
    round: int
    sender: Sender
    attempts: list[ImageAttempt]

    def best(self) -> ImageAttempt | None:
        """The attempt that recovered most; among equals, the one with the least median error."""
        scored = [attempt for attempt in self.attempts if attempt.scores is not None]
        return max(scored, key=_success, default=None)

    @property
    def all_recovered(self) -> bool:
        """Whether an attempt recovered all of its images, and more than the baselines recover."""
        complete = [attempt for attempt in self.attempts if attempt.recovered is not None and attempt.recovered.share == 1]
        return any(not self.target.guessed(attempt) for attempt in complete)

    def pictures(self) -> dict[str, Tensor]:
        """Originals and the reconstructions of each attacker, sorted by the error of the best attacker.

        Only images on which all attackers were tried.
        """
        best = self.best()
        if best is None or best.scores is None:
            return {}
        order = best.scores.mse[: self._common()].argsort()
        scored = sorted((attempt for attempt in self.attempts if attempt.scores is not None), key=_success, reverse=True)
        rows = {"original": self.target.images[order]}
        if self.target.views is not None and best.true is not None:
            rows["as trained on"] = best.true[order]
        return rows | {attempt.attacker.name: attempt.images[order] for attempt in scored if attempt.images is not None}

    def controls(self) -> list[ControlResult]:
        """The controls of all attackers."""
        return [
            ControlResult(attempt.attacker.attack.name, **vars(control))
            for attempt in self.attempts
            for control in attempt.controls
        ]

    def _common(self) -> int:
        return min((len(attempt.images) for attempt in self.attempts if attempt.images is not None), default=0)

    def _shown(self) -> str:
        best, n = self.best(), self._common()
        assert best is not None
        if n <= SHOWN:
            return f"All {n} images, the best reconstruction by {best.attacker.name} first."
        return f"{SHOWN} of {n} images: those that {best.attacker.name} reconstructed best."

    def described(self, picture: str | None) -> ImageTarget:
        """The target as an :class:`ImageTarget`; ``picture``: the file name of its picture."""
        bare = ImageTarget(
            title=self.target.title,
            kind=self.kind,
            round=self.round,
            sender=self.sender,
            samples=len(self.target.images),
            outcomes=(),
            baselines=figures.guess_figures(self.target.guesses()),
            note=self.target.note,
            picture=picture,
            picture_note=None if picture is None else self._shown(),
        )
        return bare.only([_outcome(attempt, bare.baseline_successes) for attempt in self.attempts])


def on_message(record: Record, round: int, client: int, seed: int, say: Say) -> Attacked:
    """Attack a client's message with every attacker whose controls cover as many images per message."""
    target = message(record, round, client)
    target = target.described(record, round, client, f"{len(target.images)} training images")
    attempts = [attempt_on(part, attacker, seed, say) for part, tried in _parts(target) for attacker in tried]
    return Attacked(target, "message", round, record.sender(round, client), attempts)


def on_single_images(record: Record, round: int, client: int, seed: int, say: Say, most: int, workers: int = 1) -> Attacked:
    """Attack the messages of simulated clients that hold one image each (:func:`fedpriv.audit.images.attempts.until_decided`)."""
    alone = record.alone(round, client, SINGLES)
    truth = {owner: record.truth(owner) for owner, _ in alone.samples}
    title = f"clients with one image each, {len(alone.messages)} in round {round}"
    images, labels = (torch.stack([getattr(truth[owner], it)[at] for owner, at in alone.samples]) for it in ("images", "labels"))
    target, attempts = of_messages(record, title, alone.messages, images, labels, alone.views), list[ImageAttempt]()
    for part, tried in _parts(target):
        attempts += until_decided(part, tried, seed, say, most, workers, enough=all_found(attempts))
    return Attacked(target, "single image", round, record.one_client(client), attempts)


def _parts(target: Target) -> Iterator[tuple[Target, list[Attacker[ImageAttack]]]]:
    """What of the messages is attacked, each with all attackers that suit it: the model's change, and statistics that are
    gradients."""
    yield target, suited(target.masked)
    for what, part in target.statistics.items():
        yield replace(part, title=target.title), [replace(attacker, what=what) for attacker in suited(part.masked)]


def _success(attempt: ImageAttempt) -> tuple[int, float]:
    assert attempt.scores is not None and attempt.recovered is not None
    return attempt.recovered.successes, -float(attempt.scores.mse.median())


def _outcome(attempt: ImageAttempt, baselines: Mapping[str, Mapping[str, int]]) -> ImageOutcome:
    result = figures.figures(attempt)
    return ImageOutcome(
        attack=attempt.attacker.name,
        status=attempt.status(result is not None and limit_beyond(result, baselines) is not None),
        knows=tuple(attempt.attacker.threat.sentences()),
        budget=_budget(attempt.attacker),
        statistic=attempt.attacker.what or None,
        figures=result,
        cut=attempt.cut,
    )


def _budget(attacker: Attacker[ImageAttack]) -> str:
    words = {"steps": "steps", "adam_steps": "Adam steps", "adam": "Adam steps", "lbfgs": "L-BFGS steps", "iterations": "steps"}
    parts = []
    for f in fields(attacker.attack):  # type: ignore[arg-type]
        value = getattr(attacker.attack, f.name)
        if f.name in words:
            parts.append(f"{value} {words[f.name]}")
        elif f.name == "restarts":
            parts.append(f"{value} restarts" if value else "one start")
    return ", ".join(parts) or "no optimisation"
