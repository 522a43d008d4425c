"""A whole run: folder, rounds, tracking, results."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from types import FrameType, MappingProxyType
from typing import Any

import torch

from fedpriv import plots
from fedpriv.config import ExecutorConfig, RunConfig, parse
from fedpriv.defenses.noise import SNR
from fedpriv.errors import UsageError
from fedpriv.evaluation.probe_during_run import PROBE
from fedpriv.evaluation.protocols import PROTOCOLS, mean_per_client
from fedpriv.files import save_json, save_tensors
from fedpriv.plots.confusion import confusion_report, draw_confusion
from fedpriv.server.payloads import PayloadStore
from fedpriv.server.run_folder import RunFolder, first_facts
from fedpriv.simulation.executors.build import reach
from fedpriv.simulation.profile import Profile
from fedpriv.simulation.reopening import damaged_partition, hashes, reopened
from fedpriv.simulation.setup import Federation, build
from fedpriv.simulation.simulation import Simulation
from fedpriv.spans import END, UNTIMED, Spans
from fedpriv.tracking import Background, check_tracking, default_uri, tracker_of

OnStart = Callable[[Federation, RunFolder], None]
OnRound = Callable[[dict[str, Any]], None]
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its folder, its summary unless it was interrupted, and its profile if one was requested."""

    folder: RunFolder
    summary: dict[str, Any] | None
    tracked: bool
    rounds_done: int
    profile: dict[str, Any] | None = None


def start(config: RunConfig, runs_dir: Path, on_start: OnStart, on_round: OnRound, warn: Warn, profiled: bool = False) -> Outcome:
    """Start a new run and run it to its end (or to Ctrl-C).

    Args:
        config: as the user gave it; the folder gets the filled-in one.
        runs_dir: where the folder is made, unless the config names it.
        on_start: called once, with what was built and where; ``on_round``: with each round's record; ``warn``: with warnings.
        profiled: write where the rounds' time went (:mod:`fedpriv.spans`).

    Raises:
        UsageError: before anything is written, where the config cannot be right.
        FedprivError: the run failed; its folder says ``failed`` and its last checkpoint is whole.
    """
    federation = build(config)
    check_tracking(federation.config.tracking)
    reach(federation.config.executor)
    with RunFolder.begin(federation.config, runs_dir) as folder, folder.in_memory():
        _describe(federation, folder)
        return _run(federation, folder, on_start, on_round, warn, profiled)


def resume(
    path: Path,
    on_start: OnStart,
    on_round: OnRound,
    warn: Warn,
    profiled: bool = False,
    executor: Mapping[str, Any] = MappingProxyType({}),
) -> Outcome:
    """Resume a killed or interrupted run from its last complete checkpoint; bit for bit as if it had not been interrupted.

    Args:
        profiled: as for :func:`start`; the profile covers the rounds that are run now.
        executor: ``workers``, ``ray_address`` and ``ray_workers``, on which no number depends; without ``workers``, as the run
            began.

    Raises:
        UsageError: no run there, another process is running it, or its config or its data were changed.
    """
    folder = RunFolder.open(path)
    summary = folder.summary()
    if summary is not None and folder.facts.get("status") == "finished":
        raise UsageError(f"{path} is finished ({summary['rounds']} rounds); nothing to resume")
    with folder.alone(), folder.in_memory():
        config = folder.config()
        if any(value is not None for value in executor.values()):
            changed = config.executor.model_dump() | {"ray_address": None, "ray_workers": None}
            changed |= {key: value for key, value in executor.items() if value is not None}
            config = config.model_copy(update={"executor": parse(ExecutorConfig, changed, "the executor")})
        if folder.facts or _begun(folder):
            federation = reopened(folder, config)
            if (damage := damaged_partition(folder)) is not None:
                warn(f"{damage}; it is written again")
                _save_partition(federation, folder)
        else:  # killed while the folder was being made
            federation = build(config)
            _describe(federation, folder)
        return _run(federation, folder, on_start, on_round, warn, profiled)


def _describe(federation: Federation, folder: RunFolder) -> None:
    """Write who holds what, and what is known about the run before its first round."""
    tracking = federation.config.tracking
    uri = tracking.uri or (default_uri(folder.path.parent) if tracking.name == "mlflow" else "none")
    _save_partition(federation, folder)
    with folder.writing("the beginning of the run"):
        facts = first_facts(federation.config, folder, hashes(federation), uri)
        folder.update_facts(**facts, notes=list(federation.prepared.said), executor=str(federation.choice))


def _save_partition(federation: Federation, folder: RunFolder) -> None:
    with folder.writing("the partition"):
        federation.data.partition.save(folder.partition_file)


def _begun(folder: RunFolder) -> bool:
    return any(folder.checkpoints.glob("round-*.json"))


