"""The metrics of one run that a claim can be about."""

from __future__ import annotations

import statistics
from itertools import pairwise

from fedpriv.errors import UsageError
from fedpriv.experiments.results import Result


def metric(result: Result, name: str, fraction: float = 1.0) -> float | None:
    """A metric of one run (:data:`fedpriv.experiments.spec.Metric`); ``None`` where it does not apply.

    ``early_accuracy`` is the mean over the evaluations of the first quarter of the rounds; ``test_loss_roughness`` the standard
    deviation of the changes of the global model's test loss (nats) from one evaluation to the next in the second half;
    ``probe`` the accuracy, after the last round, of a linear classifier trained with the share ``fraction`` of the labels.

    Raises:
        UsageError: an accuracy of a self-supervised run, or a probe that the run does not have.
    """
    summary = result.summary
    if name == "probe":
        share = f"{fraction:g}"
        if share not in summary.get("probe", {}):
            raise UsageError(f"run {result.label} has no probe with {share} of the labels (eval.probe, eval.probe_fractions)")
        return float(summary["probe"][share])
    if summary["accuracy"] is None and name != "upload_bytes":
        raise UsageError(f"run {result.label} is self-supervised and has no {name}; use metric probe, with eval.probe")
    if name == "test_loss_roughness":
        losses: list[float | None] = result.curve.get("test_loss") or []
        late = [loss for number, loss in zip(result.curve["round"], losses, strict=False) if number > summary["rounds"] / 2]
        known = [loss for loss in late if loss is not None]
        return statistics.stdev(after - before for before, after in pairwise(known)) if 2 < len(known) == len(late) else None
    if name == "early_accuracy":
        early = [accuracy for number, accuracy in result.tested() if number <= summary["rounds"] / 4]
        return statistics.fmean(early) if early else None
    if name == "upload_bytes":
        return float(summary["bytes_per_upload"])
    protocol = {"accuracy": "last_rounds_client_mean", "global_accuracy": "global_test"}.get(name, name)
    value = summary["protocols"].get(protocol)  # not every result has `fresh_head`
    return None if value is None else float(value)
