"""Callbacks: code of the user's own that runs at five moments of a training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedpriv.api.run import Run
from fedpriv.errors import UsageError
from fedpriv.evaluation.probe_during_run import PROBE

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.server.rounds import Server
    from fedpriv.storage.records import Record


class LiveRun:
    """A run as it is trained: what a callback sees of it, and how it ends it.

    Attributes:
        run: the run so far; its ``config``, ``records`` and ``history`` can be read at any time.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.run = Run(server.folder)

    @property
    def round(self) -> int:
        """The number of rounds that are done."""
        return self._server.progress.round

    @property
    def rounds(self) -> int:
        """The number of rounds of the config (``train.rounds``)."""
        return self._server.config.train.rounds

    def weights(self) -> dict[str, Tensor]:
        """A copy of the server's present weights, by name; empty: each client has its own."""
        row, method = self._server.state.row, self._server.agreement.method
        return self._server.agreement.space.unpack(row.detach().cpu().clone(), method.server_names)

    def stop(self) -> None:
        """End the run after the present round, or after the next one where this one is not evaluated (``eval.every``).

        The run is then finished, with all its results.
        """
        self._server.end_requested = True


class Callback:
    """The base class of callbacks: each method does nothing, until a class of one's own defines it.

    An exception ends the run as failed. All rounds before are saved, and :func:`fedpriv.resume` goes on with it.
    """

    def on_start(self, training: LiveRun) -> None:
        """Called before the first round that is run now."""

    def on_round_start(self, training: LiveRun, round: int, participants: Sequence[int]) -> None:
        """Called before clients train.

        Args:
            round: from 1 on.
            participants: numbers of the clients that are asked to train.
        """

    def on_evaluation(
        self, training: LiveRun, round: int, metrics: Mapping[str, float], per_client: Mapping[str, Sequence[float | None]]
    ) -> None:
        """Called after a round whose model was tested, when the round is saved.

        Args:
            metrics: the numbers of the round's record by name, such as ``accuracy``, a share.
            per_client: score -> its value of each client; ``None``: the client was not tested.
        """

    def on_round_end(self, training: LiveRun, record: Record) -> None:
        """Called after each round, when it is saved.

        Args:
            record: as in ``run.records``.
        """

    def on_end(self, training: LiveRun) -> None:
        """Called when the run is finished or interrupted (``training.run.status``), and not after an error."""


class Callbacks:
    """The callbacks of a run, in their order.

    Raises:
        UsageError: one of them is no callback.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for callback in callbacks:
            if isinstance(callback, type):
                raise UsageError(f"callbacks: {callback.__name__} is a class; give an object, such as {callback.__name__}()")
            if not isinstance(callback, Callback):
                raise UsageError(f"callbacks: a {type(callback).__name__} is no fedpriv.Callback; inherit from that class")
        self._callbacks = callbacks
        self._training: LiveRun | None = None

    def on_server(self, server: Server) -> None:
        """Follow the rounds of a server."""
        if self._callbacks:
            self._training = LiveRun(server)
            server.on_participants = self._on_participants

    def on_start(self, *of: object) -> None:
        """The run begins, or goes on."""
        self._each(lambda callback, training: callback.on_start(training))

    def on_round(self, record: Record) -> None:
        """A round is saved."""
        round, metrics, per_client = record["round"], record["metrics"], record["per_client"]
        if per_client or any(name.startswith(PROBE) for name in metrics):
            self._each(lambda callback, training: callback.on_evaluation(training, round, metrics, per_client))
        self._each(lambda callback, training: callback.on_round_end(training, record))

    def on_end(self) -> None:
        """The run has ended without an error."""
        self._each(lambda callback, training: callback.on_end(training))

    def _on_participants(self, round: int, participants: Sequence[int]) -> None:
        self._each(lambda callback, training: callback.on_round_start(training, round, participants))

    def _each(self, call: Callable[[Callback, LiveRun], None]) -> None:
        for callback in self._callbacks:
            assert self._training is not None
            try:
                call(callback, self._training)
            except Exception as error:
                error.add_note(
                    f"raised by the callback {type(callback).__name__} after {self._training.round} rounds, which are saved: "
                    f"fedpriv.resume({str(self._training.run.path)!r}) goes on"
                )
                raise
