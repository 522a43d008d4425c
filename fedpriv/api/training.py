"""Training: a whole run, a round at a time, or the rest of an interrupted one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from fedpriv.api.keys import Keys, config_of
from fedpriv.api.run import Run, load
from fedpriv.seeding import default_torch
from fedpriv.simulation import run as runs
from fedpriv.storage.records import Record
from fedpriv.untrusted.notes import note

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.api.callbacks import Callback, Callbacks
    from fedpriv.config import RunConfig
    from fedpriv.scores.custom import CustomScores
    from fedpriv.simulation.setup import Federation
    from fedpriv.storage.run_folder import RunFolder


def train(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    runs_dir: str | os.PathLike[str] = "runs",
    on_round: Callable[[Record], object] | None = None,
    callbacks: Sequence[Callback] = (),
    profile: bool = False,
    metrics: Mapping[str, Callable[[Tensor, Tensor], float]] | None = None,
    **keys: Unpack[Keys],
) -> Run:
    """Train a method on a federation of clients, as ``fedpriv train`` does: the same config gives the same numbers and folder.

    Notes are warnings of the logger ``fedpriv``. Ctrl-C, or a notebook's stop, ends the run after its round; :func:`resume` goes
    on with it. Tracking is the config's: MLflow beside the run folders, unless ``tracking_uri="none"``.

    Args:
        config: what the keys are laid over: a config, nested mappings, or a YAML file such as a run's ``config.yaml``.
        runs_dir: the folder that gets the run folder, unless ``run_dir`` names it.
        on_round: called with the record of each round.
        callbacks: code of your own at five moments of the run, in this order.
        profile: write where the time went into the folder ``profile`` of the run.
        metrics: scores of your own, by name: functions of the predicted probabilities ``(n, C)`` and the labels ``(n,)``, torch
            tensors on the CPU, such as ``lambda p, y: float((p.argmax(1) == y).float().mean())``. Like accuracy, they are
            measured of each client, of all predictions together, and of the server's model. Clients of a deployment take none.
        keys: config keys. Short names are the options of ``fedpriv train`` with underscores (``method``, ``dataset``, ``rounds``,
            ``lr``, ``defense``); others are given by section (``train={"momentum": 0.9}``) or with dots
            (``**{"train.momentum": 0.9}``). ``dataset`` may be the data themselves: arrays ``(x, y)``, a torch or Hugging
            Face data set, a mapping of ``train`` and ``test``, or a list or mapping of clients. They are kept in the user's
            cache.

    Raises:
        UsageError: a key or a value that cannot be right, before anything is written.
        FedprivError: the run failed; its last checkpoint is whole.
    """
    from fedpriv.api.callbacks import Callbacks

    hooks = Callbacks(callbacks)
    config = config_of(config, keys, here=True)
    with default_torch():
        outcome = runs.start(
            config,
            Path(runs_dir),
            hooks.on_start,
            _both(on_round, hooks),
            note,
            profile,
            custom=metrics or {},
            on_server=hooks.on_server,
        )
        hooks.on_end()
    return Run(outcome.folder)


def resume(
    run: str | os.PathLike[str],
    *,
    runs_dir: str | os.PathLike[str] = "runs",
    on_round: Callable[[Record], object] | None = None,
    callbacks: Sequence[Callback] = (),
    profile: bool = False,
    tracking_uri: str | None = None,
    metrics: Mapping[str, Callable[[Tensor, Tensor], float]] | None = None,
) -> Run:
    """Go on with an interrupted run; the result equals that of an uninterrupted one, bit for bit.

    Args:
        run: a run object, a run folder, a run id, or a unique beginning of a folder's name in ``runs_dir``.
        on_round, callbacks, profile, metrics: as for :func:`train`.
        tracking_uri: MLflow store from now on; required if the run folder names a store other than yours.

    Raises:
        UsageError: there is no such run, it is finished, or its config or its data have changed.
        ForeignStore: the folder names a store that is neither in ``MLFLOW_TRACKING_URI`` nor beside it.
    """
    from fedpriv.api.callbacks import Callbacks
    from fedpriv.tracking import settle_store

    hooks = Callbacks(callbacks)
    resumed = load(run, runs_dir)
    settle_store(resumed.folder, tracking_uri)
    with default_torch():
        events = hooks.on_start, _both(on_round, hooks), note
        runs.resume(resumed.path, *events, profile, custom=metrics or {}, on_server=hooks.on_server)
        hooks.on_end()
    return resumed


def rounds(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    runs_dir: str | os.PathLike[str] = "runs",
    metrics: Mapping[str, Callable[[Tensor, Tensor], float]] | None = None,
    **keys: Unpack[Keys],
) -> Rounds:
    """Train round by round: an iterator over the records of the rounds, which are run when they are wanted.

    ``close``, or leaving the ``with`` block, interrupts the run, as Ctrl-C does: what was run is kept, and :func:`resume` goes on
    with it. Leaving only the loop does not: another loop over the same iterator runs the next rounds.

    Arguments and errors are those of :func:`train`.
    """
    return Rounds(config_of(config, keys, here=True), Path(runs_dir), metrics or {})


class Rounds(Iterator[Record]):
    """The rounds of a run, as they are wanted. ``close``, or the end of a ``with`` block, interrupts the run."""

    def __init__(self, config: RunConfig, runs_dir: Path, metrics: CustomScores) -> None:
        self._folder: RunFolder | None = None
        self._played = runs.start_by_round(config, runs_dir, self._begun, note, custom=metrics)

    @property
    def run(self) -> Run:
        """The run so far.

        Raises:
            UsageError: no round was run yet.
        """
        from fedpriv.errors import UsageError

        if self._folder is None:
            raise UsageError("there is no run before its first round")
        return Run(self._folder)

    def close(self) -> None:
        """Interrupt the run, if it is not finished."""
        self._played.close()

    def __next__(self) -> Record:
        with default_torch():
            return next(self._played)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begun(self, federation: Federation, folder: RunFolder) -> None:
        self._folder = folder


def _both(on_round: Callable[[Record], object] | None, hooks: Callbacks) -> Callable[[Record], None]:
    def call(record: Record) -> None:
        if on_round is not None:
            on_round(record)
        hooks.on_round(record)

    return call
