"""A grid without a network: every frame is serialised and parsed again, in this process."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.stream import read, write


class Loopback:
    """A grid of client nodes in this process."""

    def __init__(self, nodes: Mapping[int, ClientNode]) -> None:
        self.nodes = nodes

    def exchange(self, frames: Mapping[int, Frame], seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        """As :meth:`fedpriv.deploy.remote_clients.Grid.exchange`."""
        for client, frame in frames.items():
            yield client, _serialised(self.nodes[client].answer(_serialised(frame)))


def _serialised(frame: Frame) -> Frame:
    stream = io.BytesIO()
    write(stream, frame.head_bytes, frame.parts)
    stream.seek(0)
    return Frame.of(*read(stream))
