"""The keys that a config leaves open, filled in by the data set, by defaults and by what the clients hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.agreement import Declared
from fedpriv.config import RunConfig, filled, usual_share
from fedpriv.scores.catalogue import ACCURACY, usual_score
from fedpriv.server.sampling import read_schedule


def resolve(config: RunConfig, default_model: str | None, suggestions: Mapping[str, Any] | None = None) -> RunConfig:
    """The config with its open keys filled in by what the data set suggests, and by defaults.

    Only ``train.participation`` may stay open, as it depends on how many clients hold data (:func:`with_default_share`).
    """
    config = with_schedule(filled(config, suggestions or {}))
    partition = config.data.partition
    if partition.seed is None:
        partition = partition.model_copy(update={"seed": config.seed})
    config = config.with_values("data", partition=partition, augment=config.data.augment or "none")
    config = config.with_values("model", name=config.model.name or default_model)
    return config.with_values("train", selection=config.train.selection or "uniform")


def with_default_share(config: RunConfig, holders: int) -> RunConfig:
    """The config with ``train.participation``, the share of clients that take part in a round.

    Args:
        holders: number of clients that hold training data, on which the default depends.
    """
    if config.train.participation is not None:
        return config
    return config.with_values("train", participation=usual_share(holders))


def with_schedule(config: RunConfig) -> RunConfig:
    """The config with the content of the file ``train.schedule``, so that a run does not depend on a file that may change."""
    file = config.train.schedule
    if not isinstance(file, Path):
        return config
    return config.with_values("train", schedule=read_schedule(file, config.data.clients, config.train.rounds))


def with_metric(config: RunConfig, declared: Declared) -> RunConfig:
    """The config with ``eval.metric``, the score that the run is ranked by.

    By default it depends on how imbalanced the classes are. It is accuracy if their counts are not known, and of a regression
    the RMSE.

    Raises:
        UsageError: the score that the config names does not suit the data.
    """
    score = declared.task.score(config.eval.metric, declared.class_counts)
    return config.with_values("eval", metric=score.name)


def note_on_imbalance(config: RunConfig, declared: Declared, names: Sequence[str]) -> str | None:
    """A line that says by which score a run on imbalanced classes is ranked, if nothing else was asked for.

    Args:
        config: with ``eval.metric``.
        names: of the classes.
    """
    counts = declared.class_counts
    if counts is None or ACCURACY is (score := usual_score(counts)) or config.eval.metric != score.name:
        return None
    return (
        f"{max(counts) / sum(counts):.1%} of the training labels are {names[counts.index(max(counts))]!r}: the run is ranked by "
        f"{score.title} and not by accuracy (--set eval.metric=accuracy)"
    )
