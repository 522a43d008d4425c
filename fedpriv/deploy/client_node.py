"""The client's end: its data, its private states and its secret stay on its disk; it answers frames with frames."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.client.store import ClientStore
from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.partitions.partition import Partition, make_partition
from fedpriv.data.sources import standardised_by_itself
from fedpriv.deploy.agreed_run import AgreedRun, Untested
from fedpriv.deploy.frames import Envelope, Frame, line_of
from fedpriv.deploy.handshake import HANDSHAKE, Facts, code_version, differing, told_by_server
from fedpriv.deploy.request_validation import config_of, last_of, number_of, rounds_of
from fedpriv.deploy.requires import Requires
from fedpriv.deploy.source import Source
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import load_json, save_json, write_atomically
from fedpriv.simulation.inputs.unseen import SampleForm
from fedpriv.simulation.setup import Loaded, load, partition_dataset
from fedpriv.wire import Sealed, unseal
from fedpriv.wire.message import Refused

if TYPE_CHECKING:
    from fedpriv.client.masking import Masking

_RUN = re.compile(r"\w[\w.+-]{0,200}", re.ASCII)
ANYTHING = Requires()
MOST_AT_ONCE = 8
"""Runs whose last answer and upload a client holds in memory."""
MOST_ASKED = 64
"""Things that one frame asks for; a server needs a handful. Meanwhile a client answers no other frame."""
UNKNOWN_RUN = "unknown run"
"""How a client begins its answer where it has not the terms of the run; the server then sends them again."""


_LOG = "the client's own log says why"
_BROADCAST = "broadcast-"
"""In the folder of a run: how the file of the initial model is called, before its checksum."""


class Untold(FedprivError):
    """An error for the server to read, in place of its cause, which only the client's own log gets."""


