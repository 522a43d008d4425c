"""How a round's uploads become the server's next state: packed into one matrix, which the method's aggregation merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedpriv.aggregation import Uploads, aggregations
from fedpriv.aggregation.completing import complete
from fedpriv.errors import UsageError
from fedpriv.methods.base import Method, ServerState
from fedpriv.wire.coding import Upload


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
    rows = torch.empty(len(arrived), space.size, dtype=previous.dtype)
    spans = {entry.name: slice(entry.start, entry.stop) for entry in space.entries}
    for row, (upload, names) in zip(rows, arrived, strict=True):
        if not names >= sent:
            row.copy_(previous)
        upload.copy_into(row, spans)
    matrix = Uploads(
        space=space,
        rows=rows.to(previous.device),
        previous=previous,
        examples=[upload.sealed.num_examples or 0 for upload in uploads],
        statistics=[upload.tensors(names - sent) for upload, names in arrived],
        clients=[-1 if upload.sealed.client is None else upload.sealed.client for upload in uploads],
        round=uploads[0].sealed.round,
        registered=method.context.config.data.clients,
        whole=whole,
    )
    complete(matrix, [names for _, names in arrived], method.aggregation.weigh(matrix))
    return _merged(method, server, matrix)


def merge_sum(
    method: Method, server: ServerState, sums: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float, count: int,
    round: int,
) -> ServerState:  # fmt: skip
    """The sum of what clients add (:meth:`Method.addend`) -> the new server state, as their uploads would give it.

    Args:
        received: what every client had been sent, by name.
        weight: the sum of their weights.
        count: how many they are.

    Raises:
        UsageError: the merge takes single uploads.
    """
    check_linear(method)
    whole = method.context.space
    upload = method.mean_upload(sums, received, weight, count)
    sent = [name for name in upload if name in whole]
    space = whole.restricted(sent)
    row = space.pack({name: upload[name] for name in sent}, server.row.new_empty(space.size))
    matrix = Uploads(
        space=space,
        rows=row.expand(count, -1),
        previous=space.pack(whole.unpack(server.row, sent), torch.empty_like(row)),
        examples=[1] * count,
        statistics=[{name: tensor for name, tensor in upload.items() if name not in whole}] * count,
        clients=[-1] * count,
        round=round,
        registered=method.context.config.data.clients,
        whole=whole,
    )
    state = _merged(method, server, matrix)
    state.report = {name: value for name, value in state.report.items() if name not in method.aggregation.of_single}
    return state


def check_linear(method: Method) -> None:
    """
    Raises:
        UsageError: the method cannot be merged from a sum over the clients.
    """
    if not method.shared_names:
        raise UsageError(f"method {method.name} sends nothing, so there is nothing to sum")
    if not method.aggregation.linear:
        right = ", ".join(sorted({kind.name for kind in aggregations().values() if kind.linear}))
        raise UsageError(f"aggregation {method.aggregation.name} looks at single uploads, so a sum is not enough; use {right}")
    kind = type(method)
    if kind.remember is not Method.remember and kind.addend is Method.addend:
        raise UsageError(f"method {method.name} keeps what single uploads say, so a sum is not enough; use fedavg")


def _merged(method: Method, server: ServerState, matrix: Uploads) -> ServerState:
    merged = method.aggregation.merge(matrix, server.memory)
    state = ServerState(matrix.expand(merged.row, server.row), dict(merged.memory), merged.report)
    state.memory = dict(method.remember(server, state, matrix.statistics))
    return state
