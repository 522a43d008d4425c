"""Runs in a table: the figures of each, and what federated ones gain over baselines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.api.comparison.comparability import contradictions, repeated
from fedpriv.api.comparison.gains import BASELINES, Baseline, FinishedRun, Gain, gain_of, gains_of
from fedpriv.api.comparison.side_by_side import Comparison

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedpriv.scores.catalogue import Score

GAIN_COLUMNS = (
    "score", "label", "method", "baseline", "baseline_label", "difference", "low", "high", "over", "count", "unpaired", "differ",
    "trained",
)  # fmt: skip
"""Of :func:`gains`."""


def compare(runs: Iterable[str | os.PathLike[str]], runs_dir: str | os.PathLike[str] = "runs") -> DataFrame:
    """Compare runs in a table, a row a run, as ``fedpriv compare`` does.

    Columns are, among others, ``label`` (the method, and the keys in which runs of one method differ, the seed aside),
    ``method``, ``dataset``, ``seed``, ``rounds``, ``accuracy`` (a share; NaN where it was not measured), ``averaged_rounds``
    (over how many last rounds it and all scores are averaged, config key ``eval.last``), ``best_round`` (the round of which they
    are instead, if a run has ``train.patience`` and each finished one has a best round; else NaN), ``metric`` (the score that
    the run is ranked by), ``score``, ``worst_tenth`` and ``best`` (of that score), all further scores by name, ``bytes_up``,
    ``bytes_down`` and ``seconds``; ``chance`` (the accuracy of the best constant answer; NaN of a regression) and ``at_chance``
    (whether the run is no better); ``defence``, ``epsilon`` (NaN without differential privacy), and of an audited run
    ``answer``, ``recovered`` (the largest share of samples that an attack recovered) and ``membership_auc``. Of a run whose
    ``status`` is not ``finished`` the accuracy is that of its last evaluation.

    ``over_local`` and ``over_pooled`` are the mean differences of the clients' scores from those in the run of that method (of
    several, the best), by the score that all runs are ranked by (accuracy, if these differ). The runs have the same data,
    partition, seed and ``rounds_allowed`` (``rounds``; of a run that ``train.patience`` ended, the rounds it could have run); the
    95 % intervals are over the clients (``over_local_low``, ``over_local_high``);
    :func:`gains` has intervals over seeds, and :func:`fedpriv.groups` the means over seeds.

    ``repeated`` is whether an earlier row has the same label, seed and samples at the clients. Such a row adds nothing to a mean;
    where it has another result, as one made by another version of fedpriv may have, a note names both.

    Args:
        runs: run objects, run folders, run ids, or unique beginnings of a folder's name in ``runs_dir``.

    Raises:
        UsageError: one of them is no run, or there are none.
    """
    import pandas as pd

    from fedpriv.errors import UsageError
    from fedpriv.tracking import find_run
    from fedpriv.untrusted.notes import note

    folders = [find_run(os.fspath(run), Path(runs_dir)) for run in ((runs,) if isinstance(runs, str | os.PathLike) else runs)]
    if not folders:
        raise UsageError("there are no runs to compare")
    compared = Comparison(folders)
    rows, named = compared.rows, compared.labels
    for line in contradictions(named, rows).values():
        note(line)
    further = list(dict.fromkeys(name for row in rows for name in row["scores"] if name != "accuracy"))
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ("scores", "constant")}
    columns |= {name: [row["scores"].get(name) for row in rows] for name in further}
    columns |= {"repeated": repeated(named, rows)} | _gain_columns(compared.finished, len(rows), compared.score)
    table = pd.DataFrame({"label": named} | columns)
    floats = (
        *further,
        "accuracy",
        "best_round",
        "score",
        "chance",
        "worst_tenth",
        "best",
        "global_test",
        "global_test_f1",
        "epsilon",
        "recovered",
        "membership_auc",
    )
    numbers = dict.fromkeys((*floats, *(name for name in table if name.startswith("over_"))), "float64")
    return table.astype(numbers).set_index("run")


def gains(runs: Iterable[str | os.PathLike[str]], runs_dir: str | os.PathLike[str] = "runs") -> DataFrame:
    """What federated runs gain over runs of ``local`` and of ``pooled`` (below 0: what they lose), in a table.

    There is a row for each label of federated runs and each label of a baseline. The columns are ``score`` (that all runs are
    ranked by; accuracy, if these differ), ``difference`` (its mean) with ``low``, ``high``, ``over`` and ``count`` of
    :class:`.gains.Difference`, and those of :class:`.gains.Gain`. Runs are compared client by client, if
    they have the same data, partition, seed and number of rounds; how many rounds ``train.patience`` left of these is a result,
    and does not matter. ``unpaired`` runs of the two labels have no such partner and do not count.

    Args:
        runs: as for :func:`compare`.

    Raises:
        UsageError: one of them is no run.
    """
    import pandas as pd

    from fedpriv.tracking import find_run

    folders = [find_run(os.fspath(run), Path(runs_dir)) for run in runs]
    table = pd.DataFrame([as_row(gain) for gain in gains_between(Comparison(folders))], columns=list(GAIN_COLUMNS))
    return table.astype({"difference": "float64", "low": "float64", "high": "float64"})


def gains_between(compared: Comparison) -> list[Gain]:
    """The gains of the federated runs among these over the baselines among them."""
    return list(gains_of(list(compared.finished.values()), compared.score))


def as_row(gain: Gain) -> dict[str, Any]:
    """A gain as a row of a table, with the score's name."""
    values = asdict(gain) | asdict(gain.paired) | {"score": gain.score.name, "difference": gain.paired.mean}
    return {name: values[name] for name in GAIN_COLUMNS}


def _gain_columns(finished: Mapping[int, FinishedRun], runs: int, score: Score) -> dict[str, list[float | None]]:
    """The columns of each run over the best run of each baseline with the same clients."""
    columns: dict[str, list[float | None]] = {}
    for baseline in BASELINES:
        gains = [
            None if (run := finished.get(number)) is None else _over_best(run, baseline, finished.values(), score)
            for number in range(runs)
        ]
        for end, name in (("", "mean"), ("_low", "low"), ("_high", "high")):
            columns[f"over_{baseline}{end}"] = [None if gain is None else getattr(gain.paired, name) for gain in gains]
    return columns


def _over_best(run: FinishedRun, baseline: Baseline, runs: Iterable[FinishedRun], score: Score) -> Gain | None:
    """The gain of a run over the best run of a baseline with the same clients; ``None``: there is none."""
    others = [other for other in runs if other.method == baseline and other.same == run.same]
    over = [gain for other in others if (gain := gain_of([(run, other)], baseline, score)) is not None]
    best = min if score.higher_is_better else max
    return None if run.method == baseline else best(over, key=lambda gain: gain.paired.mean, default=None)
