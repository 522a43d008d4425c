"""Runs side by side: the figures of each, and what tells them apart."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.api.comparability import compared_keys, contradictions, labels, repeated
from fedpriv.api.gains import BASELINES, Baseline, FinishedRun, Gain, gain_of, gains_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedpriv.evaluation.protocols import ScoreSummary
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
    are instead, if :func:`in_best_rounds`; else NaN), ``metric`` (the score that the run is ranked by), ``score``,
    ``worst_tenth`` and ``best`` (of that score), all further scores by name, ``bytes_up``, ``bytes_down`` and ``seconds``;
    ``chance`` (the accuracy of the best constant answer; NaN of a regression) and ``at_chance`` (whether the run is no better);
    ``defence``, ``epsilon`` (NaN without differential privacy), and of an audited run ``answer``, ``recovered`` (the largest
    share of samples that an attack recovered) and ``membership_auc``. Of a run whose ``status`` is not ``finished`` the accuracy
    is that of its last evaluation.

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
    at_best = in_best_rounds(folders)
    rows = [figures(folder, at_best) for folder in folders]
    named = labels(folders, rows)
    for line in contradictions(named, rows).values():
        note(line)
    further = list(dict.fromkeys(name for row in rows for name in row["scores"] if name != "accuracy"))
    columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ("scores", "constant")}
    columns |= {name: [row["scores"].get(name) for row in rows] for name in further}
    columns |= {"repeated": repeated(named, rows)} | _gain_columns(
        finished_runs(folders, rows, named, at_best), len(rows), common_score(rows)
    )
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
    :class:`fedpriv.api.gains.Difference`, and those of :class:`fedpriv.api.gains.Gain`. Runs are compared client by client, if
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
    table = pd.DataFrame([as_row(gain) for gain in gains_between(folders)], columns=list(GAIN_COLUMNS))
    return table.astype({"difference": "float64", "low": "float64", "high": "float64"})


def gains_between(folders: Sequence[Path]) -> list[Gain]:
    """The gains of the federated runs among these over the baselines among them."""
    at_best = in_best_rounds(folders)
    rows = [figures(folder, at_best) for folder in folders]
    finished = finished_runs(folders, rows, labels(folders, rows), at_best)
    return list(gains_of(list(finished.values()), common_score(rows)))


def in_best_rounds(folders: Sequence[Path]) -> bool:
    """Whether runs are compared in their best rounds on validation data, and not in their last ones: one of them has
    ``train.patience``, and each finished one has a best round."""
    from fedpriv.storage.run_folder import RunFolder
    from fedpriv.tracking import read_run

    if all(RunFolder(folder).config_as_data().train.patience is None for folder in folders):
        return False
    return all("best" in summary(folder) for folder in folders if read_run(folder).get("status") == "finished")


def as_row(gain: Gain) -> dict[str, Any]:
    """A gain as a row of a table, with the score's name."""
    values = asdict(gain) | asdict(gain.paired) | {"score": gain.score.name, "difference": gain.paired.mean}
    return {name: values[name] for name in GAIN_COLUMNS}


def finished_runs(
    folders: Sequence[Path], rows: Sequence[Mapping[str, Any]], named: Sequence[str], at_best: bool = False
) -> dict[int, FinishedRun]:
    """The finished runs that were tested, by their place among the runs; ``at_best`` as for :func:`scores`."""
    from fedpriv.storage.run_folder import RunFolder

    score = common_score(rows).name
    same = ("dataset", "data_hash", "partition_hash", "seed", "split", "rounds_allowed")
    return {
        place: FinishedRun(
            label,
            (method := RunFolder(folder).config_as_data().method.name),
            tuple(row[key] for key in same),
            scores(folder, at_best)[score].per_client,
            (config := compared_keys(folder)),
            _trained(config, method),
        )
        for place, (folder, row, label) in enumerate(zip(folders, rows, named, strict=True))
        if row["status"] == "finished" and score in row["scores"]
    }


def _trained(config: Mapping[str, str], method: str) -> str:
    """How long a client trains in a round, all phases together: ``5 epochs``; with ``train.local_steps`` in steps."""
    local, steps, given = (config.get(key, "None") for key in ("train.local_epochs", "train.local_steps", "method.epochs"))
    if method not in BASELINES:
        further = int(config.get("method.head_epochs", 0))
    else:
        further = 10 if given == "None" and steps == "None" else 0
        local, steps = (local, steps) if given == "None" else (given, "None")
    epochs = further + (int(local) if steps == "None" else 0)
    amounts = [] if epochs == 0 else [f"{epochs} epoch{'s' * (epochs > 1)}"]
    return " and ".join([*amounts, *([] if steps == "None" else [f"{steps} step{'s' * (steps != '1')}"])])


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


