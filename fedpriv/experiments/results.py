"""The result of one run as data, also of one that diverged: small, without local paths, to be committed beside the YAML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.evaluation.probe_during_run import AS_IS, PROBE
from fedpriv.files import Damaged, load_json, write_atomically
from fedpriv.scores.catalogue import ACCURACY
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import Record, read_records

_CURVE = {
    "accuracy": "accuracy",
    "accuracy_worst_tenth": "accuracy_worst_tenth",
    "global_accuracy": "global_accuracy",
    "test_loss": "test_loss",
    "train_loss": "train_loss",
    "bytes_up": "total_bytes_up",
    "bytes_down": "total_bytes_down",
}

_OTHER_MODELS = "global_accuracy_"
"""The beginning of the metrics of global models that were tested beside the server's, such as FedDyn's plain mean."""

_NOT_COPIED = ("run_id", "run_dir", "payloads", "accuracy_per_client", "metric", "scores", "constant")
"""Entries of a run's summary that the result leaves out: on its folder, stored elsewhere in the result, or scores beside
accuracy and the one that ranks, which no claim of a paper is about."""


class Stored:
    """A dataclass that is stored as JSON beside a YAML; a field that has a default is left out of the file where it is empty."""

    SOMETHING_ELSE: ClassVar[str]
    """What an error says of a file that lacks a field."""
    TABLES: ClassVar[tuple[str, ...]] = ()
    """Mappings that are written with a line for each entry."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; :class:`Damaged` where it is something else."""
        values, names = load_json(path), _needed(cls)
        if missing := sorted(name for name, is_needed in names.items() if is_needed and name not in values):
            raise Damaged(f"{path} {cls.SOMETHING_ELSE} (no {missing[0]!r})")
        return cls(**{name: values[name] for name in names if name in values})

    def write(self, path: Path) -> None:
        """Write the file, one line per field, so that diffs are readable."""
        values = {name: value for name, is_needed in _needed(type(self)).items() if (value := getattr(self, name)) or is_needed}
        tables = {name: values.pop(name) for name in self.TABLES if name in values}
        lines = [f' "{name}": {json.dumps(value, allow_nan=False)}' for name, value in values.items()]
        for table, columns in tables.items():
            rows = [f'  "{name}": {json.dumps(column, allow_nan=False)}' for name, column in columns.items()]
            lines.append(f' "{table}": {{\n' + ",\n".join(rows) + "\n }")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _needed(kind: Any) -> dict[str, bool]:
    """The fields of a dataclass, and whether they have no default."""
    return {each.name: each.default_factory is MISSING for each in fields(kind)}


