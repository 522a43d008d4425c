"""A whole run: its folder, its rounds, tracking, and results."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedpriv.agreement import Agreement
from fedpriv.config import ExecutorConfig, RunConfig, parse
from fedpriv.data.user_data.owners import owners_of
from fedpriv.errors import ClientDiverged, UsageError
from fedpriv.evaluation.chance import chance, constant_scores
from fedpriv.files import Damaged, save_tensors
from fedpriv.methods.build import changed_options
from fedpriv.scores.custom import CustomScores, check_custom
from fedpriv.scores.tasks import Classes
from fedpriv.server.rounds import Server
from fedpriv.simulation.executors.build import check_reachable
from fedpriv.simulation.finished.final_model import export_model
from fedpriv.simulation.finished.results import Chance, write_results
from fedpriv.simulation.inputs.described import preprocessing_of
from fedpriv.simulation.profile import Profile
from fedpriv.simulation.reopening import damaged_partition, hashes, reopened
from fedpriv.simulation.setup import Federation, build
from fedpriv.simulation.simulation import Simulation
from fedpriv.spans import END, UNTIMED, Spans
from fedpriv.storage.provenance import changed_code, continued, first_facts
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking import check_tracking, copier_of, default_uri, tracker_of

if TYPE_CHECKING:
    from fedpriv.evaluation.protocols import Confusion

OnStart = Callable[[Federation, RunFolder], None]
OnRound = Callable[[dict[str, Any]], object]
OnServer = Callable[[Server], None]
"""Called with the server of a run before its first round."""
OnAnswer = Callable[[int, int], None]
"""Called within a round with the number of participants that have answered, and of all participants."""
Warn = Callable[[str], None]
T = TypeVar("T")
Rounds = Generator[dict[str, Any], None, T]
"""Runs a round when asked for the next record, which it yields; returns how the run ended. Closing it interrupts the run."""


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
    return _run_all(rounds, on_round)


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
        patient: whether the first Ctrl-C lets the round end; otherwise it stops the run at once. The last checkpoint is whole
            either way.
    """
    began = time.perf_counter()
    check_custom(custom)
    federation = build(_timed(config) if profiled else config)
    check_tracking(federation.config.tracking)
    check_reachable(federation.config.executor)
    with RunFolder.begin(federation.config, runs_dir) as folder, folder.in_memory():
        _describe(federation, folder, custom)
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
        if folder.facts or _has_begun(folder):
            federation = reopened(folder, config)
            if (damage := damaged_partition(folder)) is not None:
                warn(f"{damage}; it is written again")
                _save_partition(federation, folder)
            _save_preprocessing(federation, folder)  # which may be damaged, too
        else:  # killed while the folder was being made
            federation = build(config)
            _describe(federation, folder, custom)
        if lost := sorted(set(folder.facts.get("custom_scores", ())) - custom.keys()):
            warn(f"{', '.join(lost)} is not measured any more: fedpriv.resume(..., metrics=...) takes the functions again")
        since = began if profiled else None
        return _run_all(_run(federation, folder, on_start, warn, since, True, on_answer, custom, on_server), on_round)


def _describe(federation: Federation, folder: RunFolder, custom: CustomScores) -> None:
    """Write the partition, the preprocessing, given weights, and the facts that are known before the first round."""
    _save_partition(federation, folder)
    _save_preprocessing(federation, folder)
    save_given(federation.agreement, folder)
    with folder.writing("the beginning of the run"):
        owners = owners_of(federation.config.data, federation.dataset.owners)
        names = {} if owners is None else {"client_names": list(owners.names)}
        names |= {"custom_scores": list(custom)} if custom else {}
        notes, executor = list(federation.prepared.notes), str(federation.choice)
        note_beginning(folder, federation.config, hashes(federation), notes=notes, executor=executor, **names)


def note_beginning(folder: RunFolder, config: RunConfig, hashes: Mapping[str, str], **facts: Any) -> None:
    """Write the facts of a run before its first round into its folder.

    Args:
        hashes: of its data, by the name of the fact.
        facts: further facts, or replacements.
    """
    tracking = config.tracking
    uri = tracking.uri or (default_uri(folder.path.parent) if tracking.name == "mlflow" else "none")
    folder.update_facts(**first_facts(config, folder, hashes, uri) | {"changed_options": changed_options(config)} | facts)


def save_given(agreement: Agreement, folder: RunFolder) -> None:
    """Write the weights that the run starts from into its folder, if some were given."""
    if agreement.given.tensors:
        with folder.writing("the weights that it starts from"):
            save_tensors(folder.init_file, agreement.given.tensors)


