"""The filters that record an NVFlare job, and the function that adds them."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import ProcessType, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.recipe.spec import Recipe
from torch import nn

from fedpriv.errors import UsageError
from fedpriv.recorder.layout import PROGRAM, Kind
from fedpriv.recorder.reader import is_record
from fedpriv.recorder.start import recording, recording_of_run
from fedpriv.recorder.writer import OtherRecord, Recording

_KINDS: dict[str, Kind] = {DataKind.WEIGHTS: "weights", DataKind.WEIGHT_DIFF: "change"}
_TRAIN = "train"
_ROUND = "fedpriv.round"
"""Property of a client's context that has the round of its task, for answers that do not state it."""


def record(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    at: Literal["clients", "server"] = "clients",
    truth: str | None = None,
    public: str | None = None,
    **facts: Any,
) -> None:
    """Have a job record what clients are sent for training and what they answer, for :func:`fedpriv.audit`.

    Call it after all filters are added, so that it sees what is really sent::

        fedpriv.nvflare.record(recipe, "/data/record", classes=10, input_shape=(3, 32, 32), net="model:Net",
                               training={"lr": 0.01, "momentum": 0.9, "local_epochs": 1, "batch_size": 32})

    Args:
        folder: of the record, with its whole path, as a job's processes run in folders of their own.
        at: where it is written: by each client, or by the server for all of them.
        truth: ``package.module:name`` of a function that is called with the client's name, and returns the images
            ``(n, C, H, W)`` in [0, 1] and labels ``(n,)`` that it trains on; they stay in the folder.
        public: of a function that returns samples of the same kind that are no client's.
        facts: see :func:`fedpriv.recording`. A net that is saved as a program is on this machine; on others, put ``net.pt2`` into
            their folders.

    Raises:
        UsageError: the folder is not an absolute path or holds a record, or a fact is not as :func:`fedpriv.recording` takes it.
    """
    if not os.path.isabs(folder):
        raise UsageError(f"record: {os.fspath(folder)} is not a whole path, and a job's processes run in folders of their own")
    if is_record(Path(folder)):  # in a simulation, the next run has the same number
        raise OtherRecord(f"{os.fspath(folder)} holds the record of another run; give an empty folder")
    with TemporaryDirectory() as tried:  # facts that cannot be right are an error here, and not at the clients
        checked = asdict(recording(tried, **{"name": Path(folder).name, **facts}).facts)
        if isinstance(facts.get("net"), nn.Module) and checked["net"] == PROGRAM:
            Path(folder).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(tried, PROGRAM), Path(folder, PROGRAM))
    del checked["format"]
    recorder = RecordFilter(os.fspath(folder), checked, truth, public)
    if at == "server":
        recipe.add_server_output_filter(recorder, tasks=[_TRAIN])
        recipe.add_server_input_filter(recorder, tasks=[_TRAIN])
    else:
        recipe.add_client_input_filter(recorder, tasks=[_TRAIN])
        recipe.add_client_output_filter(recorder, tasks=[_TRAIN])


class RecordFilter(Filter):  # type: ignore[misc]
    """Writes each message that passes it into a record; :func:`record` adds it to a job."""

    def __init__(self, folder: str, facts: dict[str, Any], truth: str | None = None, public: str | None = None) -> None:
        super().__init__()
        self.folder, self.facts, self.truth, self.public = folder, facts, truth, public
        self._writer: Recording | None = None
        self._known = set[str]()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if shareable.get_return_code(ReturnCode.OK) == ReturnCode.OK:
            self._keep(shareable, fl_ctx)
        return shareable

    def _keep(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        if number is None:
            number = fl_ctx.get_prop(_ROUND)
        try:
            dxo = from_shareable(shareable)
        except ValueError as error:
            self.log_warning(fl_ctx, f"not recorded: {error}")
            return
        if dxo.data_kind not in _KINDS or number is None:
            self.log_warning(fl_ctx, f"not recorded: a message of kind {dxo.data_kind} in round {number}")
            return
        fl_ctx.set_prop(_ROUND, number, private=True, sticky=False)
        # The server's context is that of one client's request: its peer is the client.
        peer = fl_ctx.get_peer_context()
        is_server = fl_ctx.get_process_type() in (ProcessType.SERVER_JOB, ProcessType.SERVER_PARENT)
        client = (peer if is_server else fl_ctx).get_identity_name()
        writer, tensors = self._begun(fl_ctx.get_job_id()), dxo.data
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            writer.sent(number + 1, client, tensors)
        else:
            writer.answered(number + 1, client, tensors, kind=_KINDS[dxo.data_kind])
        if self.truth is not None and client not in self._known:
            writer.truth(client, *_function(self.truth)(client))
            self._known.add(client)

    def _begun(self, job: str) -> Recording:
        if self._writer is None:
            self._writer = recording_of_run(self.folder, f"NVFlare {version('nvflare')}", job, self.facts)
            if self.public is not None:
                self._writer.public(*_function(self.public)())
        return self._writer


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    function = getattr(import_module(module), attribute, None)
    if not callable(function):
        raise UsageError(f"{name}: package.module:name of a function")
    return function
