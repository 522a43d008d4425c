"""How a round's uploads become the server's next state: packed into one matrix, which the method's aggregation merges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedpriv.aggregation import Uploads
from fedpriv.aggregation.completing import complete
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
    merged = method.aggregation.merge(matrix, server.memory)
    state = ServerState(matrix.expand(merged.row, server.row), dict(merged.memory), merged.report)
    state.memory = dict(method.remember(server, state, matrix.statistics))
    return state
