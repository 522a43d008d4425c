"""From a round's uploads to the server's next state: they become the rows of a matrix, which the aggregation merges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedpriv.aggregation import Merged, Uploads
from fedpriv.aggregation.completing import complete
from fedpriv.aggregation.rows import UploadedRows
from fedpriv.errors import FedprivError
from fedpriv.methods.base import Method, ServerState
from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import Upload

MAX_MATRIX = 2**30
"""Bytes of a round's matrix. If it would be larger, uploads are merged from the messages, if the aggregation can."""


def merge(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
    """The server's state after merging the uploads of a round.

    A tensor that no upload holds (private, or masked) keeps the server's value and is not part of the matrix. If only some
    uploads hold a tensor, the other rows get the weighted mean of those that do (before that, in :meth:`Aggregation.weigh`, they
    have the server's values). The mean over all rows is then the mean over the holders.

    Args:
        uploads: at least one, ordered by client, as checked on arrival (:mod:`fedpriv.server.answers.arrivals`).
    """
    whole = method.context.space
    arrived = [(upload, frozenset(upload.shapes)) for upload in uploads]
    sent = {name for _, names in arrived for name in names if name in whole}
    space = whole.restricted(sent)
    previous = space.pack(whole.unpack(server.row, sent), server.row.new_empty(space.size))
    large = None
    if (
        len(arrived) * previous.nbytes > MAX_MATRIX
        and method.aggregation.by_columns
        and all(names >= sent for _, names in arrived)
    ):
        large = UploadedRows(uploads, space, previous)
        rows = torch.empty(large.shape, dtype=previous.dtype, device="meta")
    else:
        rows = _matrix(arrived, sent, space, previous)
    matrix = Uploads(
        space=space,
        rows=rows,
        previous=previous,
        examples=[upload.sealed.num_examples or 0 for upload in uploads],
        statistics=[upload.tensors(names - sent) for upload, names in arrived],
        clients=[-1 if upload.sealed.client is None else upload.sealed.client for upload in uploads],
        round=uploads[0].sealed.round,
        registered=method.context.registered,
        whole=whole,
        large=large,
        unsent=frozenset(method.shared_names) - method.context.masked - sent,
        senders=None if all(names >= sent for _, names in arrived) else [names for _, names in arrived],
    )
    complete(matrix, [names for _, names in arrived], method.aggregation.weigh(matrix))
    return _merged(method, server, matrix)


def not_finite(server: ServerState) -> str | None:
    """The first part of a state that holds an infinity or a NaN: ``the model``, or a name in its memory; ``None``: there is none.

    Uploads are finite, but sums and squares of very large numbers may not be, and no later round would repair the state.
    """
    parts = {"the model": server.row, **server.memory}
    return next((name for name, tensor in parts.items() if tensor.is_floating_point() and not _is_finite(tensor)), None)


def _is_finite(tensor: Tensor) -> bool:
    # A non-finite entry makes the sum non-finite; finite entries may overflow too, so then check each.
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def _matrix(arrived: Sequence[tuple[Upload, frozenset[str]]], sent: set[str], space: ParameterSpace, previous: Tensor) -> Tensor:
    rows = torch.empty(len(arrived), space.size, dtype=previous.dtype)
    spans = {entry.name: slice(entry.start, entry.stop) for entry in space.entries}
    for row, (upload, names) in zip(rows, arrived, strict=True):
        if not names >= sent:
            row.copy_(previous)
        upload.copy_into(row, spans)
    return rows.to(previous.device)


def merge_sum(method: Method, server: ServerState, mean: Mapping[str, Tensor], count: int, round: int) -> ServerState:
    """The server's state after merging the mean upload of a secure sum.

    Args:
        mean: a stand-in upload, by name: merging ``count`` copies of it gives the same model as merging the clients' uploads
            (:meth:`Method.mean_upload`).
    """
    whole = method.context.space
    sent = [name for name in mean if name in whole]
    space = whole.restricted(sent)
    row = space.pack({name: mean[name] for name in sent}, server.row.new_empty(space.size))
    matrix = Uploads(
        space=space,
        rows=row.expand(count, -1),
        previous=space.pack(whole.unpack(server.row, sent), torch.empty_like(row)),
        examples=[1] * count,
        statistics=[{name: tensor for name, tensor in mean.items() if name not in whole}] * count,
        clients=[-1] * count,
        round=round,
        registered=method.context.registered,
        whole=whole,
    )
    state = _merged(method, server, matrix)
    state.report = {name: value for name, value in state.report.items() if name not in method.aggregation.single_upload_metrics}
    return state


def _merged(method: Method, server: ServerState, matrix: Uploads) -> ServerState:
    merged = method.aggregation.merge(matrix, server.memory)
    where = f"aggregation {method.aggregation.name}: merge"
    if not isinstance(merged, Merged):
        raise FedprivError(f"{where} returns a {type(merged).__name__}; it should be a Merged")
    if (shape := tuple(merged.row.shape)) != (expected := tuple(matrix.previous.shape)):
        raise FedprivError(f"{where} returns a model of shape {shape}; it should have that of uploads.previous, {expected}")
    report = {name: value for name, value in merged.report.items() if math.isfinite(value)}  # metrics may overflow; drop those
    state = ServerState(matrix.expand(merged.row, server.row), dict(merged.memory), report)
    state.memory = dict(method.remember(server, state, matrix.statistics))
    return state
