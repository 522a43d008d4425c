"""How a round's uploads become the server's next state: packed into one matrix, which the method's aggregation merges."""

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

LARGEST = 2**30
"""Bytes of a round's matrix; uploads that would make a larger one are merged from the messages, where the aggregation can."""


def merge(method: Method, server: ServerState, uploads: Sequence[Upload]) -> ServerState:
    """The round's uploads, ordered by client, one at least -> the new server state.

    What no upload holds (private, or masked on the way) keeps the server's value to the bit and is no part of the matrix; what
    only some hold has, in the others' place, the mean of those who hold it (by :meth:`Aggregation.weigh`), so that a plain mean
    is one over them.

    Args:
        uploads: as they were checked on arrival (:mod:`fedpriv.server.arrivals`).
    """
    whole = method.context.space
    arrived = [(upload, frozenset(upload.shapes)) for upload in uploads]
    sent = {name for _, names in arrived for name in names if name in whole}
    space = whole.restricted(sent)
    previous = space.pack(whole.unpack(server.row, sent), server.row.new_empty(space.size))
    large = None
    if len(arrived) * previous.nbytes > LARGEST and method.aggregation.by_columns and all(names >= sent for _, names in arrived):
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
    )
    complete(matrix, [names for _, names in arrived], method.aggregation.weigh(matrix))
    return _merged(method, server, matrix)


def not_finite(server: ServerState) -> str | None:
    """The first part of a state that holds an infinity or a NaN: ``the model``, or a name in its memory; ``None``: there is none.

    Uploads are finite, but sums and squares of very large numbers are not. Such a state would stay so for good.
    """
    parts = {"the model": server.row, **server.memory}
    return next((name for name, tensor in parts.items() if tensor.is_floating_point() and not _is_finite(tensor)), None)


def _is_finite(tensor: Tensor) -> bool:
    # A sum is quicker, and never finite where an entry is not; it may overflow where all of them are.
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
    """The mean upload of a secure sum -> the new server state, as the uploads behind it would give it.

    Args:
        mean: the upload of which ``count`` copies merge as those (:meth:`Method.mean_upload`), by name.
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
    called = f"aggregation {method.aggregation.name}: merge"
    if not isinstance(merged, Merged):
        raise FedprivError(f"{called} returns a {type(merged).__name__}; it should be a Merged")
    if (found := tuple(merged.row.shape)) != (expected := tuple(matrix.previous.shape)):
        raise FedprivError(f"{called} returns a model of shape {found}; it should have that of uploads.previous, {expected}")
    report = {name: value for name, value in merged.report.items() if math.isfinite(value)}  # squares of large numbers are not
    state = ServerState(matrix.expand(merged.row, server.row), dict(merged.memory), report)
    state.memory = dict(method.remember(server, state, matrix.statistics))
    return state
