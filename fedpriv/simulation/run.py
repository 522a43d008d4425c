"""A whole run: its folder, its rounds, tracking, and results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from fedpriv.config import ExecutorConfig, RunConfig, parse
from fedpriv.errors import UsageError
from fedpriv.evaluation.chance import chance, constant_scores
from fedpriv.scores.custom import CustomScores, check_custom
from fedpriv.scores.tasks import Classes
from fedpriv.server.answers.collecting import OnAnswer
from fedpriv.server.rounds import Server
from fedpriv.simulation.beginning import describe, save_partition, save_preprocessing
from fedpriv.simulation.driving import OnRound, Rounds, Warn, has_begun, run_all, server_by_round
from fedpriv.simulation.executors.build import check_reachable
from fedpriv.simulation.finished.final_model import export_model
from fedpriv.simulation.finished.results import Chance, write_results
from fedpriv.simulation.profile import Profile
from fedpriv.simulation.reopening import damaged_partition, reopened
from fedpriv.simulation.setup import Federation, build
from fedpriv.simulation.simulation import Simulation
from fedpriv.spans import UNTIMED, Spans
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import check_tracking

if TYPE_CHECKING:
    from fedpriv.evaluation.protocols import Confusion

OnStart = Callable[[Federation, RunFolder], None]
OnServer = Callable[[Server], None]
"""Called with the server of a run before its first round."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its folder, its summary unless it was interrupted, and its profile if one was requested.

    Attributes:
        tracked: whether the tracking store has all of it; ``None``: a background process sends the rest.
    """

    folder: RunFolder
    summary: dict[str, Any] | None
    tracked: bool | None
    rounds_done: int
    profile: dict[str, Any] | None = None


def start(
    config: RunConfig,
    runs_dir: Path,
    on_start: OnStart,
    on_round: OnRound,
    warn: Warn,
    profiled: bool = False,
    on_answer: OnAnswer | None = None,
    custom: CustomScores = MappingProxyType({}),
    on_server: OnServer | None = None,
) -> Outcome:
    """Start a new run, and run it to its end (or to Ctrl-C).

    Args:
        config: as the user gave it; the one in the run folder has every open key filled in.
        runs_dir: where the run folder is created, unless the config names it.
        on_start: called once, with the federation and the run folder.
        on_round: called with each round's record.
        warn: called with warnings of one line.
        profiled: write a profile of the rounds (:mod:`fedpriv.spans`).
        on_answer: called as clients answer.
        custom: scores of the user's own.
        on_server: called with the server before the run begins.

    Raises:
        UsageError: the config cannot be right; nothing was written.
        FedprivError: the run failed; its folder says ``failed`` and its last checkpoint is whole.
    """
    rounds = start_by_round(
        config, runs_dir, on_start, warn, profiled, patient=True, on_answer=on_answer, custom=custom, on_server=on_server
    )
    return run_all(rounds, on_round)


def start_by_round(
    config: RunConfig,
    runs_dir: Path,
    on_start: OnStart,
    warn: Warn,
    profiled: bool = False,
    patient: bool = False,
    on_answer: OnAnswer | None = None,
    custom: CustomScores = MappingProxyType({}),
    on_server: OnServer | None = None,
) -> Rounds[Outcome]:
    """As :func:`start`, as a generator that runs one round at a time.

    Args:
        patient: as for :func:`fedpriv.simulation.driving.server_by_round`.
    """
    began = time.perf_counter()
    check_custom(custom)
    federation = build(_timed(config) if profiled else config)
    check_tracking(federation.config.tracking)
    check_reachable(federation.config.executor)
    with RunFolder.begin(federation.config, runs_dir) as folder, folder.in_memory():
        describe(federation, folder, custom)
        since = began if profiled else None
        return (yield from _run(federation, folder, on_start, warn, since, patient, on_answer, custom, on_server))


def resume(
    path: Path,
    on_start: OnStart,
    on_round: OnRound,
    warn: Warn,
    profiled: bool = False,
    executor: Mapping[str, Any] = MappingProxyType({}),
    on_answer: OnAnswer | None = None,
    custom: CustomScores = MappingProxyType({}),
    on_server: OnServer | None = None,
) -> Outcome:
    """Resume a killed or interrupted run from its last complete checkpoint; bit for bit as if it had not been interrupted.

    Args:
        profiled: as for :func:`start`; the profile covers the rounds that are run now.
        executor: ``workers``, ``ray_address`` and ``ray_workers``, on which no number depends; without ``workers``, as in the
            config.
        on_answer, custom, on_server: as for :func:`start`.

    Raises:
        UsageError: there is no run, another process is running it, or its config or its data were changed.
    """
    began = time.perf_counter()
    check_custom(custom)
    folder = RunFolder.open(path)
    summary = folder.summary()
    if summary is not None and folder.facts.get("status") == "finished" and damaged_partition(folder) is None:
        raise UsageError(f"{path} is finished ({summary['rounds']} rounds); nothing to resume")
    if "deployed" in folder.facts:
        raise UsageError(f"{path}: its clients are on other machines; {folder.how_to_resume} goes on with them")
    with folder.alone(), folder.in_memory():
        config = folder.config()
        if any(value is not None for value in executor.values()):
            changed = config.executor.model_dump() | {"ray_address": None, "ray_workers": None}
            changed |= {key: value for key, value in executor.items() if value is not None}
            config = config.model_copy(update={"executor": parse(ExecutorConfig, changed, "the executor")})
        if profiled:
            config = _timed(config)
        if folder.facts or has_begun(folder):
            federation = reopened(folder, config)
            if (damage := damaged_partition(folder)) is not None:
                warn(f"{damage}; it is written again")
                save_partition(federation, folder)
            save_preprocessing(federation, folder)  # which may be damaged, too
        else:  # killed while the folder was being made
            federation = build(config)
            describe(federation, folder, custom)
        if lost := sorted(set(folder.facts.get("custom_scores", ())) - custom.keys()):
            warn(f"{', '.join(lost)} is not measured any more: fedpriv.resume(..., metrics=...) takes the functions again")
        since = began if profiled else None
        return run_all(_run(federation, folder, on_start, warn, since, True, on_answer, custom, on_server), on_round)


def _run(
    federation: Federation,
    folder: RunFolder,
    on_start: OnStart,
    warn: Warn,
    profiled_since: float | None,
    patient: bool,
    on_answer: OnAnswer | None,
    custom: CustomScores,
    on_server: OnServer | None,
) -> Rounds[Outcome]:
    for note in federation.prepared.notes:
        warn(note)
    profile = UNTIMED if profiled_since is None else _profile(federation, profiled_since)
    simulation = Simulation(federation, folder, warn, profile, custom)
    simulation.on_answer = on_answer
    if on_server is not None:
        on_server(simulation)

    def results() -> dict[str, Any]:
        confusion = partial(_confusion, simulation)
        export = partial(export_model, simulation, warn) if federation.config.tracking.log_model else None
        return write_results(simulation, simulation.notes(), confusion, export, partial(_chance, federation))

    report = None
    try:
        summary, tracked = yield from server_by_round(simulation, lambda: on_start(federation, folder), results, patient)
    finally:  # also of a run that failed
        report = _write_profile(profile, simulation, warn)
    return Outcome(folder, summary, tracked, simulation.progress.round, report)


def _confusion(simulation: Simulation) -> tuple[Confusion, Sequence[str]]:
    """The confusion matrix of the server's model on the server's test set, and the names of the classes."""
    return simulation.scorer.confusion(simulation.state), simulation.federation.dataset.classes


def _chance(federation: Federation) -> Chance:
    """What a constant answer scores in the clients' tests."""
    tests, task = (federation.data, federation.method, federation.config), federation.agreement.declared.task
    accuracy, samples = chance(*tests, task.count) if isinstance(task, Classes) else (None, None)
    return Chance(accuracy, samples, constant_scores(*tests, task))


def _timed(config: RunConfig) -> RunConfig:
    """The config of a run with a profile: in this process, which sees all categories, unless the user wants several."""
    return config.model_copy(update={"executor": config.executor.in_this_process()})


def _profile(federation: Federation, began: float) -> Profile:
    device = federation.resident.device
    synchronise = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    return Profile(synchronise, began=began)


def _write_profile(profile: Spans, simulation: Simulation, warn: Warn) -> dict[str, Any] | None:
    if not isinstance(profile, Profile):
        return None
    try:
        return profile.write(simulation.folder.profile, simulation.progress.round)
    except OSError as error:
        warn(f"cannot write the profile in {simulation.folder.profile}: {error.strerror}")
        return None
