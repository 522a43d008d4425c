"""The results of an experiment: those beside its YAML, and those of the same runs in other experiments of its folder."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedpriv.errors import FedprivError
from fedpriv.experiments.results import Result, difference
from fedpriv.experiments.spec import Experiment


def stored_results(experiment: Experiment) -> tuple[dict[str, dict[int, Result]], dict[str, str], list[str]]:
    """The valid results of an experiment.

    Returns:
        the results by label and seed; those that are another experiment's, run -> ``experiment/run``; a line on each result
        beside the YAML that is not valid.
    """
    results: dict[str, dict[int, Result]] = {label: {} for label in experiment.configs}
    others, complaints = {}, []
    for label, seed in experiment.select():
        path = experiment.result_file(label, seed)
        if path.exists():
            try:
                result = Result.load(path)
                other = difference(experiment.config(label, seed), result.config)
            except FedprivError as error:
                other = str(error)
            if other is None:
                results[label][seed] = result
                continue
            complaints.append(f"{label}-s{seed} is left out: {other}")
        if (found := elsewhere(experiment, label, seed)) is not None:
            results[label][seed], path = found
            others[f"{label}-s{seed}"] = f"{path.parent.name}/{path.stem}"
    for seed in experiment.seeds:
        of_seed = {label: of_label[seed] for label, of_label in results.items() if seed in of_label}
        if apart := _unusual({label: result.partition_hash for label, result in of_seed.items()}):
            complaints.append(f"seed {seed}: {apart} another partition than the others; differences to those are not paired")
        if apart := _unusual({label: result.data_hash for label, result in of_seed.items() if result.data_hash}):
            complaints.append(f"seed {seed}: {apart} other data than the others, so they cannot be compared")
    return results, others, complaints


def _unusual(hashes: dict[str, str]) -> str:
    """The labels of those that differ from the most common one, and a verb; empty: none does."""
    usual = Counter(hashes.values()).most_common(1)
    apart = [label for label, one in hashes.items() if one != usual[0][0]]
    return f"{', '.join(apart)} {'has' if len(apart) == 1 else 'have'}" if apart else ""


def elsewhere(experiment: Experiment, label: str, seed: int) -> tuple[Result, Path] | None:
    """The result of a run with the same config in another experiment of the folder, under this label, and its file."""
    config, own = experiment.config(label, seed), experiment.result_file(label, seed)
    files = own.parent.parent.glob(f"*/*-s{seed}.json")
    for path in sorted(file for file in files if file.parent != own.parent):
        with suppress(FedprivError, LookupError):  # a result that is damaged is reported by its own experiment
            result = Result.load(path)
            # Comparing configs takes milliseconds, and most differ in these.
            alike = (result.config["method"]["name"], result.config["train"]["rounds"])
            if alike == (config.method.name, config.train.rounds) and difference(config, result.config) is None:
                return replace(result, label=label), path
    return None