def _save_partition(federation: Federation, folder: RunFolder) -> None:
    with folder.writing("the partition"):
        federation.data.partition.save(folder.partition_file)


def _save_preprocessing(federation: Federation, folder: RunFolder) -> None:
    with folder.writing("the preprocessing"):
        preprocessing = preprocessing_of(federation.config, federation.dataset, federation.prepared.encoder)
        preprocessing.save(folder.preprocessing_file)


def _has_begun(folder: RunFolder) -> bool:
    """Whether there is a checkpoint; raises ``Damaged`` if the records show that it was lost, as a run must not start over."""
    begun = any(folder.checkpoints.glob("round-*.json"))
    if not begun and (records := folder.records()):
        raise Damaged(
            f"{folder.checkpoints} holds no checkpoint, though the run has done {records[-1]['round']} rounds; restore it from "
            "a copy, or start another run with `fedpriv train --config`"
        )
    return begun


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
        summary, tracked = yield from _run_server(simulation, lambda: on_start(federation, folder), results, patient)
    finally:  # also of a run that failed
        report = _write_profile(profile, simulation, warn)
    return Outcome(folder, summary, tracked, simulation.progress.round, report)


def run_server(
    server: Server, on_start: Callable[[], None], on_round: OnRound, results: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any] | None, bool | None]:
    """Run a server's rounds, from the start or the last checkpoint to the end or to Ctrl-C, and note the status in its folder.

    Args:
        on_start: called before the first round that is run now.
        on_round: called with each round's record.
        results: writes the results of a finished run, and returns its summary.

    Returns:
        The summary (``None``: interrupted), and :attr:`Outcome.tracked`.
    """
    return _run_all(_run_server(server, on_start, results, patient=True), on_round)


def _run_all(rounds: Rounds[T], on_round: OnRound) -> T:
    """Run all rounds; an exception of ``on_round`` ends the run as an error in a round would."""
    while True:
        try:
            record = next(rounds)
        except StopIteration as end:
            ended: T = end.value
            return ended
        try:
            on_round(record)
        except BaseException as error:
            rounds.throw(error)
            raise


def _run_server(
    server: Server, on_start: Callable[[], None], results: Callable[[], dict[str, Any]], patient: bool
) -> Rounds[tuple[dict[str, Any] | None, bool | None]]:
    folder, profile, warn = server.folder, server.profile, server.warn
    begun = _has_begun(folder)
    facts_of_start: dict[str, Any] = {}
    facts_of_end: dict[str, Any] = {}
    if begun:
        server.restore()  # raises if the config has changed, before anything is written
        facts_of_start = continued(folder.facts, server.config, server.progress.round)
        if changed := changed_code(folder.facts, server.config):
            warn(f"{', '.join(changed)} changed since the run began: rounds after {server.progress.round} are of the new code")
        if folder.facts.get("diverged"):
            facts_of_start["diverged"] = None
    tracking = folder.facts["tracking"]
    tracker = copier_of(tracker_of(folder.path, tracking), warn, tracking["wait"], partial(profile.beside, "tracking"))
    status, summary = "failed", None
    try:
        with folder.writing("run.json"):
            folder.update_facts(status="running", **facts_of_start)
        with _finish_round_on_interrupt(server, warn) if patient else nullcontext():
            if not begun:
                server.start()
            on_start()
            tracker.notify()
            for record in server.rounds():
                yield record
                with profile("tracking"):
                    tracker.notify()
        profile.begin(END)
        if server.is_done:
            server.check_trained()
            summary = results()
        status = "interrupted" if summary is None else "finished"
    except (KeyboardInterrupt, GeneratorExit):
        status = "interrupted"
        raise
    except ClientDiverged as error:
        facts_of_end = {"diverged": {"client": error.client, "round": error.round}}
        raise
    finally:
        profile.begin(END)
        server.clients.close()
        try:
            folder.update_facts(status=status, **facts_of_end)
        except (OSError, MemoryError) as error:  # only a warning, so that it does not hide what stopped the run
            warn(f"cannot note in {folder.path} that the run is {status}: {getattr(error, 'strerror', 'out of memory')}")
        with profile("tracking"):
            tracked = tracker.finish()
    return summary, tracked


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


@contextmanager
def _finish_round_on_interrupt(server: Server, warn: Warn) -> Iterator[None]:
    """A block in which the first Ctrl-C lets the round end, and the second stops at once; the last checkpoint is whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if server.stop_requested:
            raise KeyboardInterrupt
        server.stop_requested = True
        warn("stopping after this round (Ctrl-C again: at once)")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