class ClientNode:
    """One client on its own machine.

    Args:
        folder: of its secret, and for each run of its terms and private states; made with mode 700.
        device: where it trains; ``None``: as the run's config says.
        check_downloads: whether it refuses downloads with marks of an attack. The run's config, which comes from the server, does
            not decide that.
        requires: what it requires of every run.
    """

    def __init__(
        self,
        number: int,
        source: Source,
        folder: Path,
        device: str | None = None,
        check_downloads: bool = True,
        requires: Requires = ANYTHING,
    ) -> None:
        self.number, self.source, self.folder, self.device = number, source, folder, device
        self.check_downloads, self.requires = check_downloads, requires
        self._open: AgreedRun | None = None
        self._loaded: tuple[str, Loaded] | None = None
        self._answered: dict[str, tuple[bytes, Frame]] = {}
        """Run -> digest of its last frame, and the answer."""
        self._held: dict[str, Masking] = {}
        """Run -> its upload that waits for a secure sum, while local updates of another run are taken."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def answer(self, frame: Frame) -> Frame:
        """What it answers; an error becomes one line, without paths.

        A frame that comes again, as its answer was lost, gets the same answer: a step of a secure sum is taken once. Errors and
        handshakes may be others the next time.
        """
        digest, run = frame.digest, str(frame.head.get("run"))
        if run in self._answered and self._answered[run][0] == digest:
            return self._answered[run][1]
        answer = self._answer(frame)
        if answer.error is None and run != HANDSHAKE:
            _keep_latest(self._answered, run, (digest, answer))
        return answer

    def _answer(self, frame: Frame) -> Frame:
        envelope = Envelope()
        try:
            asked, run = frame.head.get("said"), frame.head.get("run")
            if not isinstance(asked, list) or not isinstance(run, str) or not _RUN.fullmatch(run):
                raise Refused("a frame that asks for nothing in no run")
            if len(asked) > MOST_ASKED:
                raise Refused(f"a frame that asks for {len(asked)} things; at most {MOST_ASKED} are possible")
            for one in asked:
                if not isinstance(one, dict) or (act := self._acts.get(one.get("do"))) is None:
                    raise Refused("a frame that asks for what no client does")
                act(self, run, one, frame, envelope)
        except Untold as error:
            return self._failed(frame, str(error.__cause__), str(error))
        except (FedprivError, Refused) as error:
            return self._failed(frame, str(error))
        except OSError as error:
            return self._failed(frame, f"{type(error).__name__}: {error}", f"{type(error).__name__}: {error.strerror}")
        except Exception as error:  # whose text may quote a sample
            kind = type(error).__name__
            return self._failed(frame, f"{kind}: {error}", f"the client cannot answer ({kind}); {_LOG}")
        return envelope.frame()

    def _failed(self, frame: Frame, text: str, told: str | None = None) -> Frame:
        """An error as the server may read it (``told``, or the text), without paths; the client's own log has all of it."""
        print(f"fedpriv: {line_of(str(frame.head.get('run')))}: {line_of(text)}", file=sys.stderr, flush=True)
        return Envelope().frame(error=_pathless(text if told is None else told, self.folder, self.source))

    # --- what a server may ask -----------------------------------------------------------------------------------------

    def _describe(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Say of its data what the server must know."""
        self.requires.check(config := config_of(asked))
        loaded = self._load(config)
        dataset, data = loaded.dataset, loaded.data
        if dataset.vectors is not None and self.source.share == "own":
            raise UsageError("rows of a table are scaled and coded by statistics of all clients' rows, which no client has alone")
        if dataset.images is not None and self.source.share == "own" and standardised_by_itself(loaded.config.data):
            raise UsageError(
                "its images would be standardised by its own mean and deviation, which differ from the other clients'; "
                "--set data.pixels=unit scales them to [0, 1] at all clients"
            )
        if loaded.config.privacy.level == "sample" and any(len(held) > 1 for held in data.partition.holders()):
            raise UsageError(
                f"privacy.level sample: partition {loaded.config.data.partition.name} assigns samples to several clients, and "
                "the server, which has no data, would count each client's spending alone; use another partition, such as iid"
            )
        facts = Facts(
            self.number,
            code_version(),
            time.time(),
            SampleForm.of(dataset, loaded.prepared.encoder),
            dataset.classes,
            **self._samples(loaded),
            usual_model=dataset.default_model,
            lacks=data.lacking(self.number),
            suggests=dict(dataset.suggests),
            partition=data.partition.hash() if self.source.share == "partition" else None,
        )
        envelope.say(facts.told())

    def _agree(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Take the terms of a run, and how many samples it has declared: they do not change any more."""
        if run == HANDSHAKE:  # whose answers are not kept
            raise Refused(f"a run that is called {HANDSHAKE}")
        folder = self._folder(run)
        terms = {"run": run, "config": asked.get("config"), "declared": asked.get("declared"), "code": asked.get("code")}
        samples = asked.get("samples")
        if (folder / "terms.json").exists():
            known = load_json(folder / "terms.json")
            if known != terms:
                raise FedprivError(f"the terms of run {run} differ from those that this client has agreed to")
            samples = load_json(folder / "samples.json")
        if not isinstance(samples, dict):
            raise Refused("terms that do not say how many samples the client has declared")
        opened = self._opened(run, terms, samples)
        if not (folder / "terms.json").exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_json(folder / "samples.json", samples)
            save_json(folder / "terms.json", terms)
        self._open = opened
        envelope.say({"initial": opened.initial_digest, "config": opened.agreement_fingerprint})

    def _welcome(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Keep the initial model."""
        opened, message = self._of(run), frame.sealed(asked.get("message"))
        if message is None:
            raise Refused("a welcome without a model")
        opened.take_broadcast(message)
        write_atomically(self._folder(run) / f"{_BROADCAST}{message.digest}", message.data)
        envelope.say({})

    def _train(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Take a local update."""
        opened, round = self._of(run), number_of(asked, "round")
        rounds = opened.agreement.config.train.rounds
        if not 1 <= round <= rounds:
            raise Refused(f"a local update in round {round} of a run of {rounds}")
        message, last = frame.sealed(asked.get("message")), last_of(asked, round)
        answer = opened.client.train(opened.model, opened.received(round, message), last)
        if opened.masking is not None:
            try:
                answer = opened.masking.hold(answer, {} if message is None else message.tensors(), opened.told(message))
            except Refused as reason:  # it has numbers of the upload, such as its norm, and the server sets the bound
                opened.store.forget([(self.number, round)])  # such a local update does not count
                raise Untold(f"its upload cannot be summed; {_LOG}") from reason
        envelope.say({}, upload=answer.upload, report=answer.report)

    def _step(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Take a step of a secure sum."""
        opened, message = self._of(run), frame.sealed(asked.get("message"))
        if message is None or opened.masking is None:
            raise Refused("a step of a secure sum that is none")
        envelope.say({}, message=opened.masking.answer(message))

    def _test(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Score the server's model on its own test samples."""
        opened, round = self._of(run), number_of(asked, "round")
        message, rounds = frame.sealed(asked.get("message")), opened.agreement.config.train.rounds
        if round > rounds:
            raise Refused(f"a test in round {round} of a run of {rounds}")
        received, last = opened.received(round, message), last_of(asked, round + 1)
        try:
            if not self.requires.tests:
                raise Untested("its own file allows no tests (requires.tests)")
            answer = opened.client.test(opened.model, received, last)
        except Untested as reason:
            envelope.say({"untested": str(reason)})
        else:
            envelope.say({}, report=answer.report)

    def _forget(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Remove states that the server will not name again."""
        self._of(run).store.forget((self.number, round) for round in rounds_of(asked))
        envelope.say({})

    def _keep_only(self, run: str, asked: Mapping[str, Any], frame: Frame, envelope: Envelope) -> None:
        """Remove all states but some."""
        self._of(run).store.keep_only([(self.number, round) for round in rounds_of(asked)])
        envelope.say({})

    _acts: Mapping[Any, Callable[[ClientNode, str, Mapping[str, Any], Frame, Envelope], None]] = {
        "describe": _describe,
        "agree": _agree,
        "welcome": _welcome,
        "train": _train,
        "step": _step,
        "test": _test,
        "forget": _forget,
        "keep_only": _keep_only,
    }

    # ---------------------------------------------------------------------------------------------------------------------

    def _of(self, run: str) -> AgreedRun:
        """The run, from the disk where this process does not know it yet."""
        if self._open is not None and self._open.name == run:
            return self._open
        path = self._folder(run) / "terms.json"
        terms = load_json(path) if path.exists() else {}
        if terms.get("run") != run:  # the folder may be that of another, where a file system ignores case
            raise Refused(f"{UNKNOWN_RUN} {run}")
        self._open = self._opened(run, terms, load_json(self._folder(run) / "samples.json"))
        return self._open

    def _opened(self, run: str, terms: Mapping[str, Any], samples: Mapping[str, Any]) -> AgreedRun:
        if self._open is None or self._open.name != run:
            if terms.get("code") != code_version():
                raise UsageError(
                    f"this client runs fedpriv {code_version()}, the server {terms.get('code')}; install the same on both"
                )
            config = config_of(terms)
            self.requires.check(config)
            config = config.with_check(self.check_downloads)
            declared = told_by_server(terms.get("declared"))
            if len(declared.trainable) > config.data.clients:
                raise UsageError(f"the server declares {len(declared.trainable)} clients of a run of {config.data.clients}")
            loaded = self._load(config)
            here = _as_in(config, loaded.config)
            if here.fingerprint() != config.fingerprint():
                raise UsageError(f"the config differs: {differing(config, here)}")
            if samples != (now := self._samples(loaded)):  # by these the server accounts for privacy, and weights what it gets
                raise UsageError(
                    f"client {self.number} declared {samples.get('train')} training and {samples.get('test')} test samples for "
                    f"run {run} and has {now['train']} and {now['test']} now; the run needs the data that it began with"
                )
            store = ClientStore(self._folder(run) / "states", hint="make room; until then the run goes on without this client")
            digest = hashlib.sha256(json.dumps(terms, sort_keys=True).encode())
            opened = AgreedRun(run, self.number, config, declared, loaded, store, self._secret(run), digest.hexdigest())
            self.requires.check_tests(opened.agreement.method)
            if (kept := self._kept_broadcast(run)) is not None:
                opened.take_broadcast(kept)
            if opened.masking is not None:
                opened.masking = self._held.get(run, opened.masking)
                _keep_latest(self._held, run, opened.masking)
            return opened
        return self._open

    def _kept_broadcast(self, run: str) -> Sealed | None:
        """The initial model of a run as it came; ``None``: it has not come yet.

        Raises:
            Refused: it is damaged. It is removed, and the server sends it again.
        """
        for path in self._folder(run).glob(f"{_BROADCAST}*"):
            data = path.read_bytes()
            if path.name != _BROADCAST + hashlib.sha256(data).hexdigest():
                path.unlink()
                raise Refused(f"{UNKNOWN_RUN} {run}: the initial model that client {self.number} has kept of it is damaged")
            return unseal(data)
        return None

    def _samples(self, loaded: Loaded) -> dict[str, int]:
        """How many it has to train on and to be tested on."""
        data = loaded.data
        return {"train": data.size(self.number), "test": len(data.indices(loaded.config.eval.split, self.number))}

    def _load(self, config: RunConfig) -> Loaded:
        """Its data, prepared for a config; those of the last one are kept."""
        own = {"plugins": (), "run_dir": None, "device": self.device or config.device}
        wanted = config.model_copy(update={"data": self.source.of_run(config.data), **own})
        if wanted.data.clients <= self.number:
            raise UsageError(f"the run has {wanted.data.clients} clients (data.clients), and this is client {self.number}")
        if self._loaded is None or self._loaded[0] != wanted.to_yaml():
            partitioning = partition_dataset if self.source.share == "partition" else self._all_mine
            try:
                self._loaded = wanted.to_yaml(), load(wanted, partitioning)
            except FedprivError as error:
                if self.source.private:
                    raise Untold(f"its data cannot be read as the run's config says; {_LOG}, which may quote them") from error
                raise
        return self._loaded[1]

    def _all_mine(self, dataset: Dataset, config: RunConfig) -> Partition:
        """Every sample is this client's, and other clients' samples are elsewhere."""
        labels = dataset.train_labels.numpy(), dataset.test_labels.numpy()
        options = config.data.partition.model_copy(update={"name": "iid", "test": "disjoint"})
        alone = config.data.model_copy(update={"clients": 1, "partition": options})
        mine = make_partition(*labels, len(dataset.classes), alone, config.data.partition.seed or 0)

        nothing = np.zeros(0, np.int64)

        def at_my_place(held: Sequence[Any]) -> list[Any]:
            return [held[0] if client == self.number else nothing for client in range(config.data.clients)]

        return Partition(at_my_place(mine.train), at_my_place(mine.validation), at_my_place(mine.test), None, mine.test_split)

    def _folder(self, run: str) -> Path:
        return self.folder / "runs" / run

    def _secret(self, run: str) -> bytes:
        """Of a run: that of the client, mixed with the run's name, so that no two runs draw the same noise."""
        path = self.folder / "secret"
        if not path.exists():
            write_atomically(path, secrets.token_bytes(32))
            path.chmod(0o600)
        secret = path.read_bytes()
        if len(secret) != 32:
            raise FedprivError(f"the secret of client {self.number} is damaged: it has {len(secret)} bytes, not 32")
        return hashlib.blake2b(run.encode(), digest_size=32, key=secret).digest()


def _keep_latest(held: dict[str, Any], run: str, what: object) -> None:
    """Keep it as the latest of at most :data:`MOST_AT_ONCE` runs."""
    held.pop(run, None)
    held[run] = what
    if len(held) > MOST_AT_ONCE:
        del held[next(iter(held))]


def _as_in(run: RunConfig, loaded: RunConfig) -> RunConfig:
    """The config of loaded data, but for what each client decides for itself, which is as in the run's."""
    partition = loaded.data.partition.model_copy(update={"column": run.data.partition.column})
    same = {name: getattr(run.data, name) for name in ("name", "dir", "label")}
    return loaded.model_copy(update={"data": loaded.data.model_copy(update={**same, "partition": partition})})


def _pathless(text: str, folder: Path, source: Source) -> str:
    """One line without paths of this machine, and without addresses, which may hold a password.

    A path in the client's folder is "a file". What follows any other is not told, as it may be part of a name with spaces.
    """
    text = re.sub(rf"{re.escape(str(folder))}[/\\][^\s:;,'\"]*", "a file", text)
    relative = [one for one in (os.environ.get("FEDPRIV_DATA"), source.dir, source.name) if one]
    places = [rf"(?<!\w){re.escape(str(Path(one)))}(?=[/\\])" for one in relative]
    found = re.search("|".join([r"\w+://", *places, r"(?<![\w.])(~\w*|[A-Za-z]:)?[/\\](?=\S)"]), text)
    if found is None:
        return line_of(text)
    what = "an address" if "://" in found[0] else "a file"
    before = text[: found.start()].rstrip("'\"")
    return line_of(f"{before}{what}, of which the client's own log says more")
