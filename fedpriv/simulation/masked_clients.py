"""Secure aggregation in a simulation: the whole protocol, with all of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from fedpriv.client.masking import Masking
from fedpriv.secure.fixed_point import decoded, encoded
from fedpriv.secure.messages import members_of
from fedpriv.server.clients import Clients, Instruction
from fedpriv.simulation.executors.sequential import Executor, Warn
from fedpriv.wire import Sealed
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer


class MaskedClients(Clients):
    """The clients of an executor, which take part in secure sums.

    Args:
        run: name of the run.
        held_back: called with every upload that a client holds back, in the order of the clients.
        warn: called with warnings of one line.
    """

    def __init__(self, executor: Executor, run: str, held_back: Callable[[Sealed], None], warn: Warn) -> None:
        self.executor, self.run, self.held_back, self.warn = executor, run, held_back, warn
        self._maskings: dict[int, Masking] = {}
        self._error: float | None = None

    def welcome(self, broadcast: Sealed) -> None:
        self.executor.welcome(broadcast)

    def train(self, instruction: Instruction) -> Iterator[Answer]:
        received = {} if instruction.message is None else instruction.message.tensors()
        uploads = dict[int, Sealed]()
        self._maskings = {}
        for answer in self.executor.train(instruction):
            masking = Masking(answer.client, self.executor.federation.agreement, self.run)
            try:
                masked = masking.hold(answer, received)
            except Refused as reason:  # only the client would know; a simulation warns for it
                self.executor.forget([(answer.client, instruction.round)])
                self.warn(f"round {instruction.round}: client {answer.client} does not send its upload: {reason}")
                continue
            if answer.upload is not None:
                uploads[answer.client], self._maskings[answer.client] = answer.upload, masking
            yield masked
        for client in instruction.clients:
            if client in uploads:
                self.held_back(uploads[client])

    def test(self, instruction: Instruction) -> Iterator[Answer]:
        return self.executor.test(instruction)

    def step(self, round: int, questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
        for client, question in questions.items():
            if question.kind == "members" and self._error is None:
                self._error = self._rounding_error(*members_of(question, round, client)[:1])
            yield client, self._maskings[client].answer(question)

    def damaged(self, states: Mapping[int, int]) -> str | None:
        return self.executor.damaged(states)

    def forget(self, states: Iterable[tuple[int, int]]) -> None:
        self.executor.forget(states)

    def keep_only(self, states: Iterable[tuple[int, int]]) -> None:
        self.executor.keep_only(states)

    def measured(self) -> Mapping[str, float]:
        error, self._error = self._error, None
        return {**self.executor.measured(), **({} if error is None else {"sum_error": error})}

    def cpu_seconds(self) -> float:
        return self.executor.cpu_seconds()

    def close(self) -> None:
        self.executor.close()

    def _rounding_error(self, active: Iterable[int]) -> float:
        """L2 norm of the error of the sum in fixed-point numbers, relative to the exact sum."""
        maskings = [self._maskings[client] for client in active]
        rows = [masking.row for masking in maskings if masking.row is not None]
        exact = np.sum(rows, axis=0)
        words = np.sum([encoded(row, masking.rounding()) for row, masking in zip(rows, maskings, strict=True)], axis=0)
        return float(np.linalg.norm(decoded(words) - exact) / np.linalg.norm(exact))
