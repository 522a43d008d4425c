"""The figures of an attempt, as results and as a table; notes on them, in lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fedpriv.attacks.lab.attempts import ImageAttempt
from fedpriv.attacks.scoring.scores import RECOVERED, THRESHOLDS, Rate, under
from fedpriv.audit.images.target import Target
from fedpriv.audit.results.images import Baseline, ImageFigures

if TYPE_CHECKING:
    from rich.table import Table


def by_threshold(rates: Mapping[float, Rate]) -> dict[str, Rate]:
    """Rates by the threshold of the mean squared error as a key of results, such as ``0.01``."""
    return {f"{limit:g}": rate for limit, rate in rates.items()}


def figures(attempt: ImageAttempt) -> ImageFigures | None:
    """The figures of an attempt; ``None``: it was not run."""
    scores, result = attempt.scores, attempt.reconstruction
    if result is None or scores is None:
        return None
    middle, exact = result.curve.nanmedian(dim=1).values.tolist(), bool(scores.psnr.median().isinf())
    return ImageFigures(
        success=by_threshold(scores.recovered),
        public_successes=None
        if attempt.copy_successes is None
        else {f"{limit:g}": count for limit, count in attempt.copy_successes.items()},
        label_accuracy=None if scores.labels is None else scores.labels.share,
        mse_median=float(scores.mse.median()),
        mse_best=float(scores.mse.min()),
        psnr_median_db=None if exact else float(scores.psnr.median()),  # JSON has no infinity
        ssim_median=float(scores.ssim.median()),
        lpips_median=None if scores.lpips is None else float(scores.lpips.median()),
        lpips_missing=scores.lpips_missing,
        feature_distance_median=None if scores.feature_distance is None else float(scores.feature_distance.median()),
        feature_distance_missing=scores.feature_distance_missing,
        cpu_seconds=result.cpu_seconds,
        images_per_cpu_second=len(scores.mse) / result.cpu_seconds if result.cpu_seconds else None,
        curve=tuple((step, loss) for step, loss in enumerate(middle, 1) if math.isfinite(loss)),
    )


def guess_figures(errors: Mapping[str, Tensor]) -> dict[str, Baseline]:
    """The baselines, by name."""
    return {name: Baseline(float(error.median()), by_threshold(under(error))) for name, error in errors.items()}


def table(attempts: Sequence[ImageAttempt], errors: Mapping[str, Tensor], target: Target) -> Table:
    """A table of the attackers, then the baselines."""
    from rich.table import Table

    last = f"the last {target.masked} fully connected layers" if target.masked > 1 else "the last layer"
    hidden = "taken as hidden" if target.note else "hidden"  # for pairs, layers may have been sent that no attack can use
    title = f"{target.title}; {f'{last} {hidden}' if target.masked else 'all layers sent'}"
    rows = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    rows.add_column("attacker", no_wrap=True)
    measured = any(attempt.scores is not None and attempt.scores.feature_distance is not None for attempt in attempts)
    seen = ("SSIM", "EfficientNet-Lite0 distance") if measured else ("SSIM",)
    limits = f"MSE < {RECOVERED:g} [95 %]", f"< {THRESHOLDS[1]:g}"
    for column in (*limits, "labels", "median MSE", "best", *seen, "images / CPU s"):
        rows.add_column(column, justify="right", no_wrap=column[0] not in "iE")
    for attempt in attempts:
        scores, result = attempt.scores, attempt.reconstruction
        if scores is None or result is None:
            continue
        hit, closer = (scores.recovered[limit] for limit in THRESHOLDS[:2])
        rows.add_row(
            attempt.attacker.name,
            f"{hit.successes} of {hit.n} [{hit.low:.0%}, {hit.high:.0%}]",
            str(closer.successes),
            "–" if scores.labels is None else f"{scores.labels.successes} of {hit.n}",
            f"{float(scores.mse.median()):.1e}",
            f"{float(scores.mse.min()):.1e}",
            f"{float(scores.ssim.median()):.2f}",
            *([] if scores.feature_distance is None else [f"{float(scores.feature_distance.median()):.3f}"]),
            f"{hit.n / result.cpu_seconds:.2g}" if result.cpu_seconds else "",
        )
    for name, error in errors.items():
        rates = under(error)
        hit, closer = (rates[limit] for limit in THRESHOLDS[:2])
        cells = (f"{hit.successes} of {hit.n}", str(closer.successes), "", f"{float(error.median()):.1e}")
        rows.add_row(name, *cells, f"{float(error.min()):.1e}", style="dim")
    return rows


def notes(attempts: Sequence[ImageAttempt]) -> list[str]:
    """Lines on what all attackers know, what only some know, which do not apply, and whose failure is no evidence."""
    knows = {attempt.attacker.name: attempt.attacker.threat.sentences() for attempt in attempts}
    shared = [sentence for sentence in next(iter(knows.values())) if all(sentence in known for known in knows.values())]
    lines = [f"{'every attacker' if len(knows) > 1 else next(iter(knows))}: {'; '.join(shared)}"]
    alike: dict[str, list[str]] = {}
    for name, known in knows.items():
        if own := "; ".join(sentence for sentence in known if sentence not in shared):
            alike.setdefault(own, []).append(name)
    lines += [f"{', '.join(names)}: {own}" for own, names in alike.items()]
    for attempt in attempts:
        if (why := attempt.inapplicable) is not None:
            lines.append(f"{attempt.attacker.name} {'cannot be mounted:' if why.kind == 'does not apply' else 'was'} {why}")
    for attempt in attempts:
        control = attempt.attacker.attack.control
        if attempt.reconstruction is not None and control is not None and control.targeted:
            aim = attempt.reconstruction.labels[attempt.reconstruction.labels >= 0]
            if len(aim):
                some = "1 image" if len(aim) == 1 else f"{len(aim)} images"
                lines.append(f"{attempt.attacker.name} aimed at {some} of class {int(aim[0])}, and at no other")
    for attempt in attempts:
        if attempt.reconstruction is not None and attempt.doubts:
            what = (
                "a failure of {}" if attempt.recovered is None or not attempt.recovered.successes else "that {} recovered no more"
            )
            lines.append(f"{what.format(attempt.attacker.name)} is no evidence: {'; '.join(map(str, attempt.doubts))}")
    return lines
