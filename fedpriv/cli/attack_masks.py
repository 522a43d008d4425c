"""``fedpriv attack secagg-masks``: a search for the seed of a secure aggregation's masks, Flower's and this package's."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

from fedpriv.cli.attack_request import Request
from fedpriv.cli.common import console
from fedpriv.cli.controls import held_to, progress, tell_controls, with_options
from fedpriv.errors import UsageError

EXACT = 1e-4
"""The largest error of a recovered upload, as a share of its largest value; rounding to 22 bits makes less."""
STEPS = 16
"""Of the progress that is shown."""


def attack_masks(request: Request) -> dict[str, Any]:
    """Search for the seed of one round under either generator, in one pass.

    Flower's generator is the positive control, since its seeds can all be tried; this package's is the negative one.

    Raises:
        UsageError: an option does not apply.
        FedprivError: a control failed.
    """
    import numpy as np

    from fedpriv.attacks.inference.masked_sums import (
        SEED_BITS,
        SecaggMasks,
        Words,
        flower_mask,
        flower_seed,
        masked_round,
        number_of,
        unmask,
    )
    from fedpriv.attacks.lab.control import Control
    from fedpriv.secure.masks import mask

    others = {field.name for field in fields(request)} - {"name", "options", "seed", "runs_dir", "malicious"}
    if given := request.given(*sorted(others)):
        what = f"{', '.join(given)} has no effect. It takes --seed and --set bits=N"
        raise UsageError(f"{request.name} attacks a round that it makes up; {what}")
    attack, seed = with_options(SecaggMasks, request.name, request.options), request.seed

    def our_mask(key: bytes, size: int) -> Words:
        return mask(key, size).astype(np.uint32)

    rounds = {"flower": masked_round(flower_mask, seed=seed), "fedpriv": masked_round(our_mask, seed=seed)}
    numbers = attack.numbers(number_of(flower_seed(rounds["flower"].key)))
    out = console(width=120)
    given_bits = SEED_BITS - attack.bits
    known = f"; {given_bits} further bits of it are given (an oracle)" if given_bits else ""
    out.print(f"the server knows both masked uploads, and tries {len(numbers):,} seeds of their mask{known}", soft_wrap=True)
    began, steps_told = time.process_time(), 0
    with progress(STEPS) as begin:

        def tell(done: int) -> None:
            nonlocal steps_told
            if done * STEPS // len(numbers) > steps_told:
                steps_told = done * STEPS // len(numbers)
                begin(f"{done:,} seeds tried")

        pairs = dict(zip(rounds, unmask([round.pair for round in rounds.values()], numbers, tell), strict=True))
    spent = time.process_time() - began
    errors = {name: rounds[name].error(pair.uploads) if pair else None for name, pair in pairs.items()}
    right = errors["flower"] is not None and errors["flower"] < EXACT
    controls = [
        Control("positive", right, f"Flower's masks: {_phrase(errors['flower'])}", spent),
        Control("negative", pairs["fedpriv"] is None, f"AES-CTR under the whole key: {_phrase(errors['fedpriv'])}", spent),
    ]
    tell_controls(controls, out)
    held_to(controls)
    out.print(f"{spent:.0f} CPU s", soft_wrap=True)
    return {
        "attack": request.name,
        "seed": seed,
        "bits": attack.bits,
        "recovered": {name: pair is not None for name, pair in pairs.items()},
        "errors": errors,
        "cpu_seconds": spent,
        "controls": [vars(control) for control in controls],
    }


def _phrase(error: float | None) -> str:
    return "no seed fits" if error is None else f"both clients' uploads recovered, error {error:.1e} of the largest value"
