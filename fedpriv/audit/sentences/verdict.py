"""All sentences on a run."""

from __future__ import annotations

from fedpriv.audit.judge import images as judge_images
from fedpriv.audit.results.audit import AuditedRun, Part
from fedpriv.audit.sentences import clients, epsilon, samples


def verdict(run: AuditedRun) -> list[str]:
    """The sentences on one run."""
    left_out: tuple[Part, ...] = () if run.images or run.rows else ("images", "rows")
    return [
        *samples.on_images([target for target in run.images if target.kind == "message"]),
        *(samples.images(target) for target in run.images if target.kind == "single image"),
        *map(samples.texts, run.texts),
        *samples.on_rows(run.rows),
        *([clients.told_rows(run)] if run.told_rows else []),
        *(samples.not_attacked(part, run.not_run[part]) for part in left_out if part in run.not_run),
        *(samples.centers(outcome) for outcome in run.centers if judge_images.gives_away(outcome)),
        *clients.mean_colour(run.mean_colours),
        *clients.exposed(run.exposed),
        *clients.labels(run.labels),
        *clients.shadows(run.shadow_labels),
        *clients.members(run),
        *clients.attributes(run),
        *(epsilon.guarantee(run.epsilon) if run.source == "run" or run.epsilon is not None else []),
    ]
