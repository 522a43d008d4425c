"""The results of an experiment: those beside its YAML, and those of the same runs in other experiments of its folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from fedpriv.errors import UsageError
from fedpriv.experiments.results import Result, difference
from fedpriv.experiments.spec import Experiment


def stored_results(experiment: Experiment) -> tuple[dict[str, dict[int, Result]], dict[str, str], list[str]]:
    """The valid results of an experiment.

    Returns:
        the results by label and seed; those that are another experiment's, run -> that experiment; a line on each result beside
        the YAML that is not valid.
    """
    results: dict[str, dict[int, Result]] = {label: {} for label in experiment.configs}
    others, complaints = {}, []
    for label, seed in experiment.select():
        path = experiment.result_file(label, seed)
        if not path.exists():
            if (found := elsewhere(experiment, label, seed)) is not None:
                results[label][seed], others[f"{label}-s{seed}"] = found
            continue
        try:
            result = Result.load(path)
            other = difference(experiment.config(label, seed), result.config)
        except UsageError as error:
            other = str(error)
        if other is None:
            results[label][seed] = result
        else:
            complaints.append(f"{label}-s{seed} is left out: {other}")
    for seed in experiment.seeds:
        if len({of_label[seed].partition_hash for of_label in results.values() if seed in of_label}) > 1:
            complaints.append(f"seed {seed}: the methods ran on different partitions, so their differences are not paired")
    return results, others, complaints


def elsewhere(experiment: Experiment, label: str, seed: int) -> tuple[Result, str] | None:
    """The result of a run with the same config in another experiment of the folder, under this label, and that experiment."""
    config = experiment.config(label, seed)
    for path in sorted(experiment.result_file(label, seed).parent.parent.glob(f"*/*-s{seed}.json")):
        with suppress(UsageError, LookupError):  # what another experiment's report says of it
            result = Result.load(path)
            alike = (result.config["method"]["name"], result.config["train"]["rounds"])
            if alike == (config.method.name, config.train.rounds) and difference(config, result.config) is None:
                return replace(result, label=label), path.parent.name
    return None
