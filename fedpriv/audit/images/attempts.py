"""Attackers on a target: one attempt, and attempts in stages until more of them could change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile

from fedpriv.attacks.attack import ImageAttack
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.attempts import ImageAttempt, joined
from fedpriv.attacks.lab.trial import Attacker, NotTried, Trial
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.images.target import Target
from fedpriv.audit.progress import Say, elsewhere, mounting, spent
from fedpriv.processes import forked, forked_in_order

SINGLES = 72
"""Largest number of images of the easiest case: if none of them is recovered, the rate may still be up to 5 %."""
FIRST = 6
"""Number of these on which attackers that optimise are tried first; more follow while the case is undecided."""
SETTLED = wilson(0, SINGLES).high
"""The easiest case is decided once the interval of an attack's success rate lies above or below this share."""


def attempt_on(
    target: Target, attacker: Attacker[ImageAttack], seed: int, say: Say, controls: bool = True, announce: bool = True
) -> ImageAttempt:
    """Attack, after the controls; without them where it has passed them on the images before."""
    if announce and spent(say) is None:
        say(f"{target.title}: {attacker.name}")
    return target.run(attacker, Trial(seed, partial(spent, say), mounting(say), controls))


def until_decided(
    target: Target, tried: Sequence[Attacker[ImageAttack]], seed: int, say: Say, most: int, workers: int = 1, first: int = FIRST,
    enough: Reason | None = None,
) -> list[ImageAttempt]:  # fmt: skip
    """Attack messages of one image each until the result is decided.

    Closed forms are tried on all images. Attackers that optimise are tried on the ``first``, and then on twice as many each time,
    as long as no interval lies above :data:`SETTLED` and not all that count as evidence lie below it. Once an attacker has
    recovered all, those after it are not tried: none can find more. Each interval is for the number of images that were tried.

    Args:
        most: largest number of images on which attackers that optimise are tried.
        workers: processes for attackers that optimise, and their controls; the result does not depend on it.
        enough: why attackers that optimise are not tried at all; ``None``: they are.
    """
    quick = [attacker for attacker in tried if not attacker.attack.optimises]
    others = [attacker for attacker in tried if attacker not in quick]
    attempts = {one: [attempt_on(target, one, seed, say)] for one in quick}
    enough = enough or all_found([made for (made,) in attempts.values()])
    if enough is None and workers > 1:
        _controls_at_once(target, others, seed, say, workers)
    done = 0
    for end in _stages(min(first, most), min(len(target.images), most)):
        part = target.part(done, end)
        still = [one for one in others if not done or _may_decide(_together(attempts[one], target))]
        with closing(_in_turn(part, still if enough is None else [], seed + done, say, not done, workers)) as made_by:
            for attacker, made in made_by:
                attempts[attacker] = [*attempts.get(attacker, []), made]
                if not done and all_found([made]):
                    enough = Reason("not needed", f"{attacker.name} recovered all of the first {end}")
                    break
        done = end
        if enough is not None or _decided([_together(some, target) for some in attempts.values()]):
            break
    left = [ImageAttempt(one, inapplicable=enough) for one in others if one not in attempts]
    return [*(_together(some, target) for some in attempts.values()), *left]


def all_found(attempts: Sequence[ImageAttempt]) -> Reason | None:
    """That one of the attempts recovered all, as a reason to try no others; ``None``: none did."""
    rates = [(one.attacker.name, one.recovered) for one in attempts if one.recovered is not None]
    return next((Reason("not needed", f"{name} recovered all {rate.n}") for name, rate in rates if rate.share == 1), None)


def _in_turn(
    target: Target, attackers: Sequence[Attacker[ImageAttack]], seed: int, say: Say, controls: bool, workers: int
) -> Generator[tuple[Attacker[ImageAttack], ImageAttempt]]:
    """Each attacker's attempt; with several processes, those of the next attackers run beside."""

    def mounted(attacker: Attacker[ImageAttack]) -> tuple[ImageAttempt, float]:
        began = time.process_time()
        made = attempt_on(target, attacker, seed, say, controls, announce=False)
        return made, time.process_time() - began

    with closing(forked_in_order([partial(mounted, attacker) for attacker in attackers], workers)) as results:
        for attacker in attackers:
            if spent(say) is None:
                say(f"{target.title}: {attacker.name}")
            made, seconds = next(results)
            if workers > 1 and len(attackers) > 1:
                elsewhere(say, seconds)
            yield attacker, made


def _controls_at_once(target: Target, attackers: Sequence[Attacker[ImageAttack]], seed: int, say: Say, workers: int) -> None:
    """Run controls side by side; their results are kept (:mod:`fedpriv.attacks.lab.control`), and read before each attack."""
    calls: list[Callable[[], object]] = []
    for attacker in attackers:
        with suppress(NotTried):
            first, _ = target.start(attacker, Trial(seed))
            calls.append(partial(target.controls, attacker, first, seed))
    say("controls of the attacks that optimise")
    forked(calls, workers)


def _stages(first: int, most: int) -> Iterable[int]:
    """The total number of images after each stage."""
    end = min(first, most)
    while end < most:
        yield end
        end = min(2 * end, most)
    yield end


def _together(parts: Sequence[ImageAttempt], target: Target) -> ImageAttempt:
    """Merge attempts on consecutive parts of the images, as far as they have results.

    What was found before a later part could not be attacked is kept.
    """
    made = list(takewhile(lambda one: one.scores is not None, parts))
    if not made:
        return parts[0]
    n = sum(len(one.images) for one in made if one.images is not None)
    whole = made[0] if len(made) == 1 else joined(made, target.labels[:n])
    return whole if len(made) == len(parts) else replace(whole, cut=parts[len(made)].inapplicable)


def _may_decide(one: ImageAttempt) -> bool:
    """Whether it is tried on more images: if it passed a positive control. Where it fails on the same net, too, failures are no
    evidence, but it may still find some of many images."""
    return one.scores is not None and one.passed_positive and one.cut is None


def _decided(attempts: Sequence[ImageAttempt]) -> bool:
    """Whether the interval of an attacker lies above :data:`SETTLED`, or those of all that count as evidence below it.

    Where no failure is evidence, only what is found can decide.
    """
    rates = [one.recovered for one in attempts if one.recovered is not None]
    counting = [one.recovered for one in attempts if one.recovered is not None and one.is_evidence]
    return any(rate.low > SETTLED for rate in rates) or (bool(counting) and all(rate.high <= SETTLED for rate in counting))
