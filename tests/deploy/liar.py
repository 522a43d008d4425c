"""A client's process that misbehaves in the rounds that a file names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.frames import Frame
from fedpriv.wire import Payload, Sealed, seal, unseal

UPDATES = "updates.txt"
"""File in a client's folder: a line for every local update that was begun."""
LIE = "lie.json"
"""File in a client's folder: ``round`` and ``how`` of the misbehaviour."""


def changed(sealed: Sealed, how: str) -> Sealed:
    """An upload of another shape (``schema``), or with a thousand times the norm."""
    tensors = sealed.tensors()
    if how == "schema":
        first = sorted(tensors)[0]
        tensors[first] = torch.cat([tensors[first], tensors[first]])
    else:
        tensors = {name: tensor * 1000 for name, tensor in tensors.items()}
    return seal(Payload(tensors, sealed.round, sealed.client, sealed.kind, sealed.num_examples, sealed.transforms))


def lying(answer: Callable[[ClientNode, Frame], Frame]) -> Callable[[ClientNode, Frame], Frame]:
    """``ClientNode._answer`` with the misbehaviour that the file names."""

    def answers(node: ClientNode, frame: Frame) -> Frame:
        asked, file = frame.entries[-1], node.folder / LIE
        lie = json.loads(file.read_text()) if file.exists() else {}
        if asked["do"] != "train":
            return answer(node, frame)
        with (node.folder / UPDATES).open("a") as updates:
            updates.write(f"{frame.head['run']} {asked['round']}\n")
        if lie.get("round") != asked["round"]:
            return answer(node, frame)
        if lie["how"] == "sleep":
            time.sleep(lie["seconds"])
            return answer(node, frame)
        honest = answer(node, frame)
        at = honest.entries[-1]["upload"]
        parts = list(honest.parts)
        parts[at] = changed(unseal(parts[at]), lie["how"]).data
        return replace(honest, parts=tuple(parts))

    return answers


def serve_client() -> None:
    """In place of :func:`fedpriv.deploy.flower.machines.serve_client`."""
    from fedpriv.deploy.flower import machines

    ClientNode._answer = lying(ClientNode._answer)  # type: ignore[method-assign]  # new answers, not stored ones
    machines.serve_client()


def tell(folder: Path, **lie: object) -> None:
    """Set a client's misbehaviour."""
    (folder / LIE).write_text(json.dumps(lie))


def updates(folder: Path) -> list[str]:
    """Run and round of the local updates that it has begun."""
    file = folder / UPDATES
    return file.read_text().splitlines() if file.exists() else []
