"""A client on its own machine. Its data, private states and secret stay on its disk; it answers frames with frames."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.agreement import Declared
from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig
from fedpriv.data.encoding import Encoding, NumberColumn
from fedpriv.data.statistics.messages import value_of
from fedpriv.deploy.client.agreed_run import AgreedRun, DeclinedTest
from fedpriv.deploy.client.introduction import Introduction
from fedpriv.deploy.client.own_data import SEE_LOG, OwnData, PrivateError, with_run_choices
from fedpriv.deploy.client.request_validation import config_of, last_of, number_of, rounds_of
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.frames import Envelope, Frame, one_line
from fedpriv.deploy.handshake import HANDSHAKE, check_code, code_hash, code_version, declared_from_json, first_difference
from fedpriv.deploy.operation.counters import Counters
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
MAX_REQUESTS = 64
"""Requests in a frame; a server needs a handful. The client answers no other frame meanwhile."""
NO_REQUIREMENTS = Requires()
_RUN_NAME = re.compile(r"\w[\w.+-]{0,200}", re.ASCII)
_ENCODING = "encoding.safetensors"
"""File of the encoding in a run's folder."""
_BROADCAST = "broadcast-"
"""Prefix of the file of the initial model in a run's folder; the rest of the name is its checksum."""


class ClientNode:
    """One client on its own machine.

    Args:
        folder: for the client's secret, and the setup and private states of each run; created with mode 700.
        device: the torch device; ``None``: that of the run's config.
        check_downloads: whether to refuse downloads with marks of an attack. The server's config cannot change it.
        requires: what every run must have for this client to take part.
        counters: of its answers by request, their seconds, its refusals, and its round and epsilon by run.
    """

    def __init__(
        self,
        number: int,
        source: Source,
        folder: Path,
        device: str | None = None,
        check_downloads: bool = True,
        requires: Requires = NO_REQUIREMENTS,
        counters: Counters | None = None,
    ) -> None:
        self.number, self.source, self.folder = number, source, folder
        self.check_downloads, self.requires, self.counters = check_downloads, requires, counters or Counters(None)
        self.data = OwnData(number, source, device, requires)
        self._introduction = Introduction(self.data, self._secret, folder / "statistics.json")
        self._current: AgreedRun | None = None
        self._answers: dict[str, tuple[bytes, Frame]] = {}
        """Run -> digest of the last frame, and its answer."""
        self._maskings: dict[str, Masking] = {}
        """Run -> the upload that waits for secure aggregation, while other runs train."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def answer(self, frame: Frame) -> Frame:
        """Answer a frame; an error becomes one line without paths.

        A frame that is sent again because its answer was lost gets the same answer, so that no step of secure aggregation is done
        twice. Errors and answers of the handshake are not kept.
        """
        digest, run = frame.digest, str(frame.head.get("run"))
        if run in self._answers and self._answers[run][0] == digest:
            return self._answers[run][1]
        answer = self._answer(frame)
        if run == HANDSHAKE:
            return Frame({**answer.head, "code": code_version()}, answer.parts)
        if answer.error is None:
            _keep_latest(self._answers, run, (digest, answer))
        return answer

    def _answer(self, frame: Frame) -> Frame:
        envelope = Envelope()
        try:
            requests, run = frame.head.get("entries"), frame.head.get("run")
            if not isinstance(requests, list) or not isinstance(run, str) or not _RUN_NAME.fullmatch(run):
                raise Refused("a frame without requests or without the name of a run")
            if len(requests) > MAX_REQUESTS:
                raise Refused(f"a frame of {len(requests)} requests; at most {MAX_REQUESTS} are possible")
            for request in requests:
                if not isinstance(request, dict) or (handler := self._handlers.get(request.get("do"))) is None:
                    raise Refused("a frame with an unknown request")
                began = time.monotonic()
                handler(self, run, request, frame, envelope)
                self.counters.add("answers", 1, request["do"])
                self.counters.add("seconds", time.monotonic() - began, request["do"])
        except PrivateError as error:
            return self._failed(frame, str(error.__cause__), str(error))
        except (FedprivError, Refused) as error:
            return self._failed(frame, str(error))
        except OSError as error:
            return self._failed(frame, f"{type(error).__name__}: {error}", f"{type(error).__name__}: {error.strerror}")
        except Exception as error:  # whose text may quote a sample
            kind = type(error).__name__
            return self._failed(frame, f"{kind}: {error}", f"the client cannot answer ({kind}); {SEE_LOG}")
        return envelope.frame()

    def _failed(self, frame: Frame, text: str, public: str | None = None) -> Frame:
        """Log an error, and send the server its public text (by default the same) without paths."""
        self.counters.add("refusals")
        print(f"fedpriv: {one_line(str(frame.head.get('run')))}: {one_line(text)}", file=sys.stderr, flush=True)
        return Envelope().frame(error=_without_paths(text if public is None else public, self.folder, self.source))

    # --- handlers of requests ------------------------------------------------------------------------------------------

    def _describe(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Declare what the server must know about the data."""
        check_code(request.get("code"), "the server runs")
        self.requires.check(config := config_of(request))
        envelope.add(asdict(self._introduction.describe(config, self.requires.covered)))

    def _measure(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Send statistics of the training rows."""
        self.requires.check(config := config_of(request))
        if (question := frame.sealed(request.get("message"))) is None:
            raise Refused("a question for statistics without a message")
        envelope.add({}, message=self._introduction.measure(config, question, request.get("classes") or ()))

    def _agree(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Accept the setup of a run, and the number of samples that it is based on; neither changes any more."""
        if run == HANDSHAKE:  # whose answers are not kept
            raise Refused(f"a run that is called {HANDSHAKE}")
        folder = self._folder(run)
        setup = {"run": run, **{key: request.get(key) for key in ("config", "declared", "code", "encoding")}}
        if (message := frame.sealed(request.get("message"))) is not None and message.digest == setup["encoding"]:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(folder / _ENCODING, message.data)
        samples = request.get("samples")
        if (folder / "setup.json").exists():
            if _meaning(load_json(folder / "setup.json")) != _meaning(setup):
                raise FedprivError(f"the setup of run {run} differs from the one that this client has agreed to")
            samples = load_json(folder / "samples.json")
        if not isinstance(samples, dict):
            raise Refused("a setup without the number of samples that the client has declared")
        opened = self._open(run, setup, samples)
        if not (folder / "setup.json").exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_json(folder / "samples.json", samples)
            save_json(folder / "setup.json", setup)
        self._current = opened
        envelope.add({"initial": opened.initial_digest, "config": opened.agreement_fingerprint})

    def _welcome(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Store the initial model."""
        opened, message = self._run(run), frame.sealed(request.get("message"))
        if message is None:
            raise Refused("a welcome without a model")
        opened.take_broadcast(message)
        write_atomically(self._folder(run) / f"{_BROADCAST}{message.digest}", message.data)
        envelope.add({})

    def _train(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Train for a round; answer with the upload and a report, or with public keys if uploads are summed securely."""
        opened, round = self._run(run), number_of(request, "round")
        rounds = opened.agreement.config.train.rounds
        if not 1 <= round <= rounds:
            raise Refused(f"a local update in round {round} of a run of {rounds}")
        message, last = frame.sealed(request.get("message")), last_of(request, round)
        answer = opened.client.train(opened.model, opened.received(round, message), last)
        if opened.masking is not None:
            try:
                answer = opened.masking.hold(answer, {} if message is None else message.tensors(), opened.context(message))
            except Refused as reason:  # which may quote the upload's norm, and the server chooses the bound
                opened.store.forget([(self.number, round)])  # the local update does not count
                raise PrivateError(f"its upload cannot be summed; {SEE_LOG}") from reason
        envelope.add({}, upload=answer.upload, report=answer.report)
        self.counters.set("round", round, run)
        if (epsilon := opened.epsilon()) is not None:
            self.counters.set("epsilon", epsilon, run)

    def _step(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Do a step of secure aggregation."""
        opened, message = self._run(run), frame.sealed(request.get("message"))
        if message is None or opened.masking is None:
            raise Refused("a step of secure aggregation without a message, or in a run without it")
        envelope.add({}, message=opened.masking.answer(message))

    def _test(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Evaluate the server's model on this client's test samples."""
        opened, round = self._run(run), number_of(request, "round")
        message, rounds = frame.sealed(request.get("message")), opened.agreement.config.train.rounds
        if round > rounds:
            raise Refused(f"a test in round {round} of a run of {rounds}")
        received, last = opened.received(round, message), last_of(request, round + 1)
        try:
            if not self.requires.tests:
                raise DeclinedTest("its own file allows no tests (requires.tests)")
            answer = opened.client.test(opened.model, received, last)
        except DeclinedTest as reason:
            envelope.add({"untested": str(reason)})
        else:
            envelope.add({}, report=answer.report)

    def _forget(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Delete the states of rounds that the server no longer needs."""
        self._run(run).store.forget((self.number, round) for round in rounds_of(request))
        envelope.add({})

    def _keep_only(self, run: str, request: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Delete all states except those of some rounds."""
        self._run(run).store.keep_only([(self.number, round) for round in rounds_of(request)])
        envelope.add({})

    _handlers: Mapping[Any, Callable[[ClientNode, str, Mapping[str, Any], Frame, Envelope], None]] = {
        "describe": _describe,
        "measure": _measure,
        "agree": _agree,
        "welcome": _welcome,
        "train": _train,
        "step": _step,
        "test": _test,
        "forget": _forget,
        "keep_only": _keep_only,
    }

    # ---------------------------------------------------------------------------------------------------------------------

    def _run(self, run: str) -> AgreedRun:
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
        loaded = self.data.load(config, encoding, declared.class_names)
        here = with_run_choices(config, loaded.config)
        if here.fingerprint() != config.fingerprint():
            raise UsageError(f"the config differs: {first_difference(config, here)}")
        now = self.data.samples(self.data.read(config))
        if samples != now:  # the server's privacy accounting and weights are based on them
            raise UsageError(
                f"client {self.number} declared {samples.get('train')} training and {samples.get('test')} test samples for "
                f"run {run} and has {now['train']} and {now['test']} now; the run needs the data that it began with"
            )
        store = ClientStore(self._folder(run) / "states", hint="make room; until then the run goes on without this client")
        checksum = hashlib.sha256(json.dumps(_meaning(setup), sort_keys=True).encode()).hexdigest()
        opened = AgreedRun(run, self.number, config, declared, loaded, store, self._secret(run), checksum)
        self.requires.check_tests(opened.agreement.method)
        if (broadcast := self._kept_broadcast(run)) is not None:
            opened.take_broadcast(broadcast)
        if opened.masking is not None:
            opened.masking = self._maskings.get(run, opened.masking)
            _keep_latest(self._maskings, run, opened.masking)
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
                raise Refused(f"{UNKNOWN_RUN} {run}: the initial model that client {self.number} has kept of it is damaged")
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
            raise Refused(f"{UNKNOWN_RUN} {run}: client {self.number} has not the encoding of its samples")
        return value_of(unseal(data), "encoding", None, Encoding)

    def _folder(self, run: str) -> Path:
        return self.folder / "runs" / run

    def _secret(self, run: str) -> bytes:
        """The secret of a run (32 bytes): the client's secret hashed with the run's name, so that no two runs share noise."""
        path = self.folder / "secret"
        if not path.exists():
            write_atomically(path, secrets.token_bytes(32))
            path.chmod(0o600)
        secret = path.read_bytes()
        if len(secret) != 32:
            raise FedprivError(f"the secret of client {self.number} is damaged: it has {len(secret)} bytes, not 32")
        return hashlib.blake2b(run.encode(), digest_size=32, key=secret).digest()


def _keep_latest(kept: dict[str, Any], run: str, value: object) -> None:
    """Store a run's value as the latest of at most :data:`MAX_RUNS_KEPT`."""
    kept.pop(run, None)
    kept[run] = value
    if len(kept) > MAX_RUNS_KEPT:
        del kept[next(iter(kept))]


def _meaning(setup: Mapping[str, Any]) -> dict[str, Any]:
    """A setup without the version of the code that it was agreed on with, which may change while its hash does not."""
    return {**setup, "code": code_hash(str(setup.get("code")))}


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


def _without_paths(text: str, folder: Path, source: Source) -> str:
    """One line without paths of this machine, and without addresses, which may hold a password.

    A path in the client's folder becomes "a file". Any other path ends the text, as its end cannot be told: names have spaces.
    """
    text = re.sub(rf"{re.escape(str(folder))}[/\\][^\s:;,'\"]*", "a file", text)
    relative = [place for place in (os.environ.get("FEDPRIV_DATA"), source.dir, source.name) if place]
    places = [rf"(?<!\w){re.escape(str(Path(place)))}(?=[/\\])" for place in relative]
    match = re.search("|".join([r"\w+://", *places, r"(?<![\w.])(~\w*|[A-Za-z]:)?[/\\](?=\S)"]), text)
    if match is None:
        return one_line(text)
    what = "an address" if "://" in match[0] else "a file"
    before = text[: match.start()].rstrip("'\"")
    return one_line(f"{before}{what} (more in the client's own log)")
