"""A run's leakage in numbers, for tables of runs, such as MLflow's."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fedpriv.audit.judge import classes, images, texts
from fedpriv.audit.judge.measures import MEASURES
from fedpriv.audit.results import AuditedRun


def metrics(run: AuditedRun) -> dict[str, float]:
    """By name: recovery rates by kind of target, rates of right classes, and every measure, without those that are not known."""
    values: dict[str, float | None] = {}
    for what in ("message", "single image"):
        if (most := images.best_of(run, what)) is not None:
            values[f"recovered_from_{what.replace(' ', '_')}"] = most.rate.share
    # That class centres gave no image away is no evidence.
    centers = [center.recovered.rate.share for center in run.centers if images.gives_away(center)]
    values["recovered_from_centers"] = max(centers, default=None)
    for kind in ("message", "single text"):
        if (attack := texts.best_of(run, kind)) is not None:
            place, exact = kind.replace(" ", "_"), texts.most_exact(run.texts, kind)
            values[f"token_recall_from_{place}"] = attack.figures.recall
            values[f"token_precision_from_{place}"] = attack.figures.precision
            values[f"exact_texts_from_{place}"] = None if exact is None else exact.share
    values["labels_exact"] = _mean([result.exact for result in classes.by_rule(run.labels)])
    values["label_counts"] = _mean([result.count_accuracy for result in run.labels if result.count_accuracy is not None])
    values["labels_exact_by_shadows"] = None if run.shadow_labels is None else run.shadow_labels.report.exact
    values |= {name: measure.value(run) for name, measure in MEASURES.items()}
    return {key: float(value) for key, value in values.items() if value is not None and isfinite(value)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
