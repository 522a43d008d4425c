"""Runs stored results again, and compares every number with the stored one."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.errors import UsageError
from fedpriv.experiments.checkout import commit_of
from fedpriv.experiments.leakage import describes_cells
from fedpriv.experiments.results import Result, rounded
from fedpriv.experiments.runner import Outcome, Say, run
from fedpriv.experiments.spec import Experiment, read, yamls
from fedpriv.experiments.stored import elsewhere, stored_results
from fedpriv.storage.provenance import processor

_SECONDS = ("seconds", "cpu_seconds")
"""Numbers that differ from run to run."""


@dataclass(frozen=True)
class Difference:
    """A number of a stored result that is another one in the new run; ``now`` is ``None`` where it has none."""

    name: str
    stored: Any
    now: Any


@dataclass(frozen=True)
class Reproduction:
    """The outcome of running a stored result again.

    Attributes:
        run: ``<experiment>/<label>-s<seed>``.
        state: ``same``, ``differs``, or why there is nothing to compare: ``diverged``, ``interrupted``, ``failed``, ``left``.
        numbers: how many were compared: all of summary, curve and traces but seconds, and the hashes of data and partition.
        differences: those that are not the same.
        stored_on, run_on: the kind of processor; ``stored_on`` is empty where the result does not say it.
        error: why it failed, or how it diverged.
    """

    run: str
    state: str
    numbers: int
    differences: tuple[Difference, ...]
    stored_on: str
    run_on: str
    error: str | None = None

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.state == "same":
            return f"{self.run}: all {self.numbers:,} numbers are the stored ones"
        if self.state != "differs":
            return f"{self.run}: {self.state}" + (f": {self.error}" if self.error else "")
        first = self.differences[0]
        text = (
            f"{self.run}: {len(self.differences):,} of {self.numbers:,} numbers differ; "
            f"{first.name} is stored as {first.stored}, and is {first.now} now"
        )
        if self.stored_on != self.run_on:
            then = f"ran on {self.stored_on}" if self.stored_on else "does not say on which kind of processor it ran"
            text += f". The stored one {then}, this is {self.run_on}; only on the same kind are the last digits the same"
        return text


def reproduce(
    path: Path,
    runs_dir: Path,
    workers: int = 1,
    labels: Sequence[str] = (),
    seeds: Sequence[int] = (),
    sample: int | None = None,
    data_dir: Path | None = None,
    say: Say = lambda text: None,
) -> list[Reproduction]:
    """Run stored results of an experiment (a YAML), or of all in a folder, again with the code at hand.

    The runs have folders of their own, ``<runs_dir>/reproduced/<commit>``, so the same call resumes those that were interrupted.
    Outside a git checkout the folder is named by the time, and each call begins anew.

    Args:
        labels, seeds: the runs; all that have a result where none are given.
        sample: how many of them to pick at random; among those of this kind of processor, if there are any.

    Raises:
        UsageError: there is no stored result, there are fewer than ``sample``, or the checkout has uncommitted changes.
    """
    stored = _stored(path, labels, seeds)
    if not stored:
        raise UsageError(f"{path} has no stored result of these runs; fedpriv experiment run makes them")
    if sample is not None:
        stored = _picked(path, stored, sample, say)
    hours = sum(result.core_seconds or 0.0 for _, result in stored) / 3600
    say(f"{len(stored)} {'result' if len(stored) == 1 else 'results'}, which took {hours:.2g} h of one core when they were made")
    experiments = {experiment.path: experiment for experiment, _ in stored}
    commit = commit_of(next(iter(experiments)))
    place = runs_dir / "reproduced" / (commit[:12] if commit else time.strftime("%Y%m%d-%H%M%S"))
    reproductions: list[Reproduction] = []
    for experiment in experiments.values():
        results = {(result.label, result.seed): result for its, result in stored if its.path == experiment.path}
        apart = replace(experiment, results=place / "results" / experiment.path.absolute().parent.name / experiment.path.stem)
        for outcome in run(apart, place, workers, data_dir=data_dir, say=say, runs=list(results)):
            reproduced = _compared(apart, outcome, results[outcome.label, outcome.seed])
            say(str(reproduced))
            reproductions.append(reproduced)
        if any(reproduction.state == "interrupted" for reproduction in reproductions):
            break
    return reproductions


def _stored(path: Path, labels: Sequence[str], seeds: Sequence[int]) -> list[tuple[Experiment, Result]]:
    """The stored results of these runs with their experiments; labels and seeds that a YAML of a folder lacks are skipped."""
    stored = []
    for file in yamls(path):
        if describes_cells(file):
            if path.is_file():
                raise UsageError(f"{path} describes cells, not runs; to repeat one, remove its result and run it again")
            continue
        experiment = read(file)
        if path.is_dir():
            here = [label for label in labels if label in experiment.configs]
            at = [seed for seed in seeds if seed in experiment.seeds]
            if (labels and not here) or (seeds and not at):
                continue
        else:
            here, at = list(labels), list(seeds)
        results, others, _ = stored_results(experiment)
        runs = [(label, seed) for label, seed in experiment.select(here, at) if seed in results[label]]
        # A run that several experiments share has its result beside one of them.
        stored += [
            (experiment, results[label][seed]) for label, seed in runs if path.is_file() or f"{label}-s{seed}" not in others
        ]
    return stored


def _picked(path: Path, stored: list[tuple[Experiment, Result]], sample: int, say: Say) -> list[tuple[Experiment, Result]]:
    here = processor()
    of_this_kind = [(experiment, result) for experiment, result in stored if result.processor == here]
    among = of_this_kind or stored
    if sample > len(among):
        raise UsageError(f"{path} has {len(among)} stored results" + (f" that ran on {here}" if of_this_kind else ""))
    picked = random.SystemRandom().sample(among, sample)
    of = f"{'that' if of_this_kind else 'none of which'} ran on this kind of processor ({here})"
    names = ", ".join(f"{experiment.path.stem}/{result.label}-s{result.seed}" for experiment, result in picked)
    say(f"picked at random among {len(among)} results {of}: {names}")
    return picked


def _compared(experiment: Experiment, outcome: Outcome, stored: Result) -> Reproduction:
    name, on = f"{experiment.path.stem}/{outcome.name}", (stored.processor, processor())
    if outcome.state not in ("done", "collected", "finished"):
        return Reproduction(name, outcome.state, 0, (), *on, outcome.error)
    file = experiment.result_file(outcome.label, outcome.seed)
    shared = None if file.exists() else elsewhere(experiment, outcome.label, outcome.seed)
    numbers, differences = compared(stored, shared[0] if shared else Result.load(file))
    return Reproduction(name, "differs" if differences else "same", numbers, tuple(differences), *on)


def compared(stored: Result, now: Result) -> tuple[int, list[Difference]]:
    """The number of numbers in a stored result, and those that differ in another result of the same run.

    Numbers that the stored result lacks are not compared. Of those below 0.1 it may have 6 decimals instead of 6 digits.
    """
    before, after = dict(_numbers(stored)), dict(_numbers(now))
    differences = [
        Difference(name, value, after.get(name))
        for name, value in before.items()
        if name not in after or (value != after[name] and value != rounded(after[name], small=False))
    ]
    return len(before), differences


def _numbers(result: Result) -> Iterator[tuple[str, Any]]:
    """Every number of a result by its name, such as ``curve.accuracy[3]``."""
    yield "partition_hash", result.partition_hash
    if result.data_hash:
        yield "data_hash", result.data_hash
    for name in ("summary", "curve", "traces"):
        yield from _leaves(name, getattr(result, name))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _SECONDS:
                yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(f"{name}[{place}]", inner)
    else:
        yield name, value
