"""Replies of nodes, as they come through the SuperLink, which vouches for who answers what and for nothing else of them.

Flower's own ``pull_messages`` reads that from the node's bytes, waits for a reply whose node has not sent all of it yet, and ends
for all of them where one cannot be read.
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

from fedpriv.deploy.flower.inflation import bound_inflation, most_of
from fedpriv.deploy.stream import Broken
from fedpriv.deploy.transport import Lost

LOST = Lost("its answer was lost on the way")


class _Reply:
    """A reply that is on its way: its message's id, and the bytes of its objects by their id; empty: not sent yet."""

    def __init__(self, message_id: str, tree: Any) -> None:
        self.message_id = message_id
        self.objects = {one.object_id: b"" for one in iterate_object_tree(tree)}
        self._size, self._lock = 0, threading.Lock()  # Flower gets several objects at once

    def keep(self, object_id: str, content: bytes, most: int) -> None:
        """Take an object; :class:`Broken` where all of them are more than so many bytes."""
        with self._lock:
            self._size += len(content) - len(self.objects[object_id])
            if self._size > most:
                raise Broken(f"a reply of more than {most} bytes")
            self.objects[object_id] = content


class _NotYet(Exception):
    """A node is still sending."""


class Replies:
    """The replies to a server's messages.

    Args:
        grid: Flower's ``HttpGrid``.

    Attributes:
        sent: bytes of the largest message that a client was sent, which bounds the replies: a net's size, if not that of each.
    """

    def __init__(self, grid: Any) -> None:
        bound_inflation()
        self.sent = 0
        self._grid = grid
        self._coming = dict[str, _Reply]()
        self._singly = False
        """Ask for each by itself: the SuperLink's answer for several at once could not be read, for one of them."""

    def pull(self, tickets: Iterable[str]) -> Iterator[tuple[str, Message | str | Lost]]:
        """What is there for tickets by now: (ticket, its reply, or in a line why there is none).

        Raises:
            httpx.HTTPError: the SuperLink's, not a node's.
        """
        asked = set(tickets)
        self._coming = {ticket: reply for ticket, reply in self._coming.items() if ticket in asked}
        new = sorted(asked - self._coming.keys())
        for group in [[ticket] for ticket in new] if self._singly else [new] if new else []:
            try:
                found = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=group))
            except DecodeError:
                self._singly = True
                yield from ((ticket, LOST if len(group) > 1 else _none("DecodeError")) for ticket in group)
                continue
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                if message.metadata.reply_to_message_id in group:
                    self._coming[message.metadata.reply_to_message_id] = _Reply(message.metadata.message_id, tree)
        for ticket, reply in list(self._coming.items()):
            try:
                self._fetch(reply)
            except _NotYet:
                continue
            except ObjectPullError:  # as where it was not all sent in time
                del self._coming[ticket]
                yield ticket, LOST
                continue
            except Broken as reason:
                del self._coming[ticket]
                self._confirm(reply)
                yield ticket, str(reason)
                continue
            del self._coming[ticket]
            self._confirm(reply)
            yield ticket, self._inflated(reply)

    def _fetch(self, reply: _Reply) -> None:
        """Get those of its objects that are not here yet."""
        pull = make_pull_object_fn_protobuf(self._grid._runtime_client.PullObject, self._grid.node, self._grid.run.run_id)

        def keep(object_id: str) -> bytes:
            try:
                reply.keep(object_id, pull(object_id), most_of(self.sent))
            except ObjectUnavailableError:
                raise _NotYet from None
            return b""

        pull_objects([one for one, content in reply.objects.items() if not content], keep)

    def _confirm(self, reply: _Reply) -> None:
        """Have the SuperLink remove a reply."""
        node, run_id = self._grid.node, self._grid.run.run_id
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=reply.message_id)
        )

    def _inflated(self, reply: _Reply) -> Message | str:
        try:
            found = inflate_object_from_contents(reply.message_id, reply.objects)
        except Broken as reason:
            return str(reason)
        except Exception as error:  # of Flower and of what it reads with: whatever a node's bytes make them raise
            return _none(type(error).__name__)
        return found if isinstance(found, Message) else _none(type(found).__name__)


def _none(what: str) -> str:
    return f"what it sent is no message of Flower's ({what})"
