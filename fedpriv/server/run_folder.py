"""The folder of a run, which is its truth: config, partition, metrics, checkpoints, results."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig, parse, read_yaml
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import load_json, save_json, write_atomically
from fedpriv.plugins import contents, load_plugins
from fedpriv.server.records import Record, Records
from fedpriv.server.run_lock import RunLock

PACKAGES = ("fedpriv", "torch", "torchvision", "numpy", "datasets", "flwr-datasets", "safetensors", "mlflow", "opacus")
CHECKOUT = "FEDPRIV_CHECKOUT"
"""Environment variable with a folder of the git checkout whose commit a run names, if it is not that of the working folder."""


class RunFolder:
    """Paths and records of one run. Every file of it that is read again has a checksum, or is compared with one.

    ``config.yaml``, ``run.json`` (what it is and how it stands), ``partition.safetensors``, ``metrics.jsonl`` (a line a
    round), ``checkpoints/`` (of the server), ``clients/`` (what the clients keep, which a server would not have),
    ``payloads/`` (what crossed the wire, as much of it as ``wire.keep_payloads`` says), and at the end ``summary.json``,
    ``confusion.json`` (where there is a global model), ``canaries.safetensors`` (where there are canaries), ``weights/``,
    ``plots/``, ``profile/`` (where that was requested); after it ``probe/``, where it was probed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.partition_file = path / "partition.safetensors"
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

    @classmethod
    def create(cls, config: RunConfig, runs_dir: Path) -> RunFolder:
        """As :meth:`begin`; but then other processes may play the run."""
        with cls.begin(config, runs_dir) as folder:
            return folder

    @classmethod
    @contextmanager
    def begin(cls, config: RunConfig, runs_dir: Path) -> Iterator[RunFolder]:
        """Make the folder of a new run, for a block in which no other process plays it.

        Raises:
            UsageError: it cannot be written, or holds a run already.
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
                # Without its own place: the file can start another run.
                write_atomically(folder.config_file, config.model_copy(update={"run_dir": None}).to_yaml().encode())
            except OSError as error:
                raise UsageError(f"cannot write the run folder {path}: {error.strerror}; --run-dir names another") from None
            yield folder

    def check_new(self) -> None:
        """Check that a run may begin here; :class:`UsageError` where the folder holds a run, runs, or something else."""
        shown = self._shown
        there = [one.name for one in self.path.iterdir()] if self.path.is_dir() else []
        if "config.yaml" in there:
            with self.alone(plays=False):  # where a process runs it, that is what to say
                raise self._taken()
        if any(self.path.glob("*/config.yaml")):
            hint = f"--run-dir names the folder of this run alone, such as {shown / 'new'}"
            raise UsageError(f"{shown} holds other runs; {hint}")
        if strange := sorted(name for name in there if not _is_of_a_beginning(name)):
            raise UsageError(f"{shown} is no run, and holds {strange[0]}; --run-dir names a new folder, or an empty one")

    def _taken(self) -> UsageError:
        return UsageError(f"{self._shown} holds a run already; {self.how_to_resume} continues it, --run-dir names another folder")

    @property
    def how_to_resume(self) -> str:
        """The command that goes on with the run, as messages say it."""
        return f"`fedpriv {'deploy ' if 'deployed' in self.facts else ''}resume {self._shown}`"

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an existing run; :class:`UsageError` where there is none."""
        folder = cls(path.absolute())
        if not folder.config_file.exists():
            raise UsageError(f"{path} holds no run (no config.yaml)")
        return folder

    @contextmanager
    def alone(self, plays: bool = True) -> Iterator[None]:
        """A block in which no other process plays this run; :class:`UsageError` where one does, with its number and host.

        Args:
            plays: this process does, in the block.
        """
        with self._lock.held(plays):
            yield

    @property
    def status(self) -> str:
        """``running``, ``finished``, ``interrupted`` or ``failed``, as ``run.json`` says.

        Where it says ``running``, but the process that ran the run is gone without a word: ``killed``; where that is not known,
        as the process was on another machine: ``running or killed``.
        """
        noted = self._noted_status
        if noted != "running" or (held := self._lock.is_held()):
            return noted
        # Read again: the process may have ended the run, and itself, since.
        return noted if (noted := self._noted_status) != "running" else "killed" if held is False else "running or killed"

    @property
    def _noted_status(self) -> str:
        return str(self.facts.get("status", "running"))

    def config(self) -> RunConfig:
        """The run's config as stored.

        Raises:
            UsageError: it is no config, or not the one that the run began with.
        """
        config = self.config_as_data()
        load_plugins(config.plugins, of=str(self.config_file))
        return config

    def config_as_data(self) -> RunConfig:
        """As :meth:`config`, without importing the plug-ins that it names."""
        config = parse(RunConfig, read_yaml(self.config_file), f"config {self.config_file}")
        if self.facts.get("config_fingerprint") not in (None, config.fingerprint()):
            hint = "restore it, or start a new run with `fedpriv train --config`"
            raise UsageError(f"{self.config_file} was changed since the run began; {hint}")
        return config

    @property
    def facts(self) -> dict[str, Any]:
        """The contents of ``run.json``."""
        return dict(load_json(self._facts_file)) if self._facts_file.exists() else {}

    def update_facts(self, **facts: Any) -> None:
        """Change some of what ``run.json`` says."""
        save_json(self._facts_file, {**self.facts, **facts})

    def records(self) -> list[Record]:
        """The records of all rounds so far, in order (:mod:`fedpriv.server.records`).

        Raises:
            Damaged: one is not known any more.
        """
        summary = self.summary()
        return self._records.read(None if summary is None else summary["rounds"])

    def append(self, record: Record) -> None:
        """Add the record of a round."""
        self._records.append(record)

    def mend_records(self, last: int) -> None:
        """Make ``metrics.jsonl`` hold the records of the rounds 0 to ``last``, and no others; ``Damaged`` as above."""
        self._records.mend(last)

    def summary(self) -> dict[str, Any] | None:
        """The contents of ``summary.json``, if the run is finished."""
        return dict(load_json(self._summary_file)) if self._summary_file.exists() else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        save_json(self._summary_file, summary)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A block that writes into the folder; a disk that is full becomes a :class:`FedprivError` that says how to go on."""
        try:
            yield
        except OSError as error:
            raise FedprivError(
                f"cannot write {what} in {self._shown}: {error.strerror}; "
                f"what was written before is whole: make room, then {self.how_to_resume}"
            ) from None

    @contextmanager
    def in_memory(self) -> Iterator[None]:
        """A block in which the run goes on; memory that is full becomes a :class:`FedprivError` that says how to go on."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:  # torch's are of the latter
            if not (isinstance(error, MemoryError) or re.search("can't allocate memory|out of memory", str(error))):
                raise
            raise FedprivError(
                f"out of memory; what was written before is whole: {self.how_to_resume} goes on from there"
            ) from None

    @property
    def _shown(self) -> Path:
        cwd = Path.cwd()
        return self.path.relative_to(cwd) if self.path.is_relative_to(cwd) else self.path


