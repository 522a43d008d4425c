"""Attackers on a target: one attempt, and attempts in stages until more of them could change nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.attempts import ImageAttempt, joined
from fedpriv.attacks.lab.trial import Attacker, NotTried, Trial
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.images.target import Target
from fedpriv.audit.progress import Say, beside, mounting, spent
from fedpriv.processes import forked

SINGLES = 72
"""Largest number of images of the easiest case: if none of them is recovered, the rate may still be up to 5 %."""
FIRST = 6
"""Number of these on which attackers that optimise are tried first; more follow while the case is undecided."""
SETTLED = wilson(0, SINGLES).high
"""The easiest case is decided once the interval of an attack's success rate lies above or below this share."""


def attempt_on(
    target: Target, attacker: Attacker[ImageAttack], seed: int, say: Say, controls: bool = True, announce: bool = True
) -> ImageAttempt:
    """Run the controls, then attack; skip controls that were passed on earlier images."""
    if announce and spent(say) is None:
        say(f"{target.title}: {attacker.name}")
    return target.run(attacker, Trial(seed, partial(spent, say), mounting(say), controls))


def until_decided(
    target: Target, tried: Sequence[Attacker[ImageAttack]], seed: int, say: Say, most: int, workers: int = 1, first: int = FIRST,
    enough: Reason | None = None,
) -> list[ImageAttempt]:  # fmt: skip
    """Attack messages of one image each until the result is decided.

    Closed forms are tried on all images. Attackers that optimise are tried on the ``first``, and then on twice as many each time,
    until one interval lies above :data:`SETTLED`, or the intervals of all attacks that count as evidence lie below. Once an
    attacker has recovered all images, later attackers are not tried: none can recover more. Each interval is for the number of
    images that were tried.

    Args:
        most: largest number of images on which attackers that optimise are tried.
        workers: processes for attackers that optimise, and their controls; the result does not depend on it.
        enough: why attackers that optimise are not tried at all; ``None``: they are.
    """
    quick = [attacker for attacker in tried if not attacker.attack.optimises]
    others = [attacker for attacker in tried if attacker not in quick]
    attempts = {attacker: [attempt_on(target, attacker, seed, say)] for attacker in quick}
    enough = enough or all_found([attempt for (attempt,) in attempts.values()])
    if enough is None and workers > 1:
        _controls_at_once(target, others, seed, say, workers)
    done = 0
    for end in _stages(min(first, most), min(len(target.images), most)):
        part = target.part(done, end)
        still = [attacker for attacker in others if not done or _may_decide(_together(attempts[attacker], target))]
        with closing(_one_by_one(part, still if enough is None else [], seed + done, say, not done, workers)) as results:
            for attacker, attempt in results:
                attempts[attacker] = [*attempts.get(attacker, []), attempt]
                if not done and all_found([attempt]):
                    enough = Reason("not needed", f"{attacker.name} recovered all of the first {end}")
                    break
        done = end
        if enough is not None or _decided([_together(some, target) for some in attempts.values()]):
            break
    left = [ImageAttempt(attacker, inapplicable=enough) for attacker in others if attacker not in attempts]
    return [*(_together(some, target) for some in attempts.values()), *left]


def all_found(attempts: Sequence[ImageAttempt]) -> Reason | None:
    """A reason to try no others: an attempt recovered all images; ``None``: no attempt did."""
    rates = [(attempt.attacker.name, attempt.recovered) for attempt in attempts if attempt.recovered is not None]
    return next((Reason("not needed", f"{name} recovered all {rate.n}") for name, rate in rates if rate.share == 1), None)


def _one_by_one(
    target: Target, attackers: Sequence[Attacker[ImageAttack]], seed: int, say: Say, controls: bool, workers: int
) -> Generator[tuple[Attacker[ImageAttack], ImageAttempt]]:
    """Each attacker's attempt; with several processes, those of the next attackers run beside."""

    def mounted(attacker: Attacker[ImageAttack]) -> ImageAttempt:
        return attempt_on(target, attacker, seed, say, controls, announce=False)

    with closing(beside([partial(mounted, attacker) for attacker in attackers], workers, say)) as results:
        for attacker in attackers:
            if spent(say) is None:
                say(f"{target.title}: {attacker.name}")
            yield attacker, next(results)


def _controls_at_once(target: Target, attackers: Sequence[Attacker[ImageAttack]], seed: int, say: Say, workers: int) -> None:
    """Run controls side by side; their results are kept (:mod:`fedpriv.attacks.lab.control`), and read before each attack."""
    calls, in_time = list[Callable[[], object]](), Trial(seed, partial(spent, say))
    for attacker in attackers:
        with suppress(NotTried):
            first, _ = target.start(attacker, in_time)
            calls.append(partial(_controls_in_time, target, attacker, first, in_time))
    if calls:
        say("controls of the attacks that optimise")
        forked(calls, workers)


def _controls_in_time(target: Target, attacker: Attacker[ImageAttack], first: Sequence[Observation], trial: Trial) -> None:
    """Run an attacker's controls, unless the budget was spent since others began."""
    if trial.cut() is None:
        target.controls(attacker, first, trial.seed)


def _stages(first: int, most: int) -> Iterable[int]:
    """The total number of images after each stage."""
    end = min(first, most)
    while end < most:
        yield end
        end = min(2 * end, most)
    yield end


def _together(parts: Sequence[ImageAttempt], target: Target) -> ImageAttempt:
    """Merge attempts on consecutive parts of the images, as far as they have results.

    Results before a part that could not be attacked are kept.
    """
    scored = list(takewhile(lambda attempt: attempt.scores is not None, parts))
    if not scored:
        return parts[0]
    n = sum(len(attempt.images) for attempt in scored if attempt.images is not None)
    whole = scored[0] if len(scored) == 1 else joined(scored, target.labels[:n])
    return whole if len(scored) == len(parts) else replace(whole, cut=parts[len(scored)].inapplicable)


def _may_decide(attempt: ImageAttempt) -> bool:
    """Whether an attacker is tried on more images: it passed a positive control, and was not cut.

    So is one that fails on the same net: its failures are no evidence, but it may still recover some of many images.
    """
    return attempt.scores is not None and attempt.passed_positive and attempt.cut is None


def _decided(attempts: Sequence[ImageAttempt]) -> bool:
    """Whether the interval of an attacker lies above :data:`SETTLED`, or those of all that count as evidence below it.

    Where no failure is evidence, only recoveries can decide.
    """
    rates = [attempt.recovered for attempt in attempts if attempt.recovered is not None]
    counting = [attempt.recovered for attempt in attempts if attempt.recovered is not None and attempt.is_evidence]
    return any(rate.low > SETTLED for rate in rates) or (bool(counting) and all(rate.high <= SETTLED for rate in counting))
