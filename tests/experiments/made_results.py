"""Results of runs that never were, with numbers that can be checked by hand; and small runs that are played here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from fedpriv.experiments import Result, read
from fedpriv.experiments.claims import Judgement, judge
from fedpriv.experiments.results import portable
from fedpriv.experiments.spec import Experiment
from fedpriv.experiments.stored import stored_results
from fedpriv.simulation import run as simulation

BASE = {
    "data": {"name": "digits", "clients": 4, "partition": {"name": "classes", "classes_per_client": 5}},
    "model": {"name": "mlp_lineage", "projection": 16},
    "train": {"rounds": 20, "participation": 0.5},
    "eval": {"every": 5, "last": 2},
    "tracking": {"uri": "none"},
}


FIVE = {name: {"method": {"name": name}} for name in ("local", "fedavg", "fedavg-ft", "fedrep", "mpfedcon")}


def write_yaml(folder: Path, name: str = "tiny", **values: Any) -> Path:
    """An experiment's YAML in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"title": "Tiny", "base": BASE, "seeds": [0], **values}, sort_keys=False))
    return path


def play(
    experiment: Experiment,
    runs_dir: Path,
    label: str,
    seed: int = 0,
    on_round: Callable[[dict[str, Any]], None] = lambda record: None,
) -> None:
    """A run in this process, in the folder where the runner looks for it."""
    config = experiment.config(label, seed).model_copy(update={"run_dir": experiment.run_dir(runs_dir, label, seed)})
    simulation.start(config, runs_dir, lambda federation, folder: None, on_round, lambda text: None)


def write_result(
    yaml_file: Path,
    label: str,
    seed: int,
    points: Mapping[int, float],
    *,
    per_client: Sequence[float] = (),
    round_bytes: int = 1000,
    round_zero: int = 0,
    worst_tenth: float = 0.0,
    protocols: Mapping[str, float] = MappingProxyType({}),
    partition: str = "p",
    split: str = "test",
) -> Path:
    """The result of a run evaluated at ``points`` (round -> accuracy); its summary is the mean over the last two."""
    experiment = read(yaml_file)
    config = experiment.config(label, seed)
    last = list(points.values())[-1 if config.method.name == "fedavg-ft" else -2 :]
    accuracy = sum(last) / len(last)
    rounds = list(points)
    stored = portable(config)
    if config.method.name == "fedavg-ft":
        stored["method"]["ft_when"] = "final"
    result = Result(
        label=label,
        seed=seed,
        config=stored,
        config_fingerprint="f",
        partition_hash=f"{partition}{seed}",
        versions={"fedpriv": "0"},
        git_commit=None,
        device="cpu",
        summary={
            "rounds": rounds[-1],
            "accuracy": accuracy,
            "averaged_rounds": len(last),
            "tested_from": rounds[-1] if config.method.name == "fedavg-ft" else 1,
            "bytes_up": round_bytes * rounds[-1] // 2,
            "bytes_down": round_bytes * rounds[-1] // 2 + round_zero,
            "bytes_round_zero": round_zero,
            "bytes_per_upload": round_bytes // 4,
            "seconds": 10.0,
            "split": split,
            "clients_never_trained": seed,
            "accuracy_per_client": list(per_client) or [accuracy] * 4,
            "protocols": {
                "last_rounds_client_mean": accuracy,
                "worst_tenth": worst_tenth,
                "global_test": None,
                **protocols,
            },
        },
        curve={
            "round": rounds,
            "accuracy": list(points.values()),
            "accuracy_worst_tenth": [0.0] * len(rounds),
            "global_accuracy": [None] * len(rounds),
            "train_loss": [1.0] * len(rounds),
            "bytes_up": [round_bytes * number // 2 for number in rounds],
            "bytes_down": [round_bytes * number // 2 + round_zero for number in rounds],
            "seconds": [float(number) for number in rounds],
        },
    )
    path = experiment.result_file(label, seed)
    result.write(path)
    return path


def first_claim(yaml_file: Path) -> Judgement:
    """The judgement on the first claim of an experiment."""
    experiment = read(yaml_file)
    return judge(experiment.claims[0], stored_results(experiment)[0])


def judged(
    folder: Path,
    claim: dict[str, Any],
    accuracies: Mapping[str, Sequence[float]],
    runs: Mapping[str, Any] = MappingProxyType(FIVE),
    **settings: Any,
) -> Judgement:
    """The judgement on a claim, of runs whose final accuracies these are, seed by seed from 0."""
    path = write_yaml(folder, runs=dict(runs), seeds=[0, 1, 2], claims=[{"id": "C", "statement": "s", **claim}])
    for label, values in accuracies.items():
        for seed, value in enumerate(values):
            write_result(path, label, seed, {5: 0.1, 10: 0.2, 19: value, 20: value}, **settings)
    return first_claim(path)
