"""The table of an experiment's claims: our number, its interval and the verdict."""

from __future__ import annotations

from fedpriv.experiments.claims import MIN_SEEDS, Judgement
from fedpriv.experiments.markdown import table
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.page.figures import by_seed, in_bytes
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
    "upload_bytes": ", one upload",
    "probe": " (linear probe)",
}
_WHAT_OF_TWO = {
    "clients_better": "of the clients better off with {} than with {}",
    "speed_up": "fewer rounds of {} to the final accuracy of {}",
    "bytes_saved": "of the bytes saved by {} to the final accuracy of {}",
}


def claims(comparison: Comparison) -> list[str]:
    """Our number and the verdict, by claim."""
    if not comparison.judgements:
        return []
    experiment = comparison.experiment
    rows = [_claim(judgement) for judgement in comparison.judgements]
    head = "claim | the paper, or what we hold against it | ours | each seed | 95 % interval | verdict"
    few = f"{len(experiment.seeds)} seeds are too few to call a difference reproduced; only byte counts can be."
    return ["### What the paper says", table(head, rows), *([few] if len(experiment.seeds) < MIN_SEEDS else [])]


def _claim(judgement: Judgement) -> tuple[str, ...]:
    claim = judgement.claim
    names = [judgement.opponent or "the best other method" if label == BEST_BASELINE else label for label in claim.labels]
    if claim.metric in _WHAT_OF_TWO:
        unit = _WHAT_OF_TWO[claim.metric].format(*names)
    else:
        best = f", the best other of {len(judgement.baselines)}" if judgement.opponent else ""
        unit = " − ".join(names) + best + _WHAT[claim.metric]
    low_high = judgement.interval and ", ".join(_number(claim, bound) for bound in judgement.interval)
    return (
        claim.id,
        " ".join(claim.statement.split()),
        f"– ({unit})" if judgement.mean is None else f"**{_number(claim, judgement.mean)}** {unit}",
        by_seed({seed: _number(claim, value) for seed, value in judgement.values.items()}),
        f"[{low_high}]" if low_high else "–",
        str(judgement.verdict),
    )


def _number(claim: Claim, value: float) -> str:
    if claim.metric == "upload_bytes":
        return in_bytes(value, 3) if value >= 0 else f"-{in_bytes(-value, 3)}"
    if claim.metric == "test_loss_roughness":
        return f"{value:+.4f} nats"
    if claim.metric == "speed_up":
        return f"{value:.2f}×"
    if claim.metric in PAIRED or claim.of:
        return f"{100 * value:.1f} %"
    return f"{100 * value:+.2f}"
