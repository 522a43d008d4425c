"""Pulling the replies of nodes from the SuperLink, which vouches for who answers which message, and for nothing else.

It replaces Flower's ``pull_messages``, which reads that from the node's bytes, waits for replies that are still being sent, and
fails for all replies if one of them cannot be read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from google.protobuf.message import DecodeError

from fedpriv.deploy.flower.internals import check_arrays, runtime_client
from fedpriv.deploy.stream import Broken, check_growth, size_limit
from fedpriv.deploy.transport import Lost

LOST = Lost("its answer was lost on the way")


class _Incoming:
    """A reply that is being pulled.

    Attributes:
        objects: id of each of its objects -> content; empty: not pulled yet.
    """

    def __init__(self, message_id: str, tree: Any) -> None:
        self.message_id = message_id
        self.objects = {node.object_id: b"" for node in iterate_object_tree(tree)}
        self._size, self._lock = 0, threading.Lock()  # Flower pulls several objects at once

    def add(self, object_id: str, content: bytes, limit: int) -> None:
        """Store an object; :class:`Broken` if all objects together exceed the limit (bytes)."""
        with self._lock:
            self._size += len(content) - len(self.objects[object_id])
            if self._size > limit:
                raise Broken(f"a reply of more than {limit} bytes")
            self.objects[object_id] = content


class _Incomplete(Exception):
    """The node is still sending the reply."""


class Replies:
    """The replies to a server's messages.

    Args:
        grid: Flower's ``HttpGrid``.

    Attributes:
        sent: bytes of the largest message to a client so far; the limit of a reply's size depends on it.
    """

    def __init__(self, grid: Any) -> None:
        check_arrays(check_growth)
        self.sent = 0
        self._grid, self._client = grid, runtime_client(grid)
        self._incoming = dict[str, _Incoming]()
        self._one_by_one = False
        """Request replies one by one: one of several could not be decoded."""

    def pull(self, tickets: Iterable[str]) -> Iterator[tuple[str, Message | str | Lost]]:
        """What has arrived for tickets: (ticket, the reply, or why there is none).

        Raises:
            httpx.HTTPError: the SuperLink's.
        """
        wanted = set(tickets)
        self._incoming = {ticket: reply for ticket, reply in self._incoming.items() if ticket in wanted}
        new = sorted(wanted - self._incoming.keys())
        for group in [[ticket] for ticket in new] if self._one_by_one else [new] if new else []:
            try:
                response = self._client.PullMessages(PullAppMessagesRequest(message_ids=group))
            except DecodeError:
                self._one_by_one = True
                yield from ((ticket, LOST if len(group) > 1 else _no_message("DecodeError")) for ticket in group)
                continue
            for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                if message.metadata.reply_to_message_id in group:
                    self._incoming[message.metadata.reply_to_message_id] = _Incoming(message.metadata.message_id, tree)
        for ticket, reply in list(self._incoming.items()):
            try:
                result = self._pull_one(reply)
            except _Incomplete:
                continue
            del self._incoming[ticket]
            yield ticket, result

    def _pull_one(self, reply: _Incoming) -> Message | str | Lost:
        try:
            self._pull_objects(reply)
        except ObjectPullError:  # such as an upload that did not complete in time
            return LOST
        except Broken as reason:
            self._confirm(reply)
            return str(reason)
        self._confirm(reply)
        return _inflated(reply)

    def _pull_objects(self, reply: _Incoming) -> None:
        """Pull the objects of a reply that are not here yet."""
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._grid.node, self._grid.run.run_id)

        def store(object_id: str) -> bytes:
            try:
                reply.add(object_id, pull(object_id), size_limit(self.sent))
            except ObjectUnavailableError:
                raise _Incomplete from None
            return b""

        pull_objects([object_id for object_id, content in reply.objects.items() if not content], store)

    def _confirm(self, reply: _Incoming) -> None:
        """Have the SuperLink delete a reply."""
        node, run_id = self._grid.node, self._grid.run.run_id
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=reply.message_id)
        )


def _inflated(reply: _Incoming) -> Message | str:
    try:
        inflated = inflate_object_from_contents(reply.message_id, reply.objects)
    except Broken as reason:
        return str(reason)
    except Exception as error:  # whatever a node's bytes make Flower raise
        return _no_message(type(error).__name__)
    return inflated if isinstance(inflated, Message) else _no_message(type(inflated).__name__)


def _no_message(what: str) -> str:
    return f"what it sent is no message of Flower's ({what})"