def figures(folder: Path, at_best: bool = False) -> dict[str, Any]:
    """A run's row of the table.

    Args:
        at_best: as for :func:`scores`; ``at_chance`` is then of that round, too.

    Raises:
        UsageError: it has not begun, or its files are not a run's.
    """
    from fedpriv.config import read_yaml
    from fedpriv.storage.run_folder import RunFolder
    from fedpriv.tracking import read_run
    from fedpriv.tracking.names import defence

    facts, reached, config = read_run(folder), summary(folder), RunFolder(folder).config_as_data()
    measured, metric = scores(folder, at_best), config.eval.metric or "accuracy"
    ranked, accuracy = measured.get(metric), measured.get("accuracy")
    best_round = reached["best"]["round"] if at_best and "best" in reached else None
    return {
        "run": folder.resolve().name,
        "status": RunFolder(folder).status,
        **{key: facts[key] for key in ("method", "dataset", "seed")},
        "rounds": reached["rounds"],
        "accuracy": None if accuracy is None else accuracy.mean,
        "averaged_rounds": reached.get("averaged_rounds", 1) if best_round is None else 1,
        "best_round": best_round,
        "rounds_allowed": config.train.rounds if reached.get("ended_by") == "patience" else reached["rounds"],
        **{key: reached.get(key) for key in ("chance", "constant", "only_answer")},
        "at_chance": reached.get("at_chance") if best_round is None else _at_chance(reached, metric, ranked),
        "probe": reached.get("probe", {}),
        "metric": metric,
        "score": None if ranked is None else ranked.mean,
        "worst_tenth": None if ranked is None else ranked.worst_tenth,
        "best": None if ranked is None else ranked.best,
        "scores": {name: score.mean for name, score in measured.items() if score.mean is not None},
        **{key: reached["protocols"].get(key) for key in ("global_test", "global_test_f1")},
        "split": config.eval.split,
        **{key: reached[key] for key in ("bytes_up", "bytes_down", "seconds")},
        **{key: facts.get(key) for key in ("partition_hash", "data_hash")},
        "code": _own_code(facts),
        "defence": defence(read_yaml(folder / "config.yaml")),
        "epsilon": (reached.get("privacy") or {}).get("epsilon"),
        **leakage(folder),
    }


def _at_chance(reached: Mapping[str, Any], metric: str, ranked: ScoreSummary | None) -> bool:
    """Whether a score is no better than a constant answer's, within its interval over the clients."""
    from fedpriv.evaluation.chance import no_better
    from fedpriv.scores.catalogue import score_named

    guessed = reached.get("chance") if metric == "accuracy" else (reached.get("constant") or {}).get(metric)
    return ranked is not None and guessed is not None and no_better(ranked.per_client, guessed, score_named(metric))


def leakage(folder: Path) -> dict[str, Any]:
    """What the run's audit found, in three figures; all ``None``: it was not audited.

    Raises:
        UsageError: the report in the folder is not one.
    """
    from fedpriv.audit.results.stored import audit_of

    if (audited := audit_of(folder)) is None:
        return dict.fromkeys(("answer", "recovered", "membership_auc"))
    from fedpriv.audit.judge.measures import known_recovered, membership_auc

    run, _ = audited
    return {"answer": run.concluded.words, "recovered": known_recovered(run), "membership_auc": membership_auc(run)}


def common_score(rows: Sequence[Mapping[str, Any]]) -> Score:
    """The score that all runs are ranked by; accuracy if these differ.

    Args:
        rows: the :func:`figures` of each.
    """
    from fedpriv.scores.catalogue import ACCURACY, score_named

    names = {row["metric"] for row in rows}
    return score_named(names.pop()) if len(names) == 1 else ACCURACY


def scores(folder: Path, at_best: bool = False) -> dict[str, ScoreSummary]:
    """A run's scores by name, averaged as its accuracy is; of a run that is not finished, at its last evaluation.

    Args:
        at_best: of a finished run, in its best round on validation data alone.
    """
    from fedpriv.evaluation.protocols import ScoreSummary, best, score_summaries, worst_tenth
    from fedpriv.tracking import read_records

    reached = summary(folder)
    if at_best and "best" in reached:
        return score_summaries([record for record in read_records(folder) if record["round"] == reached["best"]["round"]], 1)
    if "scores" in reached:
        return {name: ScoreSummary(**values) for name, values in reached["scores"].items()}
    if reached["accuracy"] is None:
        return {}
    clients, protocols = reached["accuracy_per_client"], reached["protocols"]  # of a version that measured nothing else
    spread = worst_tenth(clients), best(clients), protocols.get("client_std")
    accuracy = ScoreSummary(
        reached["accuracy"], protocols.get("last_rounds_weighted"), *spread, None, protocols.get("global_test"), clients
    )
    return {"accuracy": accuracy}


def summary(folder: Path) -> dict[str, Any]:
    """A run's summary; while there is none, what its last records say in place of it."""
    from fedpriv.evaluation.protocols import score_summaries
    from fedpriv.files import load_json
    from fedpriv.tracking import Record, read_records, read_run

    if read_run(folder).get("status") == "finished":
        return load_json(folder / "summary.json")
    records = read_records(folder)
    evaluated = [record for record in records if record.get("per_client")]
    last: Record = records[-1] if records else {"round": 0, "metrics": {}}
    reached = evaluated[-1]["metrics"] if evaluated else {}
    scores = score_summaries(evaluated[-1:], 1)
    return {
        "rounds": last["round"],
        "accuracy": reached.get("accuracy"),
        "accuracy_per_client": evaluated[-1]["per_client"].get("accuracy", []) if evaluated else [],
        "protocols": {"global_test": reached.get("global_accuracy"), "global_test_f1": reached.get("global_f1_macro")},
        "scores": {name: asdict(score) for name, score in scores.items()},
        "bytes_up": last["metrics"].get("total_bytes_up", 0),
        "bytes_down": last["metrics"].get("total_bytes_down", 0),
        "seconds": sum(record["metrics"].get("seconds", 0.0) for record in records),
    }


def _own_code(facts: Mapping[str, Any]) -> str | None:
    """SHA-256 (hex) of the plug-ins and the net of the user's own by which a run was made; ``None``: there are none."""
    from fedpriv.storage.provenance import code_of

    code = code_of(facts)
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest() if code else None
