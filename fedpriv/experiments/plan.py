"""What is left of an experiment, and what it will cost: from runs that are done, or from a few rounds as a pilot."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig, parse
from fedpriv.errors import FedprivError
from fedpriv.experiments.leakage import describes_cells, read_leakage, run_cells
from fedpriv.experiments.results import Result
from fedpriv.experiments.spec import Experiment, merge, read, yamls
from fedpriv.experiments.stored import divergences, stored_results
from fedpriv.experiments.validity import difference
from fedpriv.simulation.run import start
from fedpriv.storage.provenance import processor
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.folder import read_lines

PILOT_ROUNDS = 4
"""Rounds of a pilot: one to warm up, one with tests, one without, and the last with what is tested once."""

_PILOT_OPTIONS = {
    "train": {"rounds": PILOT_ROUNDS},
    "eval": {"every": 2, "last": 1},
    "tracking": {"uri": "none"},
    "wire": {"keep_payloads": "none"},
}


@dataclass(frozen=True)
class Left:
    """What is left of the runs of one label.

    Attributes:
        left: its runs without a result.
        rounds: how many these still have to train, together; an interrupted run continues from its last round.
        seconds_a_round: of one core (or GPU), tests included; ``None``: not measured.
        source: what that was measured on, or why it was not.
    """

    label: str
    left: int
    rounds: int
    seconds_a_round: float | None
    source: str

    @property
    def hours(self) -> float | None:
        """Of one core (or GPU); ``None``: not known."""
        return None if self.seconds_a_round is None else self.rounds * self.seconds_a_round / 3600


def planned(
    path: Path,
    runs_dir: Path,
    labels: Sequence[str] = (),
    seeds: Sequence[int] = (),
    measure: bool = False,
    data_dir: Path | None = None,
) -> list[dict[str, Any]]:
    """What is left of an experiment (a YAML), or of all in a folder, as data.

    Args:
        measure: run :func:`pilot` for labels of which no run is done.
        data_dir: the data folder, if not that of the YAML or ``FEDPRIV_DATA``.

    Returns:
        of each YAML: ``file``, ``runs`` (:class:`Left` and its hours, as mappings), and over these ``left`` (their number),
        ``rounds``, ``hours`` (of those that are known; ``None``: of none) and ``not_measured`` (labels). The cells of a leakage
        experiment are counted only.

    Raises:
        UsageError: there is no YAML, one is not valid, or has no such label or seed.
    """

    def measured(config: RunConfig) -> float:
        elsewhere = {} if data_dir is None else {"data": config.data.model_copy(update={"dir": data_dir})}
        return pilot(config.model_copy(update=elsewhere))

    experiments = []
    for file in yamls(path):
        if describes_cells(file):
            cells = sum(outcome.state == "left" for outcome in run_cells(read_leakage(file), 0, labels))
            runs = [Left("cells", cells, 0, None, "")] if cells else []
        else:
            runs = plan(read(file), runs_dir, labels, seeds, measured if measure else None)
        hours = [run.hours for run in runs if run.hours is not None]
        experiments.append(
            {
                "file": str(file),
                "left": sum(run.left for run in runs),
                "rounds": sum(run.rounds for run in runs),
                "hours": math.fsum(hours) if hours or not runs else None,
                "not_measured": [run.label for run in runs if run.hours is None],
                "runs": [] if describes_cells(file) else [{**asdict(run), "hours": run.hours} for run in runs],
            }
        )
    return experiments


def plan(
    experiment: Experiment,
    runs_dir: Path,
    labels: Sequence[str] = (),
    seeds: Sequence[int] = (),
    measured: Callable[[RunConfig], float] | None = None,
) -> list[Left]:
    """What is left of an experiment, by label, without labels of which nothing is. A run that is known to diverge is not left.

    Args:
        runs_dir: the folder whose ``experiments/`` holds the run folders.
        labels, seeds: the runs that are looked at; all where none are given.
        measured: gives the seconds of a round of a config, such as :func:`pilot`; called for labels of which no run is done.

    Raises:
        UsageError: the experiment has no such label or seed.
    """
    done, _, _ = stored_results(experiment)
    diverged = divergences(experiment)
    asked, runs = experiment.select(labels, seeds), []
    for label in experiment.configs:
        waiting = [seed for name, seed in asked if name == label and seed not in done[label] and seed not in diverged[label]]
        if not waiting:
            continue
        rounds = sum(experiment.configs[label].train.rounds - _trained(experiment, runs_dir, label, seed) for seed in waiting)
        cost, source = _measured_cost(done[label])
        if cost is None and rounds and measured is not None:
            try:
                cost, source = measured(experiment.config(label, waiting[0])), f"{PILOT_ROUNDS} rounds, now"
            except FedprivError as error:
                source = f"the pilot failed: {error}"
        runs.append(Left(label, len(waiting), rounds, cost, source))
    return runs


def pilot(config: RunConfig) -> float:
    """The mean CPU seconds of a round of a run, from a run of :data:`PILOT_ROUNDS` rounds that is thrown away.

    Rounds with tests, rounds without, and the last one, after which clients may be fine-tuned once, are counted apart.
    Wall-clock seconds where the run is on a GPU, or spread over processes.

    Raises:
        FedprivError: the run cannot be started, or failed.
    """
    config = config.model_copy(update={"executor": config.executor.in_this_process()})
    short: RunConfig = parse(RunConfig, merge(config.model_copy(update={"run_dir": None}).chosen(), _PILOT_OPTIONS), "the pilot")
    here_alone = config.device == "cpu" and not config.executor.spread
    clock = time.process_time if here_alone else time.perf_counter
    ended: dict[int, float] = {}

    def on_round(record: dict[str, Any]) -> None:
        ended[record["round"]] = clock()

    with tempfile.TemporaryDirectory(prefix="fedpriv-") as folder:
        start(short, Path(folder), lambda federation, folder: None, on_round, lambda text: None)
    spent = {number: ended[number] - ended[number - 1] for number in range(2, PILOT_ROUNDS + 1)}
    tested, untested, last = spent[2], spent[3], spent[4]
    rounds, tests = config.train.rounds, _tests(config)
    return ((rounds - tests) * min(untested, tested) + (tests - 1) * tested + max(last, tested)) / rounds


def _tests(config: RunConfig) -> int:
    """After how many rounds the clients are tested."""
    rounds, every, last = config.train.rounds, config.eval.every, config.eval.last
    return sum(number > rounds - last or number % every == 0 for number in range(1, rounds + 1))


def _measured_cost(results: dict[int, Result]) -> tuple[float | None, str]:
    """Mean seconds of a round of the runs that are done, on this kind of processor if there are any, and which runs these are."""
    here = processor()
    alike = {seed: result for seed, result in results.items() if result.processor == here}
    chosen = alike or results
    spent = [(result.core_seconds, result.summary["rounds"]) for result in chosen.values()]
    costs = [seconds / rounds for seconds, rounds in spent if seconds is not None]
    if not costs:
        return None, "not measured"
    seeds = ", ".join(map(str, sorted(chosen)))
    return math.fsum(costs) / len(costs), f"seed{'s' * (len(chosen) > 1)} {seeds}{'' if alike else ', another processor'}"


def _trained(experiment: Experiment, runs_dir: Path, label: str, seed: int) -> int:
    """Rounds that a run without a result has trained; 0 if its folder has another config."""
    folder = RunFolder(experiment.run_dir(runs_dir, label, seed))
    if not folder.config_file.exists() or difference(experiment.config(label, seed), folder.config()) is not None:
        return 0
    records, _ = read_lines(folder.path)
    return int(records[-1]["round"]) if records else 0