def _run(federation: Federation, folder: RunFolder, on_start: OnStart, on_round: OnRound, warn: Warn, profiled: bool) -> Outcome:
    for note in federation.prepared.said:
        warn(note)
    profile = _profile(federation) if profiled else UNTIMED
    simulation = Simulation(federation, folder, warn, profile)
    begun = _begun(folder)
    if begun:
        simulation.restore()  # refuses a changed config before anything is noted in the folder
    tracker = Background(tracker_of(folder.path, folder.facts["tracking"]), warn, span=partial(profile.beside, "tracking"))
    status, summary, report = "failed", None, None
    try:
        with folder.writing("run.json"):
            folder.update_facts(status="running")
        with _finish_round_on_interrupt(simulation, warn):
            if not begun:
                simulation.start()
            on_start(federation, folder)
            tracker.notify()
            for record in simulation.rounds():
                on_round(record)
                with profile("tracking"):
                    tracker.notify()
        profile.begin(END)
        if simulation.progress.round == federation.config.train.rounds:
            summary = _write_results(simulation)
        status = "interrupted" if summary is None else "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        profile.begin(END)
        simulation.executor.close()
        try:
            folder.update_facts(status=status)
        except (OSError, MemoryError) as error:  # what stopped the run, if anything did, is what the user must hear of
            warn(f"cannot note in {folder.path} that the run is {status}: {getattr(error, 'strerror', 'out of memory')}")
        with profile("tracking"):
            tracked = tracker.finish()
        report = _write_profile(profile, simulation, warn)
    return Outcome(folder, summary, tracked, simulation.progress.round, report)


def _profile(federation: Federation) -> Profile:
    device = federation.resident.device
    return Profile(partial(torch.cuda.synchronize, device)) if device.type == "cuda" else Profile()


def _write_profile(profile: Spans, simulation: Simulation, warn: Warn) -> dict[str, Any] | None:
    if not isinstance(profile, Profile):
        return None
    try:
        return profile.write(simulation.folder.profile, simulation.progress.round)
    except OSError as error:  # as above
        warn(f"cannot write the profile in {simulation.folder.profile}: {error.strerror}")
        return None


@contextmanager
def _finish_round_on_interrupt(simulation: Simulation, warn: Warn) -> Iterator[None]:
    """The first Ctrl-C lets the round end; the second stops at once (the last checkpoint is whole either way)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if simulation.stop_requested:
            raise KeyboardInterrupt
        simulation.stop_requested = True
        warn("stopping after this round (Ctrl-C again: at once)")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _write_results(simulation: Simulation) -> dict[str, Any]:
    federation, folder, progress = simulation.federation, simulation.folder, simulation.progress
    config, records, method = federation.config, folder.records(), federation.method
    last = method.averaged_rounds
    protocols = {name: protocol(records, last) for name, protocol in PROTOCOLS.items()}
    per_client = mean_per_client(records, last)
    kept = PayloadStore(folder.payloads)
    with folder.writing("the results"):
        if method.shared_names:
            folder.weights.mkdir(exist_ok=True)
            save_tensors(
                folder.weights / "server.safetensors",
                federation.resident.space.unpack(simulation.server.row, method.shared_names),
            )
        folder.plots.mkdir(exist_ok=True)
        plots.learning_curve(records, folder.plots / "learning_curve.png")
        if per_client:
            plots.per_client_accuracy(per_client, folder.plots / "per_client_accuracy.png")
        if "global_accuracy" in records[-1]["metrics"]:  # the last round is always evaluated
            confusion, classes = simulation.scorer.confusion(simulation.server), federation.dataset.classes
            save_json(folder.confusion_file, confusion_report(confusion, classes, progress.round))
            draw_confusion(confusion, classes, folder.plots / "confusion.png")
        summary = {
            "run_id": folder.facts["run_id"],
            "method": config.called,
            "dataset": config.data.name,
            "seed": config.seed,
            "rounds": progress.round,
            "accuracy": protocols["last_rounds_client_mean"],
            "accuracy_per_client": per_client,
            **_probed(records),
            "averaged_rounds": last,
            "tested_from": method.tested_from,
            "bytes_up": progress.total_bytes_up,
            "bytes_down": progress.total_bytes_down,
            "seconds": round(progress.seconds, 3),
            "run_dir": str(folder.path),
            "payloads": {"bytes": kept.nbytes, "files": len(kept.files())},
            "protocols": protocols,
            **_signal_to_noise(records),
            **({"privacy": simulation.statement()} if simulation.is_private else {}),
            **({"notes": list(federation.prepared.said)} if federation.prepared.said else {}),
            "split": config.eval.split,
            "turns": sum(record["metrics"].get("participants", 0) for record in records),
            "turns_dropped": sum(record["metrics"].get("dropped", 0) for record in records),
            "answers_refused": sum(record["metrics"].get("refused", 0) for record in records),
            "clients_never_trained": len(set(federation.data.nonempty) - simulation.trained_clients()),
        }
        folder.write_summary(summary)
    return summary


def _probed(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``probe``: share of the labels -> accuracy after the last round, where the run was probed."""
    last = records[-1]["metrics"]
    found = {name.removeprefix(PROBE): value for name, value in last.items() if name.startswith(PROBE)}
    return {"probe": found} if found else {}


def _signal_to_noise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``snr_db``: layer -> mean over the rounds in dB, where noise was added to the uploads."""
    layers: dict[str, list[float]] = {}
    for record in records:
        for name, value in record["metrics"].items():
            if name.startswith(SNR):
                layers.setdefault(name.removeprefix(SNR), []).append(value)
    return {"snr_db": {layer: fmean(values) for layer, values in layers.items()}} if layers else {}