@dataclass(frozen=True)
class StoredRun(Stored):
    """What is stored of every run that ended, whether with numbers or not; see :class:`Result`."""

    label: str
    seed: int
    config: dict[str, Any]
    config_fingerprint: str
    partition_hash: str
    versions: dict[str, str]
    git_commit: str | None
    device: str
    continued: list[dict[str, Any]] = field(default_factory=list, kw_only=True)
    plugins: dict[str, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Result(StoredRun):
    """The result of one run.

    Attributes:
        config: the resolved config, without keys on storage and tracking.
        summary: accuracy (mean over clients and over the last ``averaged_rounds`` rounds), ``accuracy_per_client``, the same
            after the last round alone (``accuracy_per_client_at_end``) and the round in which each client trained last
            (``last_update_per_client``), all protocols, the score that the run is ranked by if that is another one (``ranked``),
            bytes (``bytes_round_zero``: the broadcast of the initial model; ``bytes_per_upload``: one client's upload in one
            round), seconds.
        curve: columns, one entry per evaluated round; bytes and seconds are totals since the start; ``test_loss`` is the global
            model's on the server's test set in nats. A run without labels has an entry for every round; where it was probed,
            ``probe/1``, the accuracy of a linear classifier with all labels, and ``probe_as_is/1``, the same without re-estimated
            BatchNorm statistics. Where other global models were tested beside the server's, ``global_accuracy_<name>``.
        traces: numbers reported by merges and clients (``simprox/tv``): columns, one entry per round, ``None`` where missing.
        leakage: what an audit of the run found (:func:`fedpriv.experiments.leaks.leakage`); empty where it was not audited.
        processor: on which kind it ran; empty: not recorded.
        data_hash: of samples and labels; empty: not recorded.
        continued: from which round on another commit, other versions, another processor or other plug-ins continued the run.
        plugins: SHA-256 (hex) of the files of plug-ins and of a user net, by module.

    Results that were stored early lack some of the summary and of the columns.
    """

    SOMETHING_ELSE = "is not a result of an experiment"
    TABLES = ("curve", "traces")

    summary: dict[str, Any]
    curve: dict[str, list[Any]]
    traces: dict[str, list[Any]] = field(default_factory=dict)
    leakage: dict[str, Any] = field(default_factory=dict)
    processor: str = field(default_factory=str)
    data_hash: str = field(default_factory=str)

    def tested(self) -> list[tuple[int, float]]:
        """(round, accuracy) of the evaluations with the method's complete protocol.

        Those before the last rounds are left out for a method that fine-tunes in the last rounds only.
        """
        points = zip(self.curve["round"], self.curve["accuracy"], strict=True)
        return [(at, accuracy) for at, accuracy in points if accuracy is not None and at >= self.summary["tested_from"]]

    @property
    def tested_at_end(self) -> bool:
        """Whether only the last rounds have the method's complete protocol, so that there is no learning curve."""
        return bool(self.summary["tested_from"] > 1)

    @property
    def core_seconds(self) -> float | None:
        """CPU seconds of the run; wall-clock seconds where the former were not counted."""
        spent = self.summary.get("cpu_seconds") or self.summary.get("seconds")
        return None if spent is None else float(spent)

    def records(self) -> list[Record]:
        """:meth:`tested` in the form of ``metrics.jsonl``, for :mod:`fedpriv.plots`."""
        rounds = {number for number, _ in self.tested()}
        columns = {metric: self.curve[name] for name, metric in _CURVE.items() if name in self.curve}
        return [
            {"round": number, "metrics": {metric: column[i] for metric, column in columns.items()}}
            for i, number in enumerate(self.curve["round"])
            if number in rounds
        ]


@dataclass(frozen=True)
class Divergence(StoredRun):
    """A run without numbers, as the loss or the weights of a client became infinite or NaN (``train.on_nan: stop``).

    The same config would end so again, so this is its result.

    Attributes:
        label to plugins: as of a :class:`Result`.
        client, diverged_in: which client did, and in which round.
    """

    SOMETHING_ELSE = "does not say how a run diverged"

    processor: str
    data_hash: str
    client: int
    diverged_in: int

    def __str__(self) -> str:
        return f"client {self.client} diverged in round {self.diverged_in}"

    @classmethod
    def of(cls, folder: RunFolder, label: str) -> Divergence | None:
        """Of a run folder; ``None`` where no divergence ended the run."""
        facts = folder.facts
        if facts.get("status") != "failed" or not (diverged := facts.get("diverged")):
            return None
        return cls(**made_as(folder, label), client=diverged["client"], diverged_in=diverged["round"])


def is_finished(folder: RunFolder) -> bool:
    """Whether a run has finished all rounds and written its results."""
    return folder.summary() is not None and folder.facts.get("status") == "finished"


def collect(folder: RunFolder, label: str) -> Result:
    """The result of a finished run.

    Raises:
        UsageError: the run is not finished.
    """
    summary = folder.summary()
    if summary is None or not is_finished(folder):
        raise UsageError(f"{folder.path} is not finished")
    records = read_records(folder.path)
    trained = [record["metrics"] for record in records if record["round"] > 0]
    updates = sum(metrics["participants"] - metrics["dropped"] for metrics in trained)
    round_zero = sum(record["metrics"]["bytes_down"] for record in records if record["round"] == 0)
    result = Result(
        **made_as(folder, label),
        summary={
            **{key: value for key, value in summary.items() if key not in _NOT_COPIED},
            "bytes_round_zero": round_zero,
            "bytes_per_upload": round(summary["bytes_up"] / updates) if updates else 0,
            **_ranked(summary),
            "accuracy_per_client": summary["accuracy_per_client"],
            "accuracy_per_client_at_end": records[-1].get("per_client", {}).get("accuracy", []),
        },
        curve=_curve(records),
        traces=_traces(records),
    )
    # The config is not rounded at all, so that it matches the run's to the last digit.
    return Result(**{name: value if name == "config" else rounded(value) for name, value in asdict(result).items()})


def _ranked(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The score that a run is ranked by, where that is not accuracy."""
    metric = summary.get("metric") or ACCURACY.name
    return (
        {} if metric == ACCURACY.name else {"ranked": {"metric": metric, "mean": summary["scores"].get(metric, {}).get("mean")}}
    )


def made_as(folder: RunFolder, label: str) -> dict[str, Any]:
    """A run's config, data, code and machine, as its result has them."""
    config, facts = folder.config(), folder.facts
    return {
        "label": label,
        "seed": config.seed,
        "config": portable(config),
        "config_fingerprint": config.fingerprint(),
        "partition_hash": facts["partition_hash"],
        "versions": facts["versions"],
        "git_commit": facts.get("git_commit"),
        "device": facts["device"],
        "processor": facts.get("processor") or "",
        "data_hash": facts.get("data_hash") or "",
        "continued": facts.get("continued") or [],
        "plugins": facts.get("plugins") or {},
    }


def _curve(records: Sequence[Record]) -> dict[str, list[Any]]:
    tested = (PROBE, AS_IS, _OTHER_MODELS)
    others = sorted({name for record in records for name in record["metrics"] if name.startswith(tested)})
    has_accuracy = any(record["metrics"].get("accuracy") is not None for record in records)
    columns = _CURVE | {name: name for name in others}
    curve: dict[str, list[Any]] = {name: [] for name in ("round", *columns, "seconds")}
    seconds = 0.0
    for record in records:
        metrics = record["metrics"]
        seconds += metrics["seconds"]
        if record["round"] == 0 or (has_accuracy and metrics.get("accuracy") is None):
            continue
        for name, metric in columns.items():
            curve[name].append(metrics.get(metric))
        curve["round"].append(record["round"])
        curve["seconds"].append(round(seconds, 1))
    return curve


def _traces(records: Sequence[Record]) -> dict[str, list[Any]]:
    rounds = [record["metrics"] for record in records if record["round"] > 0]
    names = sorted({name for metrics in rounds for name in metrics if "/" in name and not name.startswith((PROBE, AS_IS))})
    return {name: [metrics.get(name) for metrics in rounds] for name in names}


def rounded(value: Any, small: bool = True) -> Any:
    """Floats rounded to 6 decimals; ``None`` for those that are not finite, which JSON cannot represent.

    Args:
        small: round those below 0.1 to 6 significant digits, so that a delta of 1e-7 does not become 0.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if small and abs(value) < 0.1 else round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(inner, small) for key, inner in value.items()}
    return [rounded(inner, small) for inner in value] if isinstance(value, list | tuple) else value


def portable(config: RunConfig) -> dict[str, Any]:
    """The keys of a config that results depend on."""
    values = config.model_dump(mode="json", exclude={"run_dir", "tracking"})
    values["data"].pop("dir")
    for key in ("keep_payloads", "check_downloads"):  # on which no number depends
        values["wire"].pop(key)
    return values
