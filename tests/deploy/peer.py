"""A client that speaks to a real SuperLink by HTTP with its registered key, without Flower's node: it may send anything."""

from __future__ import annotations

import ssl
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from fedpriv.config import RunConfig
from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.frames import Frame

if TYPE_CHECKING:
    from tests.deploy.deployed import Deployment

INTERVAL = 30
"""Seconds between heartbeats."""
POLL = 0.1
TRIES = 8


@dataclass(frozen=True)
class Reply:
    """A reply as the SuperLink takes it: its facts (a protobuf message), the tree of its objects, and their contents by id."""

    facts: Any
    tree: Any
    objects: Mapping[str, bytes]


@dataclass
class Peer:
    """A client of number ``number``, whose answers are those of a node in this process, or others.

    Attributes:
        address: host:port of the SuperLink.
        key: file of the private key.
        lie: called with this peer, the message of Flower's that it got, the frame in it and the honest answer; gives the answer,
            or ``None`` if it has sent one, or sends none.
    """

    address: str
    authority: Path
    key: Path
    node: ClientNode
    lie: Callable[[Peer, Any, Frame, Frame], Frame | None] = lambda peer, message, asked, honest: honest
    id: int = 0
    errors: list[BaseException] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def reply(self, message: Any, frame: Frame, parts: Any = None) -> Reply:
        """A frame as a reply to a message; ``parts``: another content in place of its own."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        from fedpriv.deploy.flower.apps import _packed

        answer = Message(_packed(frame.head_bytes, frame.parts) if parts is None else parts, reply_to=message)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        objects = {name: inner.deflate() for name, inner in get_all_nested_objects(answer).items()}
        return Reply(message_to_proto(remove_content_from_message(answer)), get_object_tree(answer), objects)

    def push(self, reply: Reply) -> None:
        """Send a reply.

        Raises:
            httpx.HTTPStatusError: the SuperLink refuses it.
        """
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import PushObjectRequest

        request = PushMessagesRequest(node=self._own, messages_list=[reply.facts], message_object_trees=[reply.tree])
        answer = self._ask("PushMessages", request)
        for name in answer.objects_to_push:
            if name in reply.objects:
                self._ask(
                    "PushObject",
                    PushObjectRequest(
                        node=self._own,
                        run_id=reply.facts.metadata.run_id,
                        object_id=name,
                        object_content=reply.objects[name],
                        session_id=answer.session_id,
                    ),
                )

    def post(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        """The answer to a request of any bytes, with a valid login."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.supercore.protobuf.client import ProtobufRequestContext
        from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

        named = {"content-type": PROTOBUF_MEDIA_TYPE, **{name.replace("_", "-"): value for name, value in headers.items()}}
        request = httpx.Request("POST", f"https://{self.address}{path}", content=body, headers=named)
        with httpx.Client(verify=ssl.create_default_context(cafile=str(self.authority)), timeout=60) as client:
            context = ProtobufRequestContext("", PullMessagesRequest(node=self._own), request)
            return self._signed.intercept(context, lambda context: client.send(context.request))

    def __enter__(self) -> Peer:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        key: Any = load_ssh_private_key(self.key.read_bytes(), None)
        self._signed = signed = NodeAuthHttpInterceptor(key, key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        self._client = FleetHttpClient.from_server_address(
            self.address, False, str(self.authority), interceptors=[version, signed]
        )
        self._client.__enter__()
        public = public_key_to_bytes(key.public_key())
        self.id = self._ask("ActivateNode", ActivateNodeRequest(public_key=public, heartbeat_interval=INTERVAL)).node_id
        self._own = Node(node_id=self.id)
        self._threads = [threading.Thread(target=self._kept, args=(what,)) for what in (self._serve, self._beat)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._client.__exit__(None, None, None)

    def _ask(self, what: str, request: Any) -> Any:
        """A request to the SuperLink; again, as Flower's node does, if the connection was closed or the server has an error."""
        for attempt in range(TRIES):
            try:
                return getattr(self._client, what)(request)
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                passing = not isinstance(error, httpx.HTTPStatusError) or error.response.is_server_error
                if not passing or attempt == TRIES - 1:
                    raise
            self._end.wait(attempt)
        raise AssertionError

    def _kept(self, what: Callable[[], None]) -> None:
        try:
            what()
        except BaseException as error:
            traceback.print_exc()
            self.errors.append(error)

    def _beat(self) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        while not self._end.wait(INTERVAL / 3):
            self._ask("SendNodeHeartbeat", SendNodeHeartbeatRequest(node=self._own, heartbeat_interval=INTERVAL))

    def _serve(self) -> None:
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        from fedpriv.deploy.flower.apps import _unpacked

        while not self._end.wait(POLL):
            response = self._ask("PullMessages", PullMessagesRequest(node=self._own))
            for facts, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                message = self._pulled(facts.metadata.run_id, tree)
                asked = Frame.of(*_unpacked(message.content))
                if (answer := self.lie(self, message, asked, self.node.answer(asked))) is not None:
                    try:
                        self.push(self.reply(message, answer))
                    except httpx.HTTPStatusError as error:
                        self.errors.append(error)

    def _pulled(self, run: int, tree: Any) -> Any:
        """The message whose objects have this tree, once the server has sent them all."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        objects = dict[str, bytes]()
        for name in {inner.object_id for inner in iterate_object_tree(tree)}:
            while not objects.get(name) and not self._end.wait(POLL if name in objects else 0):
                asked = PullObjectRequest(node=self._own, run_id=run, object_id=name)
                objects[name] = self._ask("PullObject", asked).object_content
        done = ConfirmMessageReceivedRequest(node=self._own, run_id=run, message_object_id=tree.object_id)
        self._ask("ConfirmMessageReceived", done)
        message: Any = inflate_object_from_contents(tree.object_id, objects)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message


@contextmanager
def with_peers(folder: Path, clients: int) -> Iterator[tuple[Deployment, list[Peer]]]:
    """A deployment in a new folder: a real server on 127.0.0.1, and peers in this process with their shares of the run's data."""
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.control import SuperLink
    from fedpriv.deploy.flower.paths import make
    from tests.deploy.deployed import Deployment

    port = machines.free_port()
    paths = make(folder, clients, "127.0.0.1", port, inner_port=port)
    link = SuperLink(f"127.0.0.1:{port}", paths.authority)
    with ExitStack() as stack:
        supervisor = stack.enter_context(machines.server(paths))
        peers = [
            stack.enter_context(
                Peer(link.address, paths.authority, paths.path / f"client-{number}" / "key", shares(folder / "peers", number))
            )
            for number in range(clients)
        ]
        yield Deployment(paths, link, supervisor.look, [supervisor]), peers


def shares(folder: Path, number: int) -> ClientNode:
    """A client's node that takes its share of the run's data."""
    return ClientNode(number, Source(share="partition"), folder / f"client-{number}")


class Present:
    """A grid of clients in this process, of whom some do not answer in some rounds.

    Args:
        absent: round -> clients that do not answer when they are to train.
    """

    def __init__(self, folder: Path, config: RunConfig, absent: Mapping[int, set[int]]) -> None:
        self._nodes = {number: shares(folder, number) for number in range(config.data.clients)}
        self._absent = absent

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        """As :meth:`fedpriv.deploy.remote_clients.Grid.exchange`."""
        for client, frame in frames.items():
            trains = frame.entries[-1]["do"] == "train"
            yield client, "absent" if trains and client in self._absent.get(round, ()) else self._nodes[client].answer(frame)
