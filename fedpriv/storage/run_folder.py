"""The folder of a run: config, partition, records, checkpoints, payloads, results."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig, parse, read_yaml
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import load_json, save_json, write_atomically
from fedpriv.plugins import load_plugins
from fedpriv.storage.records import Record, Records
from fedpriv.storage.run_lock import RunLock


class RunFolder:
    """The files of one run. Every file that is read again has a checksum, or is compared with one.

    From the start: ``config.yaml``, ``run.json`` (facts and status), ``partition.safetensors``, ``preprocessing.json`` (how
    samples become the net's inputs), ``init.safetensors`` (the weights of ``model.init``, if they were given),
    ``metrics.jsonl`` (a record for each round), ``checkpoints/`` (of the server), ``clients/`` (the clients' private states,
    which a real server does not have) and ``payloads/`` (what crossed the wire, as far as ``wire.keep_payloads`` says). At the
    end: ``summary.json``, ``weights/``, ``plots/``, and, if the run has them, ``confusion.json``, ``canaries.safetensors``,
    ``profile/`` and ``probe/``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.partition_file = path / "partition.safetensors"
        self.preprocessing_file = path / "preprocessing.json"
        self.init_file = path / "init.safetensors"
        self.checkpoints = path / "checkpoints"
        self.clients = path / "clients"
        self.payloads = path / "payloads"
        self.weights = path / "weights"
        self.plots = path / "plots"
        self.confusion_file = path / "confusion.json"
        self.canaries_file = path / "canaries.safetensors"
        self.probe = path / "probe"
        self.profile = path / "profile"
        self._facts_file = path / "run.json"
        self._summary_file = path / "summary.json"
        self._lock = RunLock(path / ".run.lock")
        self._records = Records(path)

    def server_file(self, best: bool = False) -> Path:
        """The server's final weights, or those of the best round on validation data."""
        return self.weights / f"{'best' if best else 'server'}.safetensors"

    @classmethod
    def create(cls, config: RunConfig, runs_dir: Path) -> RunFolder:
        """As :meth:`begin`, but without holding the lock."""
        with cls.begin(config, runs_dir) as folder:
            return folder

    @classmethod
    @contextmanager
    def begin(cls, config: RunConfig, runs_dir: Path) -> Iterator[RunFolder]:
        """Create the folder of a new run, for a block that holds its lock.

        Raises:
            UsageError: the folder cannot be written, or holds a run already.
        """
        path = config.run_dir or runs_dir / default_name(config)
        folder = cls(path.absolute())
        with ExitStack() as stack:
            try:
                folder.check_new()
                folder.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(folder.alone())
                if folder.config_file.exists():  # another process was quicker
                    raise folder._taken()
                folder.checkpoints.mkdir(exist_ok=True)
                # Without run_dir, so that the file can start another run.
                write_atomically(folder.config_file, config.model_copy(update={"run_dir": None}).to_yaml().encode())
            except OSError as error:
                raise UsageError(f"cannot write the run folder {path}: {error.strerror}; --run-dir names another") from None
            yield folder

    def check_new(self) -> None:
        """Raise :class:`UsageError` if the folder holds a run, runs, or something else, so that no run can begin here."""
        shown = self._shown
        names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
        if "config.yaml" in names:
            with self.alone(runs=False):  # raises another error if a process runs it
                raise self._taken()
        if any(self.path.glob("*/config.yaml")):
            hint = f"--run-dir names the folder of this run alone, such as {shown / 'new'}"
            raise UsageError(f"{shown} holds other runs; {hint}")
        if strange := sorted(name for name in names if not _may_precede(name)):
            raise UsageError(f"{shown} is no run, and holds {strange[0]}; --run-dir names a new folder, or an empty one")

    def _taken(self) -> UsageError:
        return UsageError(f"{self._shown} holds a run already; {self.how_to_resume} continues it, --run-dir names another folder")

    @property
    def how_to_resume(self) -> str:
        """The command that resumes the run, for messages."""
        return f"`fedpriv {'deploy ' if 'deployed' in self.facts else ''}resume {self._shown}`"

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an existing run; raises :class:`UsageError` if there is none."""
        folder = cls(path.absolute())
        if not folder.config_file.exists():
            raise UsageError(f"{path} holds no run (no config.yaml)")
        return folder

    @contextmanager
    def alone(self, runs: bool = True) -> Iterator[None]:
        """A block that holds the run's lock; raises :class:`UsageError` if another process does, with its number and host.

        Args:
            runs: whether this process runs the run in the block.
        """
        with self._lock.held(runs):
            yield

    @property
    def status(self) -> str:
        """``running``, ``finished``, ``interrupted`` or ``failed``, as ``run.json`` says.

        If it says ``running``, but the process has ended: ``killed``; if that is unknown, as the process is on another machine:
        ``running or killed``.
        """
        noted = self._noted_status
        if noted != "running" or (held := self._lock.is_held()):
            return noted
        # Read again, as the process may have ended the run in between.
        return noted if (noted := self._noted_status) != "running" else "killed" if held is False else "running or killed"

    @property
    def _noted_status(self) -> str:
        return str(self.facts.get("status", "running"))

    def config(self) -> RunConfig:
        """The stored config.

        Raises:
            UsageError: the file is not a config, or was changed since the run began.
        """
        config = self.config_as_data()
        load_plugins(config.plugins, of=str(self.config_file))
        return config

    def config_as_data(self) -> RunConfig:
        """As :meth:`config`, without importing its plug-ins."""
        config = parse(RunConfig, read_yaml(self.config_file), f"config {self.config_file}")
        if self.facts.get("config_fingerprint") not in (None, config.fingerprint()):
            hint = "restore it, or start a new run with `fedpriv train --config`"
            raise UsageError(f"{self.config_file} was changed since the run began; {hint}")
        if config.model.init is not None and self.init_file.exists():  # the file that was given may be gone
            config = config.with_values("model", init=self.init_file)
        return config

    @property
    def facts(self) -> dict[str, Any]:
        """The contents of ``run.json``."""
        return dict(load_json(self._facts_file)) if self._facts_file.exists() else {}

    def update_facts(self, **facts: Any) -> None:
        """Change some of the facts in ``run.json``."""
        save_json(self._facts_file, {**self.facts, **facts})

    def records(self) -> list[Record]:
        """The records of all rounds so far, in order (:mod:`fedpriv.storage.records`).

        Raises:
            Damaged: one is lost.
        """
        summary = self.summary()
        return self._records.read(None if summary is None else summary["rounds"])

    def append(self, record: Record) -> None:
        """Add the record of a round."""
        self._records.append(record)

    def mend_records(self, last: int) -> None:
        """Make ``metrics.jsonl`` hold exactly the records of the rounds 0 to ``last``; raises ``Damaged`` as above."""
        self._records.mend(last)

    def summary(self) -> dict[str, Any] | None:
        """The contents of ``summary.json``, if the run is finished."""
        return dict(load_json(self._summary_file)) if self._summary_file.exists() else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        save_json(self._summary_file, summary)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A block that writes into the folder; a full disk becomes a :class:`FedprivError` that says how to go on."""
        try:
            yield
        except OSError as error:
            raise FedprivError(
                f"cannot write {what} in {self._shown}: {error.strerror}; "
                f"what was written before is whole: make room, then {self.how_to_resume}"
            ) from None

    @contextmanager
    def in_memory(self) -> Iterator[None]:
        """A block of the run; a lack of memory becomes a :class:`FedprivError` that says how to go on."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:  # torch raises the latter
            if not (isinstance(error, MemoryError) or re.search("can't allocate memory|out of memory", str(error))):
                raise
            raise FedprivError(
                f"out of memory; what was written before is whole: {self.how_to_resume} goes on from there"
            ) from None

    @property
    def _shown(self) -> Path:
        cwd = Path.cwd()
        return self.path.relative_to(cwd) if self.path.is_relative_to(cwd) else self.path


def _may_precede(name: str) -> bool:
    """Whether a file or folder may exist before a run begins: from an interrupted start, or from the program that starts it."""
    return name.startswith(".") or name.endswith(".part") or name in ("checkpoints", "log.txt")


def default_name(config: RunConfig, with_data: bool = True) -> str:
    """``<date>-<time>-<method>-<data>-s<seed>-<tag>``, or without the data."""
    data = [Path(config.data.name).name] if with_data else []
    return "-".join([time.strftime("%Y%m%d-%H%M%S"), config.called, *data, f"s{config.seed}", os.urandom(2).hex()])
