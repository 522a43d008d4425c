"""Runs an experiment: collects finished runs, resumes interrupted ones, and starts the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from fedpriv.errors import FedprivError
from fedpriv.experiments.checkout import refuse_changes
from fedpriv.experiments.leaks import leakage
from fedpriv.experiments.results import Divergence, Result, collect, is_finished, rounded
from fedpriv.experiments.spec import Experiment
from fedpriv.experiments.stored import divergence_of, elsewhere
from fedpriv.experiments.validity import by_other_code, difference, made_otherwise
from fedpriv.processes import CORES, python_command, usable_cores
from fedpriv.scores.catalogue import ACCURACY, score_named
from fedpriv.storage.provenance import CHECKOUT
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.folder import read_lines
from fedpriv.untrusted import plain_yaml
from fedpriv.untrusted.addresses import with_secrets

State = Literal["done", "collected", "finished", "diverged", "interrupted", "failed", "left"]
"""done: the result exists; collected: the run had finished before; finished: it finished now; diverged: it has no result, since a
client diverged, now or before; left: not started."""

Say = Callable[[str], None]

_FEDPRIV = "from fedpriv.cli import main; main()"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Environment of a process with one thread."""
_POLL = 0.2  # seconds between checks of the processes


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run of the experiment; ``score``: the one that it is ranked by, as it is said."""

    label: str
    seed: int
    state: State
    accuracy: float | None = None
    score: str = ""
    error: str | None = None

    @property
    def name(self) -> str:
        return f"{self.label}-s{self.seed}"


@dataclass
class _Job:
    """A run with a running process."""

    label: str
    seed: int
    folder: RunFolder
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    interrupts: int = 0
    began: float = field(default_factory=time.monotonic)


@dataclass
class _Interrupts:
    """Counts the user's requests to stop."""

    count: int = 0


