"""Forged replies of a node: none of them ends the run, or replaces or delays another node's reply."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: uv run --extra deploy pytest tests/deploy")

from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_body, get_object_id, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid
from google.protobuf.message import DecodeError

from fedpriv.deploy.flower import apps
from fedpriv.deploy.flower.apps import FlowerNetwork, _packed, _unpacked
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.stream import MAX_PARTS, Broken
from fedpriv.deploy.transport import Lost, Transport

pytestmark = pytest.mark.extra("deploy")

MB = 2**20
HONEST, LIAR = "ticket-0", "ticket-1"


class Reply:
    """A reply as the SuperLink has it: what it knows of the message, the tree of its objects, and their contents by id."""

    def __init__(self, ticket: str, top: str, tree: ObjectTree, objects: dict[str, bytes]) -> None:
        self.ticket, self.tree, self.objects = ticket, tree, objects
        self.known = message_to_proto(remove_content_from_message(message(ticket)))
        self.known.metadata.message_id = top


class Link:
    """Stands for the SuperLink's API: a reply is given out once, and its objects where they are there."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = {reply.ticket: reply for reply in replies}
        self.objects = {name: content for reply in replies for name, content in reply.objects.items()}
        self.unreadable = set[str]()

    def PullMessages(self, request: Any) -> Any:  # noqa: N802 -- Flower's name
        replies = [self.replies.pop(ticket) for ticket in request.message_ids if ticket in self.replies]
        if self.unreadable & {reply.ticket for reply in replies}:
            raise DecodeError("Error parsing message")
        return PullAppMessagesResponse(
            messages_list=[reply.known for reply in replies], message_object_trees=[reply.tree for reply in replies]
        )

    def PullObject(self, request: Any) -> Any:  # noqa: N802 -- Flower's name
        content = self.objects.get(request.object_id)
        return PullObjectResponse(object_found=content is not None, object_available=bool(content), object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802 -- Flower's name
        return ConfirmMessageReceivedResponse()


class Nodes(HttpGrid):
    """A grid over a link, with two nodes."""

    def __init__(self, link: Link) -> None:
        super().__init__(token="token", insecure=True)
        self._client: Any = link
        self.set_run(Run.create_empty(1))

    def get_nodes(self) -> Any:
        return [SimpleNamespace(name=f"client-{n}", node_id=10 + n, last_activated_at="then") for n in (0, 1)]

    def push_messages(self, messages: Any) -> list[str]:
        return [HONEST, LIAR]


def message(ticket: str, content: RecordDict | None = None) -> Any:
    metadata = Metadata(
        run_id=1, message_id="", src_node_id=11, dst_node_id=1, reply_to_message_id=ticket, group_id="", ttl=60.0,
        message_type="query", created_at=1e9,
    )  # fmt: skip
    return make_message(metadata, RecordDict() if content is None else content)


def honest(ticket: str = HONEST, content: RecordDict | None = None, within: str | None = None) -> Reply:
    """A reply as a node's app makes it; ``within``: the ticket that its bytes name."""
    reply = message(within or ticket, _packed(b"{}", (b"data",)) if content is None else content)
    objects = {name: inner.deflate() for name, inner in get_all_nested_objects(reply).items()}
    return Reply(ticket, reply.object_id, get_object_tree(reply), objects)


class Made:
    """An object of a node's own making, that passes the SuperLink's check."""

    def __init__(self, kind: str, body: bytes, *children: Made) -> None:
        ids = ",".join(child.name for child in children)
        head = f"{kind}{HEAD_VALUE_DIVIDER}{ids}{HEAD_VALUE_DIVIDER}{len(body)}".encode()
        content = head + HEAD_BODY_DIVIDER + body
        validate_object_content(content)
        self.name = get_object_id(content)
        self.tree = ObjectTree(object_id=self.name, children=[child.tree for child in children])
        self.objects = {self.name: content, **{name: inner for child in children for name, inner in child.objects.items()}}

    def reply(self) -> Reply:
        return Reply(LIAR, self.name, self.tree, self.objects)


def enclosed(*children: Made) -> Reply:
    """A message with these as its content."""
    return Made("Message", message_to_proto(message(LIAR)).SerializeToString(), *children).reply()


def with_array(array: Made) -> Reply:
    head = Made("ConfigRecord", get_object_body(ConfigRecord({"head": b"{}"}).deflate(), ConfigRecord))
    parts = Made("ArrayRecord", json.dumps({"0000": array.name}).encode(), array)
    return enclosed(Made("RecordDict", json.dumps({"head": head.name, "parts": parts.name}).encode(), head, parts))


def array(chunk: Made, times: int) -> Made:
    facts = {"dtype": "uint8", "shape": [1], "stype": "fedpriv.sealed", "arraychunk_ids": [0] * times}
    return Made("Array", json.dumps(facts).encode(), chunk)


def without_a_child() -> Reply:
    reply = honest(LIAR)
    del reply.tree.children[:]
    return reply


def chunk(size: int) -> Made:
    return Made("ArrayChunk", bytes(size))


LIES = {
    "no protobuf": lambda: Made("Message", b"\xff\xff\xff").reply(),
    "a child that is not in the tree": without_a_child,
    "nested JSON": lambda: enclosed(Made("RecordDict", b"[" * 100_000)),
    "neither content nor error": enclosed,
    "content of another kind": lambda: enclosed(chunk(1)),
    "no message": lambda: chunk(1).reply(),
    "an array that grows 300-fold": lambda: with_array(array(chunk(MB), 300)),
    "an array of arrays": lambda: with_array(array(array(chunk(MB), 10), 10)),
}


def received(network: FlowerNetwork) -> dict[str, Any]:
    return dict(network.receive([HONEST, LIAR]))


@pytest.mark.parametrize("lie", LIES)
def test_an_invalid_reply_does_not_affect_others(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "_message", lambda *of: None)
    network = FlowerNetwork(Nodes(Link(LIES[lie](), honest())), 2)
    answers = dict(Transport(network).exchange({0: Frame({}), 1: Frame({})}, 30, 1))
    assert answers[0] == Frame({}, (b"data",))
    assert isinstance(answers[1], str) and ("no message of Flower's" in answers[1] or "array" in answers[1])


def test_a_reply_belongs_to_the_ticket_that_the_superlink_names() -> None:
    assert list(received(FlowerNetwork(Nodes(Link(honest(LIAR, within=HONEST))), 2))) == [LIAR]


def test_arrays_of_repeated_chunks_are_accepted() -> None:
    answers = received(FlowerNetwork(Nodes(Link(with_array(array(chunk(MB), 30)))), 2))
    assert answers[LIAR].parts == (bytes(30 * MB),)


@pytest.mark.parametrize("sent", [0, 10])
def test_a_reply_is_bounded_by_what_was_sent(sent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are not all fetched, and the others' replies come."""
    monkeypatch.setattr(apps, "_message", lambda *of: None)
    large = honest(LIAR, _packed(b"{}", tuple(bytes([n]) * MB for n in range(40))))
    link = Link(large, honest())
    network = FlowerNetwork(Nodes(link), 2)
    network.connected()
    network.send({0: Frame({}, (bytes(sent * MB),)), 1: Frame({})}, 60, 1)
    pulled: list[str] = []
    pull = link.PullObject

    def noted(request: Any) -> Any:
        pulled.append(request.object_id)
        return pull(request)

    monkeypatch.setattr(link, "PullObject", noted)
    answers = received(network)
    assert answers[HONEST] == Frame({}, (b"data",))
    if sent:
        assert isinstance(answers[LIAR], Frame)
    else:
        assert answers[LIAR] == f"a reply of more than {32 * MB} bytes"
        assert len(set(pulled)) < len(large.objects) + 3


def test_incomplete_replies_delay_no_others() -> None:
    slow = honest(LIAR, _packed(b"{}", (b"slow",)))
    link = Link(slow, honest())
    last = next(reversed(slow.objects))
    link.objects[last] = b""
    network = FlowerNetwork(Nodes(link), 2)
    assert list(received(network)) == [HONEST]
    assert list(network.receive([LIAR])) == []
    link.objects[last] = slow.objects[last]
    assert dict(network.receive([LIAR])) == {LIAR: Frame({}, (b"slow",))}


def test_a_reply_without_objects_is_lost() -> None:
    link = Link(honest(LIAR))
    link.objects.clear()
    assert isinstance(received(FlowerNetwork(Nodes(link), 2))[LIAR], Lost)


def test_replies_are_pulled_one_by_one_after_a_decode_error() -> None:
    link = Link(honest(), honest(LIAR))
    link.unreadable = {LIAR}
    network = FlowerNetwork(Nodes(link), 2)
    assert all(isinstance(answer, Lost) for answer in received(network).values())
    link.replies = {reply.ticket: reply for reply in (honest(), honest(LIAR))}  # they were sent the frame again
    answers = received(network)
    assert answers[HONEST] == Frame({}, (b"data",)) and "DecodeError" in answers[LIAR]


def test_many_names_of_one_array_and_too_many_parts_are_refused() -> None:
    array = Array("uint8", (MB,), "fedpriv.sealed", bytes(MB))
    head = ConfigRecord({"head": b"{}"})
    for names, why in ((100, "of which 1048576 were sent"), (MAX_PARTS + 1, "parts")):
        parts = ArrayRecord({f"{name:05d}": array for name in range(names)})
        with pytest.raises(Broken, match=why):
            _unpacked(RecordDict({"head": head, "parts": parts}))
