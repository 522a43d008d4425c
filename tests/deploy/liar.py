"""A client's resident process that does not always do as it should: a file says in which round it does what."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fedpriv.deploy.client_node import ClientNode
from fedpriv.deploy.frames import Frame
from fedpriv.wire import Payload, Sealed, seal, unseal

TURNS = "updates.txt"
"""In a client's folder: a line for every local update that was begun."""
LIE = "lie.json"
"""In a client's folder: ``round`` and ``how``."""


def changed(sealed: Sealed, how: str) -> Sealed:
    """An upload in another shape (``schema``), or a thousand times as long."""
    tensors = sealed.tensors()
    if how == "schema":
        first = sorted(tensors)[0]
        tensors[first] = torch.cat([tensors[first], tensors[first]])
    else:
        tensors = {name: tensor * 1000 for name, tensor in tensors.items()}
    return seal(Payload(tensors, sealed.round, sealed.client, sealed.kind, sealed.num_examples, sealed.transforms))


def lying(answer: Callable[[ClientNode, Frame], Frame]) -> Callable[[ClientNode, Frame], Frame]:
    """``ClientNode._answer``, but for what the file says of a round."""

    def answers(site: ClientNode, frame: Frame) -> Frame:
        asked, file = frame.said[-1], site.folder / LIE
        lie = json.loads(file.read_text()) if file.exists() else {}
        if asked["do"] != "train":
            return answer(site, frame)
        with (site.folder / TURNS).open("a") as updates:
            updates.write(f"{frame.head['run']} {asked['round']}\n")
        if lie.get("round") != asked["round"]:
            return answer(site, frame)
        if lie["how"] == "sleep":
            time.sleep(lie["seconds"])
            return answer(site, frame)
        honest = answer(site, frame)
        at = honest.said[-1]["upload"]
        parts = list(honest.parts)
        parts[at] = changed(unseal(parts[at]), lie["how"]).data
        return replace(honest, parts=tuple(parts))

    return answers


def stay() -> None:
    """In place of :func:`fedpriv.deploy.flower.machines.stay`."""
    from fedpriv.deploy.flower import machines

    ClientNode._answer = lying(ClientNode._answer)  # type: ignore[method-assign]  # what it answers anew, not what it has answered before
    machines.stay()


def tell(folder: Path, **lie: object) -> None:
    """Say what a client does next."""
    (folder / LIE).write_text(json.dumps(lie))


def updates(folder: Path) -> list[str]:
    """Run and round of the local updates that it has begun."""
    file = folder / TURNS
    return file.read_text().splitlines() if file.exists() else []
