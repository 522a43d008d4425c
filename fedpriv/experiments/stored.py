"""The results of an experiment: those beside its YAML, and those of the same runs in other experiments of its folder."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fedpriv.config import RunConfig
from fedpriv.errors import FedprivError
from fedpriv.experiments.results import Divergence, Result, StoredRun
from fedpriv.experiments.spec import Experiment
from fedpriv.experiments.validity import made_otherwise


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
                other = made_otherwise(experiment.config(label, seed), result)
            except FedprivError as error:
                other = str(error)
            if other is None:
                results[label][seed] = result
                continue
            complaints.append(f"{label}-s{seed} is left out: {other}")
        if (shared := elsewhere(experiment, label, seed)) is not None:
            results[label][seed], path = shared
            others[f"{label}-s{seed}"] = f"{path.parent.name}/{path.stem}"
    complaints += _drop_other_data(results)
    for seed in experiment.seeds:
        of_seed = {label: of_label[seed] for label, of_label in results.items() if seed in of_label}
        if apart := _unusual({label: result.partition_hash for label, result in of_seed.items()}):
            complaints.append(f"seed {seed}: {apart} another partition than the others; differences to those are not paired")
        if apart := _unusual({label: result.data_hash for label, result in of_seed.items() if result.data_hash}):
            complaints.append(f"seed {seed}: {apart} other data than the others, so they cannot be compared")
    return results, others, complaints


def _drop_other_data(results: dict[str, dict[int, Result]]) -> list[str]:
    """Leave out results whose samples differ from those of most results with the same data config, as after a corrected file.

    Where two versions of the samples have equally many results, all are left out, as either may be the right one.

    Returns:
        a line on each that is left out.
    """
    versions: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for label, of_label in results.items():
        for seed, result in of_label.items():
            if result.data_hash:
                asked = {key: value for key, value in result.config["data"].items() if key != "partition"}
                of_config = versions.setdefault(json.dumps(asked, sort_keys=True), {})
                of_config.setdefault(result.data_hash, []).append((label, seed))
    complaints = []
    for of_config in versions.values():
        *others, most = sorted(of_config.values(), key=len)
        is_tie = bool(others) and len(others[-1]) == len(most)
        why = "as many results are" if is_tie else "most results are"
        for label, seed in chain(*others, most if is_tie else ()):
            del results[label][seed]
            complaints.append(
                f"{label}-s{seed} is left out: {why} of other samples; remove the files that are out of date, and run again"
            )
    return complaints


def _unusual(hashes: dict[str, str]) -> str:
    """``fedrep has``: the labels whose hash is not the most common one, with a verb; empty: there are none."""
    usual = Counter(hashes.values()).most_common(1)
    apart = [label for label, digest in hashes.items() if digest != usual[0][0]]
    return f"{', '.join(apart)} {'has' if len(apart) == 1 else 'have'}" if apart else ""


def elsewhere(experiment: Experiment, label: str, seed: int) -> tuple[Result, Path] | None:
    """The result of a run with the same config in another experiment of the folder, under this label, and its file."""
    config, own = experiment.config(label, seed), experiment.result_file(label, seed)
    for path in sorted(own.parent.parent.glob(f"*/*-s{seed}.json")):
        if path.parent == own.parent:
            continue
        with suppress(FedprivError, LookupError):  # a result that is damaged is reported by its own experiment
            result = Result.load(path)
            if _is_alike(config, result):
                return replace(result, label=label), path
    return None


def divergences(experiment: Experiment) -> dict[str, dict[int, Divergence]]:
    """The runs that a client's divergence ended, by label and seed, as far as it is stored."""
    by_label: dict[str, dict[int, Divergence]] = {label: {} for label in experiment.configs}
    for label, seed in experiment.select():
        if (diverged := divergence_of(experiment, label, seed)) is not None:
            by_label[label][seed] = diverged
    return by_label


def divergence_of(experiment: Experiment, label: str, seed: int) -> Divergence | None:
    """How a run, or the same run in another experiment of the folder, diverged; ``None``: nothing is stored.

    Raises:
        Damaged: a file beside the YAML says it, and cannot be read.
    """
    config, own = experiment.config(label, seed), experiment.divergence_file(label, seed)
    for path in sorted(own.parent.parent.glob(f"*/*-s{seed}.diverged.json")):
        if path.parent == own.parent and path != own:
            continue
        with suppress(*() if path == own else [FedprivError]):  # as of a result
            diverged = Divergence.load(path)
            if _is_alike(config, diverged):
                return replace(diverged, label=label)
    return None


def _is_alike(config: RunConfig, stored: StoredRun) -> bool:
    """Whether a stored result is of this run. Comparing configs takes milliseconds, and most differ in method or rounds."""
    alike = (stored.config["method"]["name"], stored.config["train"]["rounds"])
    return alike == (config.method.name, config.train.rounds) and made_otherwise(config, stored) is None