def _is_of_a_beginning(name: str) -> bool:
    """Whether a file or folder may be there before a run begins: of a beginning that was broken off, or of who starts it."""
    return name.startswith(".") or name.endswith(".part") or name in ("checkpoints", "log.txt")


def default_name(config: RunConfig) -> str:
    """``<date>-<time>-<method>-<data>-s<seed>-<tag>``."""
    data = Path(config.data.name).name
    tag = os.urandom(2).hex()
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{config.called}-{data}-s{config.seed}-{tag}"


def _made_by(config: RunConfig) -> dict[str, Any]:
    """The facts on what computes a run."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "processor": processor(),
        "plugins": _own_code(config),
    }


def _own_code(config: RunConfig) -> dict[str, str]:
    """SHA-256 (hex) of the files of plug-ins and of a net of the user's own, by module name."""
    from fedpriv.models.user_net import hash_user_net  # with torch

    return hash_user_net(config.model.name) | contents(config.plugins)


def first_facts(config: RunConfig, folder: RunFolder, hashes: Mapping[str, str], tracking_uri: str) -> dict[str, Any]:
    """The facts of a run before its first round.

    Args:
        hashes: of its data, by the name of the fact.
    """
    return {
        "run_id": folder.path.name,
        "method": config.called,
        "dataset": config.data.name,
        "seed": config.seed,
        "created_ms": int(time.time() * 1000),
        "status": "running",
        **_made_by(config),
        **hashes,
        "config_fingerprint": config.fingerprint(),
        "device": config.device,
        "tracking": config.tracking.model_dump() | {"uri": tracking_uri},
    }


def continued(facts: Mapping[str, Any], config: RunConfig, round: int) -> dict[str, Any]:
    """What to add to the facts of a run that goes on after ``round`` rounds; empty where nothing has changed since it began.

    Each entry of ``continued`` has the round, and those of commit, versions, processor and plug-ins that differ from what was
    before.
    """
    now = _made_by(config)
    known = {name: facts.get(name) for name in now}
    for earlier in facts.get("continued", []):
        known |= earlier
    changed = {name: value for name, value in now.items() if value and value != known[name]}
    return {"continued": [*facts.get("continued", []), {"after_round": round, **changed}]} if changed else {}


def changed_code(facts: Mapping[str, Any], config: RunConfig) -> list[str]:
    """The plug-ins, and the modules of a net of the user's own, whose content is not what the run began with.

    Runs of earlier versions do not say what that was.
    """
    then, files = facts.get("plugins") or {}, {file.stem: file.name for file in config.plugins}
    now = _own_code(config)
    return [files.get(name, f"the module {name}") for name, content in now.items() if then.get(name, content) != content]


def code_of(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The hashes, by module, of plug-ins and of a net of the user's own: those that a run began with, and that continued it."""
    return [part["plugins"] for part in (facts, *(facts.get("continued") or [])) if part.get("plugins")]


def other_code(facts: Mapping[str, Any], config: RunConfig) -> list[str]:
    """As :func:`changed_code`, of every part of a run: also of rounds by which it was continued."""
    return list(dict.fromkeys(name for code in code_of(facts) for name in changed_code({"plugins": code}, config)))


@cache  # a process may start many runs, and each version is parsed out of its package's metadata
def versions() -> dict[str, str]:
    """The installed versions of the packages that numbers depend on."""
    return {name: version(name) for name in PACKAGES}


def git_commit() -> str | None:
    """The commit of the working folder, or of :data:`CHECKOUT`, with ``-dirty`` where it was changed; ``None`` outside one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        folder = os.environ.get(CHECKOUT) or None
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False, encoding="utf-8")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def processor() -> str:
    """The kind of processor, by which libraries choose their kernels: name, family, model and widest vector unit, as Linux says
    it; elsewhere what Python knows."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return platform.processor() or platform.machine()
    said = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = said.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    name = said.get("model name", platform.machine())
    return f"{name} family {said.get('cpu family')} model {said.get('model')} {vectors}".strip()