def run(
    experiment: Experiment,
    runs_dir: Path,
    workers: int = 1,
    labels: Sequence[str] = (),
    seeds: Sequence[int] = (),
    data_dir: Path | None = None,
    say: Say = lambda text: None,
    allow_dirty: bool = False,
    runs: Sequence[tuple[str, int]] | None = None,
) -> list[Outcome]:
    """Finish the runs of an experiment, each in its own process with one torch thread and its share of the cores.

    If a run fails, the others continue. The first Ctrl-C (or SIGTERM) lets running processes finish their round, a second one
    stops them at once; either way the same call resumes them later. No process outlives this one, however it ends.

    Args:
        workers: number of processes at a time; 0: only collect finished runs.
        labels, seeds: the runs; all where none are given.
        data_dir: the data folder, if not that of the YAML or ``FEDPRIV_DATA``.
        say: called with progress messages of one line.
        allow_dirty: start runs in a git checkout with changes that are not committed, too.
        runs: these (label, seed), in place of ``labels`` and ``seeds``.

    Raises:
        UsageError: the experiment has no such label or seed, or lies in a checkout with such changes.
    """
    waiting = deque(experiment.select(labels, seeds) if runs is None else runs)
    if workers and not allow_dirty:
        refuse_changes(experiment.path)
    jobs: list[_Job] = []
    outcomes: list[Outcome] = []

    def conclude(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if (text := _message(outcome)) is not None:
            say(text)

    with tempfile.TemporaryDirectory(prefix="fedpriv-") as asked, _counting_interrupts(say) as interrupts:
        cores = max(1, usable_cores() // max(1, min(workers, len(waiting))))
        runner = _Runner(experiment, runs_dir, data_dir, Path(asked), say, allow_dirty, cores)
        while waiting or jobs:
            while waiting and not interrupts.count and len(jobs) < max(1, workers):
                begun = runner.begin(*waiting.popleft(), may_start=workers > 0)
                if isinstance(begun, _Job):
                    jobs.append(begun)
                else:
                    conclude(begun)
            for job in list(jobs):
                if job.process.poll() is not None:
                    jobs.remove(job)
                    conclude(runner.end(job, bool(interrupts.count)))
                elif job.interrupts < interrupts.count:
                    job.interrupts = interrupts.count
                    job.process.send_signal(signal.SIGINT)
            if interrupts.count:
                while waiting:
                    conclude(Outcome(*waiting.popleft(), "left"))
            if jobs:
                time.sleep(_POLL)
    return outcomes


def _message(outcome: Outcome) -> str | None:
    states = {"collected": "was finished, result stored", "finished": "finished", "interrupted": "interrupted, can be resumed"}
    if outcome.state == "failed":
        return f"{outcome.name}: FAILED: {outcome.error}"
    if outcome.state == "diverged":
        return f"{outcome.name}: has no result: {outcome.error}"
    if outcome.state in states:
        return f"{outcome.name}: {states[outcome.state]}{', ' * bool(outcome.score)}{outcome.score}"
    return None


@dataclass(frozen=True)
class _Runner:
    """Starts and ends runs; ``asked`` is a folder for the configs of the processes, and ``cores`` how many each may use."""

    experiment: Experiment
    runs_dir: Path
    data_dir: Path | None
    asked: Path
    say: Say
    allow_dirty: bool
    cores: int

    def begin(self, label: str, seed: int, may_start: bool) -> Outcome | _Job:
        """Return a run's outcome if it is done or can be collected, otherwise start its process."""
        config, stored = self.experiment.config(label, seed), self.experiment.result_file(label, seed)
        folder = RunFolder(self.experiment.run_dir(self.runs_dir, label, seed).absolute())
        try:
            if stored.exists():
                try:
                    result = Result.load(stored)
                except FedprivError as error:
                    raise FedprivError(f"{error}; remove the file, and the result is stored again") from None
                if made_otherwise(config, result) is None:
                    return self._done(label, seed, result, stored, folder)
            if (shared := elsewhere(self.experiment, label, seed)) is not None:
                self.say(f"{label}-s{seed}: is {shared[1].parent.name}/{shared[1].stem}, whose result counts")
                return self._done(label, seed, *shared, folder)
            if (known := divergence_of(self.experiment, label, seed)) is not None:
                return Outcome(label, seed, "diverged", error=str(known))
            if folder.config_file.exists():
                if (other := difference(config, folder.config())) is not None:
                    raise FedprivError(f"{_short(folder.path)} holds another run ({other}); move it away")
                if (other := by_other_code(folder.facts, config)) is not None:
                    raise FedprivError(f"{_short(folder.path)}: {other}; move it away")
                if is_finished(folder):
                    return self._store(label, seed, folder, "collected")
                if (diverged := Divergence.of(folder, label)) is not None:
                    return self._ended(diverged)
            return self._launch(label, seed, folder) if may_start else Outcome(label, seed, "left")
        except FedprivError as error:
            return Outcome(label, seed, "failed", error=str(error))
        except OSError as error:
            return Outcome(label, seed, "failed", error=f"{error.filename}: {error.strerror}")

    def _done(self, label: str, seed: int, result: Result, stored: Path, folder: RunFolder) -> Outcome:
        """The outcome of a run that has a result; if it was audited since, the figures are added to the result.

        Args:
            stored: the file of the result, which may be another experiment's.
        """
        state: State = "done"
        figures = leakage(folder.path)
        # A result that has fewer digits of small numbers is not written again for these alone.
        is_new = figures and result.leakage not in (figures, rounded(figures, small=False))
        if is_new and difference(self.experiment.config(label, seed), folder.config()) is None:
            if not _is_result_of(result, folder):
                self.say(
                    f"{label}-s{seed}: the audit in {_short(folder.path)} is of another run than the stored result; left out"
                )
            else:
                replace(Result.load(stored), leakage=figures).write(stored)
                state = "collected"
        return Outcome(label, seed, state, result.summary["accuracy"], _score(result.summary))

    def _launch(self, label: str, seed: int, folder: RunFolder) -> _Job:
        if not self.allow_dirty:  # a change since the first run began would train this one
            refuse_changes(self.experiment.path)
        folder.path.mkdir(parents=True, exist_ok=True)
        if folder.config_file.exists():
            with folder.alone(runs=False):  # a process would take seconds to find that another has it
                arguments = ["resume", str(folder.path)]
        else:
            config = self.experiment.config(label, seed)
            if self.data_dir is not None:
                config = config.with_values("data", dir=None)
            file = self.asked / f"{label}-s{seed}.yaml"
            file.write_text(plain_yaml.dump(config.chosen()), encoding="utf-8")
            arguments = ["train", "--config", str(file), "--run-dir", str(folder.path)]
        # The data folder is passed by the environment, not by the config, so that a run can be resumed with another one.
        environment = os.environ | ONE_THREAD | ({"FEDPRIV_DATA": str(self.data_dir.absolute())} if self.data_dir else {})
        environment[CORES] = str(self.cores)
        environment[CHECKOUT] = str(self.experiment.path.absolute().parent)  # the one whose changes are refused
        if (uri := self.experiment.config(label, seed).tracking.uri) not in (None, "none"):
            # The user's own, by naming this YAML; and its password, which no file holds, goes by environment.
            environment["MLFLOW_TRACKING_URI"] = with_secrets(uri) or uri
        log = folder.path / "log.txt"
        with log.open("ab") as output:
            start = output.tell()
            # In its own process group, so that Ctrl-C reaches it only through the loop of `run`.
            command = python_command(_FEDPRIV, *arguments)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, process_group=0
            )
        done, _ = read_lines(folder.path)  # of a damaged file, what is left of it: the process mends it or says what is lost
        self.say(f"{label}-s{seed}: {'resumed after round ' + str(done[-1]['round']) if done else 'started'}, log {_short(log)}")
        return _Job(label, seed, folder, process, log, start)

    def end(self, job: _Job, stopping: bool) -> Outcome:
        """The outcome of a process that has ended."""
        if job.process.returncode == 0:
            try:
                return self._store(job.label, job.seed, job.folder, "finished")
            except (FedprivError, OSError) as error:
                return Outcome(job.label, job.seed, "failed", error=str(error))
        if stopping or job.process.returncode == 130:
            return Outcome(job.label, job.seed, "interrupted")
        if (diverged := Divergence.of(job.folder, job.label)) is not None:
            return self._ended(diverged)
        with job.log.open("rb") as file:
            file.seek(job.log_start)
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix("fedpriv: ") for line in lines if line.startswith("fedpriv: ")]
        reason = (errors or lines or [f"the process ended with status {job.process.returncode}"])[-1]
        return Outcome(job.label, job.seed, "failed", error=f"{reason} (log {_short(job.log)})")

    def _store(self, label: str, seed: int, folder: RunFolder, state: State) -> Outcome:
        result = replace(collect(folder, label), leakage=leakage(folder.path))
        result.write(self.experiment.result_file(label, seed))
        return Outcome(label, seed, state, result.summary["accuracy"], _score(result.summary))

    def _ended(self, diverged: Divergence) -> Outcome:
        diverged.write(self.experiment.divergence_file(diverged.label, diverged.seed))
        return Outcome(diverged.label, diverged.seed, "diverged", error=str(diverged))


def _score(summary: Mapping[str, Any]) -> str:
    """The score that a run is ranked by, as it is said; empty: it has none."""
    ranked = summary.get("ranked", {"metric": ACCURACY.name, "mean": summary["accuracy"]})
    score = score_named(ranked["metric"])
    if ranked["mean"] is None:
        return ""
    return f"{score.title} {score.shown(ranked['mean']) if score.of_numbers else format(ranked['mean'], '.3f')}"


def _is_result_of(result: Result, folder: RunFolder) -> bool:
    """Whether the run in a folder has these numbers: other code may have made another run with the same config."""
    if not is_finished(folder):
        return False
    own, stored = collect(folder, result.label).summary, result.summary
    same = ("accuracy", "accuracy_per_client", "bytes_up", "bytes_down")
    return all(rounded(own[name], small=False) == rounded(stored[name], small=False) for name in same)


@contextmanager
def _counting_interrupts(say: Say) -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return

    def handle(number: int, frame: FrameType | None) -> None:
        interrupts.count += 1
        if interrupts.count == 1:
            say("stopping: the running rounds end first (Ctrl-C again: at once)")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
