"""The setups that a client has accepted, a folder for each run, and the run that is open."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.agreement import Declared
from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig
from fedpriv.data.encoding import Encoding, NumberColumn
from fedpriv.data.statistics.messages import value_of
from fedpriv.deploy.client.agreed_run import AgreedRun
from fedpriv.deploy.client.own_data import OwnData, with_run_choices
from fedpriv.deploy.client.request_validation import config_of
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.facts import declared_from_json
from fedpriv.deploy.versions import check_code, code_hash
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import load_json, save_json, write_atomically
from fedpriv.server.statistics import noise_multiplier
from fedpriv.wire import Sealed, unseal
from fedpriv.wire.message import Refused

if TYPE_CHECKING:
    from fedpriv.client.masking import Masking

UNKNOWN_RUN = "unknown run"
"""Beginning of the error for a run whose setup the client does not have; the server then sends the setup again."""
MAX_RUNS_KEPT = 8
"""Runs whose last answer and masked upload are kept in memory."""
_ENCODING = "encoding.safetensors"
"""File of the encoding in a run's folder."""
_BROADCAST = "broadcast-"
"""Prefix of the file of the initial model in a run's folder; the rest of the name is its checksum."""


class Setups:
    """What a client has agreed to.

    Args:
        folder: the client's.
        check_downloads, requires: as for :class:`~fedpriv.deploy.client.client_node.ClientNode`.
    """

    def __init__(self, data: OwnData, folder: Path, check_downloads: bool, requires: Requires) -> None:
        self._data, self._path, self.check_downloads, self.requires = data, folder, check_downloads, requires
        self._current: AgreedRun | None = None
        self._maskings: dict[str, Masking] = {}
        """Run -> the upload that waits for secure aggregation, while other runs train."""

    def accept(self, run: str, setup: Mapping[str, Any], samples: Any, encoding: Sealed | None) -> AgreedRun:
        """Accept the setup of a run, and the numbers of samples that it is based on. Neither changes any more.

        Args:
            encoding: by which the samples are scaled and coded, if it is sent.
        """
        folder = self._folder(run)
        if encoding is not None and encoding.digest == setup["encoding"]:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(folder / _ENCODING, encoding.data)
        if known := (folder / "setup.json").exists():
            if _meaning(load_json(folder / "setup.json")) != _meaning(setup):
                raise FedprivError(f"the setup of run {run} differs from the one that this client has agreed to")
            samples = load_json(folder / "samples.json")
        if not isinstance(samples, dict):
            raise Refused("a setup without the number of samples that the client has declared")
        opened = self._open(run, setup, samples)
        if not known:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_json(folder / "samples.json", samples)
            save_json(folder / "setup.json", setup)
        self._current = opened
        return opened

    def keep_broadcast(self, run: str, message: Sealed) -> None:
        """Store the initial model of a run."""
        self.run(run).take_broadcast(message)
        write_atomically(self._folder(run) / f"{_BROADCAST}{message.digest}", message.data)

    def run(self, run: str) -> AgreedRun:
        """A run that was agreed on, loaded from disk if it is not the current one."""
        if self._current is not None and self._current.name == run:
            return self._current
        path = self._folder(run) / "setup.json"
        setup = load_json(path) if path.exists() else {}
        if setup.get("run") != run:  # on a file system that ignores case, the folder may be that of another run
            raise Refused(f"{UNKNOWN_RUN} {run}")
        self._current = self._open(run, setup, load_json(self._folder(run) / "samples.json"))
        return self._current

    def _open(self, run: str, setup: Mapping[str, Any], samples: Mapping[str, Any]) -> AgreedRun:
        if self._current is not None and self._current.name == run:
            return self._current
        check_code(setup.get("code"), f"run {run} began with")
        config = config_of(setup)
        self.requires.check(config)
        config = config.with_check(self.check_downloads)
        declared = declared_from_json(setup.get("declared"))
        if len(declared.trainable) > config.data.clients:
            raise UsageError(f"the server declares {len(declared.trainable)} clients of a run of {config.data.clients}")
        encoding = self._kept_encoding(run, setup.get("encoding"))
        _check_noise(config, declared, encoding)
        if declared.target != (encoding and encoding.target):
            raise UsageError("the server declares other labels than its encoding of the samples has")
        loaded = self._data.load(config, encoding, declared.class_names)
        here = with_run_choices(config, loaded.config)
        if here.fingerprint() != config.fingerprint():
            raise UsageError(f"the config differs: {_first_difference(config, here)}")
        now = self._data.samples(self._data.read(config))
        if samples != now:  # the server's privacy accounting and weights are based on them
            raise UsageError(
                f"client {self._data.number} declared {samples.get('train')} training and {samples.get('test')} test samples for "
                f"run {run} and has {now['train']} and {now['test']} now; the run needs the data that it began with"
            )
        store = ClientStore(self._folder(run) / "states", hint="make room; until then the run goes on without this client")
        checksum = hashlib.sha256(json.dumps(_meaning(setup), sort_keys=True).encode()).hexdigest()
        opened = AgreedRun(run, self._data.number, config, declared, loaded, store, self.secret(run), checksum)
        self.requires.check_tests(opened.agreement.method)
        if (broadcast := self._kept_broadcast(run)) is not None:
            opened.take_broadcast(broadcast)
        if opened.masking is not None:
            opened.masking = self._maskings.get(run, opened.masking)
            keep_latest(self._maskings, run, opened.masking)
        return opened

    def _kept_broadcast(self, run: str) -> Sealed | None:
        """The stored initial model of a run; ``None``: there is none yet.

        Raises:
            Refused: the file is damaged. It is deleted, and the server sends the model again.
        """
        for path in self._folder(run).glob(f"{_BROADCAST}*"):
            data = path.read_bytes()
            if path.name != _BROADCAST + hashlib.sha256(data).hexdigest():
                path.unlink()
                raise Refused(f"{UNKNOWN_RUN} {run}: the initial model that client {self._data.number} has kept of it is damaged")
            return unseal(data)
        return None

    def _kept_encoding(self, run: str, digest: Any) -> Encoding | None:
        """The stored encoding of a run's samples; ``None``: they need none.

        Raises:
            Refused: it is missing or damaged; the server sends it again.
        """
        if digest is None:
            return None
        path = self._folder(run) / _ENCODING
        data = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(data).hexdigest() != digest:
            raise Refused(f"{UNKNOWN_RUN} {run}: client {self._data.number} has not the encoding of its samples")
        return value_of(unseal(data), "encoding", None, Encoding)

    def _folder(self, run: str) -> Path:
        return self._path / "runs" / run

    def secret(self, run: str) -> bytes:
        """The secret of a run (32 bytes): the client's secret hashed with the run's name, so that no two runs share noise."""
        path = self._path / "secret"
        if not path.exists():
            write_atomically(path, secrets.token_bytes(32))
            path.chmod(0o600)
        secret = path.read_bytes()
        if len(secret) != 32:
            raise FedprivError(f"the secret of client {self._data.number} is damaged: it has {len(secret)} bytes, not 32")
        return hashlib.blake2b(run.encode(), digest_size=32, key=secret).digest()


