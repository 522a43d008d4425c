"""``fedpriv attack`` on images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.cli.attack_request import Request, tell_replay
from fedpriv.cli.common import console
from fedpriv.cli.controls import held_to, progress, tell_controls, with_options
from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.attacks.lab.attempts import ImageAttempt
    from fedpriv.audit.images.target import Target
    from fedpriv.audit.record.malicious import Replay
    from fedpriv.audit.results.images import Baseline, ImageFigures

STEPS = 20
"""Default number of steps, each on one image."""


def attack_images(request: Request) -> dict[str, Any]:
    """Run an attack on images: behind a message of a run, or behind single steps.

    Raises:
        UsageError: an option does not apply, or the run or the data set has no images.
        FedprivError: a control failed.
    """
    from fedpriv.attacks.lab.attempts import attackers
    from fedpriv.attacks.lab.trial import Trial
    from fedpriv.audit.images import figures
    from fedpriv.audit.images.attempts import FIRST, until_decided

    name, out = request.name, console(width=120)
    target, played = _target(request)
    malice = tell_replay(played, out)
    if target.note:
        out.print(target.note, soft_wrap=True)
    try:
        tried = attackers(name, target.masked, dict(request.options))
    except KeyError as error:
        raise UsageError(str(error.args[0])) from None
    except TypeError as error:
        raise UsageError(f"{name}: {error}") from None
    if name not in (names := [attacker.name for attacker in tried]):
        out.print(f"{name} needs the hidden layers; in its place, attacks without them: {', '.join(names)}", soft_wrap=True)
    attempts: list[ImageAttempt] = []
    with progress(len(tried)) as begin:
        if len(tried) > 1 and request.run is None:
            n = len(target.images)
            attempts = until_decided(target, tried, request.seed, begin, n, first=n if request.count else FIRST)
        for attacker in tried if not attempts else ():
            begin(f"{target.title}: {attacker.name}")
            attempts.append(target.run(attacker, Trial(request.seed, in_reach=False)))
    tell_controls([control for attempt in attempts for control in attempt.controls], out)
    if all(attempt.reconstruction is None for attempt in attempts):
        held_to([control for attempt in attempts for control in attempt.controls])
    for line in figures.notes(attempts):
        out.print(line, soft_wrap=True)
    guesses = target.guesses()
    out.print(figures.table(attempts, guesses, target))
    if request.output:
        drawn = {attempt.attacker.name: attempt.images for attempt in attempts if attempt.images is not None}
        _draw({"original": target.images, **drawn}, request.output)
        out.print(f"drawn: {request.output}", soft_wrap=True)
    return {
        "attack": name,
        **malice,
        "target": target.title,
        "images": len(target.images),
        "mask_layers": target.masked,
        "seed": request.seed,
        "attackers": [_attacker(attempt) for attempt in attempts],
        "baselines": {name: _figures(baseline) for name, baseline in figures.guess_figures(guesses).items()},
        "controls": [vars(control) for attempt in attempts for control in attempt.controls],
    }


def _attacker(attempt: ImageAttempt) -> dict[str, Any]:
    """An attempt for ``--json``, with its figures if it was run."""
    from fedpriv.audit.images.figures import figures

    why, scores = attempt.inapplicable, figures(attempt)
    entry = {
        "attacker": attempt.attacker.name,
        "threat": asdict(attempt.attacker.threat),
        "is_evidence": attempt.is_evidence,
        "inapplicable": None if why is None else str(why),
    }
    return entry if scores is None else entry | _figures(scores)


def _figures(scores: ImageFigures | Baseline) -> dict[str, Any]:
    """Scores as JSON, each rate with its share."""
    success = {limit: asdict(rate) | {"share": rate.share} for limit, rate in scores.success.items()}
    return asdict(scores) | {"success": success}


def _target(request: Request) -> tuple[Target, Replay | None]:
    """The target, and what a client answered to an altered download; ``None``: the server is honest."""
    from fedpriv.attacks.attack import image_attack
    from fedpriv.audit.images import target

    if request.malicious:
        attack = with_options(image_attack(request.name), request.name, request.options)
        return target.altered(*request.message(), attack, request.seed)
    if request.run is not None:
        return target.message(*request.message()), None
    steps = (request.count or STEPS, request.mask_layers or 0, request.seed)
    if request.images is not None:
        return target.photographs(request.images, *steps), None
    if request.dataset is not None:
        return target.samples(request.dataset, request.data_dir, *steps, request.label), None
    return target.crops(*steps), None


def _draw(rows: dict[str, Tensor], path: Path) -> None:
    from fedpriv.audit.images.pictures import grid
    from fedpriv.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, grid(rows))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
