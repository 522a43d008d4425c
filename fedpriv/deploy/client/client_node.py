"""A client on its own machine. Its data, private states and secret stay on its disk; it answers frames with frames."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpriv.deploy.client.agreed_run import AgreedRun, DeclinedTest
from fedpriv.deploy.client.introduction import Introduction
from fedpriv.deploy.client.own_data import SEE_LOG, OwnData, PrivateError
from fedpriv.deploy.client.request_validation import config_of, last_of, number_of, rounds_of
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.setups import Setups, keep_latest
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.facts import HANDSHAKE
from fedpriv.deploy.frames import Envelope, Frame, one_line
from fedpriv.deploy.operation.counters import Counters
from fedpriv.deploy.versions import check_code, code_version
from fedpriv.errors import FedprivError
from fedpriv.wire import Sealed
from fedpriv.wire.message import Refused

MAX_REQUESTS = 64
"""Requests in a frame; a server needs a handful. The client answers no other frame meanwhile."""
NO_REQUIREMENTS = Requires()
_RUN_NAME = re.compile(r"\w[\w.+-]{0,200}", re.ASCII)


@dataclass(frozen=True)
class _Asked:
    """A request of a server.

    Attributes:
        values: of the request.
        frame: that it came in.
        envelope: for the answer.
    """

    run: str
    values: Mapping[str, Any]
    frame: Frame
    envelope: Envelope

    @property
    def message(self) -> Sealed | None:
        """The sealed message of the request; ``None``: it has none."""
        return self.frame.sealed(self.values.get("message"))

    def answer(self, facts: Mapping[str, Any], **messages: Sealed | None) -> None:
        """Add the answer to the envelope."""
        self.envelope.add(facts, **messages)


class ClientNode:
    """One client on its own machine.

    Args:
        folder: for the client's secret, and the setup and private states of each run; created with mode 700.
        device: the torch device; ``None``: that of the run's config.
        check_downloads: whether to refuse downloads with marks of an attack. The server's config cannot change it.
        requires: what every run must have for this client to take part.
        counters: of its answers by request, their seconds, its refusals, and its round and epsilon by run.

    Attributes:
        setups: of the runs that it has agreed to.
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
        self.counters = counters or Counters(None)
        self.data = OwnData(number, source, device, requires)
        self.setups = Setups(self.data, folder, check_downloads, requires)
        self._introduction = Introduction(self.data, self.setups.secret, folder / "statistics.json")
        self._answers: dict[str, tuple[bytes, Frame]] = {}
        """Run -> digest of the last frame, and its answer."""
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
            keep_latest(self._answers, run, (digest, answer))
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
                handler(self, _Asked(run, request, frame, envelope))
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

    def _describe(self, asked: _Asked) -> None:
        """Declare what the server must know about the data."""
        check_code(asked.values.get("code"), "the server runs")
        self.setups.requires.check(config := config_of(asked.values))
        asked.answer(asdict(self._introduction.describe(config, self.setups.requires.covered)))

    def _measure(self, asked: _Asked) -> None:
        """Send statistics of the training rows."""
        self.setups.requires.check(config := config_of(asked.values))
        if (question := asked.message) is None:
            raise Refused("a question for statistics without a message")
        asked.answer({}, message=self._introduction.measure(config, question, asked.values.get("classes") or ()))

    def _agree(self, asked: _Asked) -> None:
        """Accept the setup of a run."""
        if asked.run == HANDSHAKE:  # whose answers are not kept
            raise Refused(f"a run that is called {HANDSHAKE}")
        setup = {"run": asked.run, **{key: asked.values.get(key) for key in ("config", "declared", "code", "encoding")}}
        opened = self.setups.accept(asked.run, setup, asked.values.get("samples"), asked.message)
        asked.answer({"initial": opened.initial_digest, "config": opened.agreement_fingerprint})

    def _welcome(self, asked: _Asked) -> None:
        """Store the initial model."""
        if (message := asked.message) is None:
            raise Refused("a welcome without a model")
        self.setups.keep_broadcast(asked.run, message)
        asked.answer({})

    def _train(self, asked: _Asked) -> None:
        """Train for a round; answer with the upload and a report, or with public keys if uploads are summed securely."""
        opened, round = self._run(asked.run), number_of(asked.values, "round")
        rounds = opened.agreement.config.train.rounds
        if not 1 <= round <= rounds:
            raise Refused(f"a local update in round {round} of a run of {rounds}")
        message, last = asked.message, last_of(asked.values, round)
        answer = opened.client.train(opened.model, opened.received(round, message), last)
        if opened.masking is not None:
            try:
                answer = opened.masking.hold(answer, {} if message is None else message.tensors(), opened.context(message))
            except Refused as reason:  # which may quote the upload's norm, and the server chooses the bound
                opened.store.forget([(self.number, round)])  # the local update does not count
                raise PrivateError(f"its upload cannot be summed; {SEE_LOG}") from reason
        asked.answer({}, upload=answer.upload, report=answer.report)
        self.counters.set("round", round, asked.run)
        if (epsilon := opened.epsilon()) is not None:
            self.counters.set("epsilon", epsilon, asked.run)

    def _step(self, asked: _Asked) -> None:
        """Do a step of secure aggregation."""
        opened, message = self._run(asked.run), asked.message
        if message is None or opened.masking is None:
            raise Refused("a step of secure aggregation without a message, or in a run without it")
        asked.answer({}, message=opened.masking.answer(message))

    def _test(self, asked: _Asked) -> None:
        """Evaluate the server's model on this client's test samples."""
        opened, round = self._run(asked.run), number_of(asked.values, "round")
        message, rounds = asked.message, opened.agreement.config.train.rounds
        if round > rounds:
            raise Refused(f"a test in round {round} of a run of {rounds}")
        received, last = opened.received(round, message), last_of(asked.values, round + 1)
        try:
            if not self.setups.requires.tests:
                raise DeclinedTest("its own file allows no tests (requires.tests)")
            answer = opened.client.test(opened.model, received, last)
        except DeclinedTest as reason:
            asked.answer({"untested": str(reason)})
        else:
            asked.answer({}, report=answer.report)

    def _forget(self, asked: _Asked) -> None:
        """Delete the states of rounds that the server no longer needs."""
        self._run(asked.run).store.forget((self.number, round) for round in rounds_of(asked.values))
        asked.answer({})

    def _keep_only(self, asked: _Asked) -> None:
        """Delete all states except those of some rounds."""
        self._run(asked.run).store.keep_only([(self.number, round) for round in rounds_of(asked.values)])
        asked.answer({})

    _handlers: Mapping[Any, Callable[[ClientNode, _Asked], None]] = {
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
        return self.setups.run(run)


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