def keep_latest(kept: dict[str, Any], run: str, value: object) -> None:
    """Store a run's value as the latest of at most :data:`MAX_RUNS_KEPT`."""
    kept.pop(run, None)
    kept[run] = value
    if len(kept) > MAX_RUNS_KEPT:
        del kept[next(iter(kept))]


def _meaning(setup: Mapping[str, Any]) -> dict[str, Any]:
    """A setup without the version of the code that it was agreed on with, which may change while its hash does not."""
    return {**setup, "code": code_hash(str(setup.get("code")))}


def _first_difference(there: RunConfig, here: RunConfig) -> str:
    """The first dotted key in which two configs differ, with both values."""

    def walk(a: Any, b: Any, path: str) -> str | None:
        if isinstance(a, dict) and isinstance(b, dict):
            inner = (walk(a.get(key), b.get(key), f"{path}.{key}") for key in sorted({*a, *b}))
            return next(filter(None, inner), None)
        return None if a == b else f"{path[1:]} is {a!r} there and {b!r} here"

    return walk(there.model_dump(mode="json"), here.model_dump(mode="json"), "") or "they do not differ"


def _check_noise(config: RunConfig, declared: Declared, encoding: Encoding | None) -> None:
    """Check what the server says that statistics have spent, which the client's own account begins with.

    Raises:
        UsageError: the run's config says something else.
    """
    if config.privacy.level != "sample" or encoding is None:
        return
    summed = encoding.mean or encoding.target or any(isinstance(column, NumberColumn) for column in encoding.columns)
    if declared.statistics_noise != (noise := noise_multiplier(config) if summed else 0.0):
        raise UsageError(f"the server declares statistics with noise {declared.statistics_noise:g}, and the run's is {noise:g}")
