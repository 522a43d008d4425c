"""Numbers that clients report by name: which names they may not use, and the means for the round's record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import fmean

from fedpriv.scores.catalogue import SCORES, SUMMARIES
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Report

_RESERVED = frozenset(
    {
        *("untrained", "round", "participants", "dropped", "refused", "missing", "too_few_uploads", "not_finite"),
        *("summed", "sum_error", "untested", "padding", "seconds", "epsilon", "train_loss", "test_loss", "bytes_up"),
        *("lr", "bytes_down", "bytes_up_tests", "bytes_down_tests", "total_bytes_up", "total_bytes_down"),
        *("accuracy_fresh_head", "accuracy_before_merge"),
        *SCORES,
        # ``..._mean`` and the next line: the server's names as MLflow has them, where they differ by more than a slash.
        *(f"{score}_{summary}" for score in SCORES for summary in (*SUMMARIES, "mean")),
        *("bytes_total_up", "bytes_total_down", "loss_train", "loss_test", "privacy_epsilon", "privacy_clipped"),
    }
)
MOST = 1000
"""Most numbers in a report; noise transforms report one for each layer."""
_RESERVED_PREFIXES = ("global_", "probe/", "probe_as_is/", "probe_logistic/", "final/", "audit/", "system/")
"""Prefixes of other names that the server uses in records or in MLflow."""


def check_names(names: Iterable[str]) -> None:
    """Check that a record may contain numbers of these names beside the server's own.

    Raises:
        Refused: a name is one of the server's (case ignored, and any punctuation read as ``_``); or a part of it between slashes
            is empty or begins with a dot, which trackers refuse; or there are more than :data:`MOST` names.
    """
    names = list(names)
    if len(names) > MOST:
        raise Refused(f"it reports {len(names)} numbers of its own, more than {MOST}")
    for name in names:
        plain = re.sub(r"[^\w/]", "_", name.lower())
        if plain.replace("/", "_") in _RESERVED or plain.startswith(_RESERVED_PREFIXES):
            raise Refused(f"it reports {name}, which is a number of the server's own")
        if any(not part or part.startswith(".") for part in name.split("/")):
            raise Refused(f"it reports {name!r}; no part of a name between slashes may be empty or begin with a dot")


def means(reports: Iterable[Report]) -> dict[str, float]:
    """The mean of each number over the reports that have it, by name."""
    by_name: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.numbers.items():
            by_name.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in by_name.items()}
