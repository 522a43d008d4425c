"""The table of an experiment's claims: our number, its interval and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedpriv.experiments.claims import MIN_SEEDS, Judgement
from fedpriv.experiments.markdown import by_seed, in_bytes, name_seeds, table
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.paired import PAIRED
from fedpriv.experiments.spec import BEST_BASELINE, Claim

_WHAT = {
    "accuracy": "",
    "worst_tenth": " in the worst tenth",
    "fresh_head": " with fresh heads",
    "before_merge": " (models sent, own test data)",
    "global_accuracy": " (global model)",
    "global_before_merge": " (models sent, server's test set)",
    "early_accuracy": " in the first quarter of the rounds",
    "test_loss_roughness": " (standard deviation of the changes of the test loss, second half)",
    "upload_bytes": ", one client's answer (upload and report)",
    "probe": " (linear probe)",
}
_WHAT_OF_TWO = {
    "clients_better": "of the clients better off with {} than with {}",
    "speed_up": "as fast as {1}, in rounds until {1}'s final accuracy ({0})",
    "bytes_saved": "of the bytes saved by {} to the final accuracy of {}",
}
_MOST_DIGITS = 4  # more than usual: results have 6 decimals


def claims(comparison: Comparison) -> list[str]:
    """Our number and the verdict, by claim."""
    if not comparison.judgements:
        return []
    experiment = comparison.experiment
    seeds = sorted({seed for judgement in comparison.judgements for seed in judgement.values})
    rows = [_claim(judgement, seeds) for judgement in comparison.judgements]
    head = f"claim | the paper, or our own claim | ours | {name_seeds(seeds)} | 95 % interval | verdict"
    texts = []
    if any(row.split == "validation" for row in comparison.methods):
        texts.append("Accuracies of clients are those on validation data.")
    if len(experiment.seeds) < MIN_SEEDS:
        texts.append(f"{len(experiment.seeds)} seeds are too few to call a difference reproduced; only byte counts can be.")
    return ["### What the paper says", table(head, rows), *texts]


def _claim(judgement: Judgement, seeds: Sequence[int]) -> tuple[str, ...]:
    claim, more = judgement.claim, _more_digits(judgement)
    names = [judgement.opponent or "the best other method" if label == BEST_BASELINE else label for label in claim.labels]
    if claim.metric in _WHAT_OF_TWO:
        unit = _WHAT_OF_TWO[claim.metric].format(*names)
    else:
        best = f", the best other of {len(judgement.baselines)}" if judgement.opponent else ""
        unit = " − ".join(names) + best + _WHAT[claim.metric]
    low_high = judgement.interval and ", ".join(_number(claim, bound, more) for bound in judgement.interval)
    several = len(judgement.baselines) if judgement.opponent else 1
    chosen = f", not corrected for choosing the best of {several}" if several > 1 else ""
    return (
        claim.id,
        " ".join(claim.statement.split()),
        f"– ({unit})" if judgement.mean is None else f"**{_number(claim, judgement.mean, more)}** {unit}",
        by_seed({seed: _number(claim, value, more) for seed, value in judgement.values.items()}, seeds),
        f"[{low_high}]{chosen}" if low_high else "–",
        str(judgement.verdict),
    )


def _more_digits(judgement: Judgement) -> int:
    """The number of extra digits with which no number looks equal to a bound of the claim that it differs from."""
    claim = judgement.claim
    if claim.equals is not None:
        bounds = [claim.equals - claim.within, claim.equals + claim.within]
    elif claim.above is None and claim.below is None:
        bounds = [0.0, claim.margin]
    else:
        bounds = [bound for bound in (claim.above, claim.below) if bound is not None]
    numbers = [value for value in (judgement.mean, *(judgement.interval or ())) if value is not None]
    apart = [
        (value, bound) for value in numbers for bound in bounds if not math.isclose(value, bound, rel_tol=1e-9, abs_tol=1e-9)
    ]

    def alike(value: float, bound: float, more: int) -> bool:
        shown, limit = _number(claim, value, more), _number(claim, bound, more)
        return shown == limit or (bound == 0 and shown.lstrip("+-") == limit.lstrip("+-"))

    return next((more for more in range(_MOST_DIGITS) if not any(alike(*pair, more) for pair in apart)), _MOST_DIGITS)


def _number(claim: Claim, value: float, more: int = 0) -> str:
    """A number of a claim, in its metric's unit, with ``more`` extra digits."""
    if claim.metric == "upload_bytes":
        return in_bytes(value, 3 + more) if value >= 0 else f"-{in_bytes(-value, 3 + more)}"
    if claim.metric == "test_loss_roughness":
        return f"{value:+.{4 + more}f} nats"
    if claim.metric == "speed_up":
        return f"{value:.{2 + more}f}×"
    if claim.metric in PAIRED or claim.of:
        return f"{100 * value:.{1 + more}f} %"
    return f"{100 * value:+.{2 + more}f}"
