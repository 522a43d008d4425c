"""A run's leakage in numbers, for tables of runs, such as MLflow's."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fedpriv.audit.judge import classes, images, texts
from fedpriv.audit.judge.measures import MEASURES
from fedpriv.audit.results import AuditedRun


def metrics(run: AuditedRun) -> dict[str, float]:
    """By name: what attacks recovered, by target; the classes found; and every measure. What is not known is left out."""
    values: dict[str, float | None] = {}
    for what in ("message", "single image"):
        if (most := images.best_of(run, what)) is not None:
            values[f"recovered_from_{what.replace(' ', '_')}"] = most.counted.rate.share
    # That class centres gave no image away is no evidence.
    values["recovered_from_centers"] = max(
        (one.counted.rate.share for one in run.centers if images.gives_away(one)), default=None
    )
    for kind in ("message", "single text"):
        if (read := texts.best_of(run, kind)) is not None:
            place, exact = kind.replace(" ", "_"), texts.most_exact(run.texts, kind)
            values[f"token_recall_from_{place}"] = read.figures.recall
            values[f"token_precision_from_{place}"] = read.figures.precision
            values[f"exact_texts_from_{place}"] = None if exact is None else exact.share
    values["labels_exact"] = _mean([one.exact for one in classes.by_rule(run.labels)])
    values["label_counts"] = _mean([one.count_accuracy for one in run.labels if one.count_accuracy is not None])
    values["labels_exact_by_shadows"] = None if run.shadow_labels is None else run.shadow_labels.report.exact
    values |= {name: measure.value(run) for name, measure in MEASURES.items()}
    return {key: float(value) for key, value in values.items() if value is not None and isfinite(value)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
