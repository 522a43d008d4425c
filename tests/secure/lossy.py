"""Five clients that share only frames with the server, of which some get lost or are altered on their way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.deploy.frames import Frame
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import unseal
from tests.deploy.apart import client_nodes, go_on, play_apart
from tests.deploy.loopback import Loopback
from tests.simulation.small import config

SMALL = {"data.clients": 5, "data.limit": 200, "model.projection": 8, "train.participation": 0.8, "executor.name": "sequential"}
SETTINGS = {**SMALL, "train.rounds": 2, "wire.keep_payloads": "all"}
ON = {**SETTINGS, "wire.secure_aggregation": True}
EVERY = {**ON, "train.participation": 1.0}
UNTRAINED = "none of the 2 rounds had a sum"
OTHERS = "sent the same model before, to a sum over other clients or with other weights"

Answers = Callable[[list[str], int, int, Frame], list[Frame]]
"""Kinds of the messages in a client's answer, the round, the client and the answer -> what of it reaches the server."""
Frames = Mapping[int, Frame]


class Killed(Exception):
    """Ends the server."""


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [record["metrics"] for record in RunFolder.open(folder).records()]


def whole(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
    return [answer]


def lost(clients: Collection[int], round: int = 1, step: str = "masked") -> Answers:
    """What these clients answer in a step of a round's sum is lost."""
    return lambda kinds, at, client, answer: [] if step in kinds and at == round and client in clients else [answer]


def killed(clients: Collection[int], step: str) -> Answers:
    """The server is killed when one of them answers that step of round 2's sum."""

    def die(kinds: list[str], round: int, client: int, answer: Frame) -> list[Frame]:
        if step in kinds and round == 2 and client in clients:
            raise Killed
        return [answer]

    return die


class Lossy(Loopback):
    """``asked``: what reaches the clients of the frames of a round; ``answers``: what reaches the server of theirs."""

    def __init__(self, folder: Path, answers: Answers = whole, asked: Callable[[Frames, int], Frames] | None = None) -> None:
        super().__init__(client_nodes(folder, config("fedavg", **ON)))
        self.answers = answers
        self.asked = asked or (lambda frames, round: frames)

    def exchange(self, frames: Frames, seconds: float, round: int) -> Iterator[tuple[int, Frame | str]]:
        for client, answer in super().exchange(self.asked(frames, round), seconds, round):
            assert isinstance(answer, Frame)
            kinds = [unseal(part).kind for part in answer.parts]
            yield from ((client, one) for one in self.answers(kinds, round, client, answer))


@dataclass
class Apart:
    """A run whose clients are in the folder ``clients`` beside it, where they stay for the next run."""

    folder: Path
    method: str = "mpfedcon"
    warnings: list[str] = field(default_factory=list)

    def play(self, grid: Lossy | Answers = whole, **options: Any) -> Apart:
        self.grid = grid if isinstance(grid, Lossy) else Lossy(self.folder.parent / "clients", grid)
        play_apart(self.folder, self.method, self.warnings, self.grid, **{**ON, **options})
        return self

    def go_on(self, grid: Lossy | Answers = whole) -> Apart:
        """With the same processes of the clients, or with new ones."""
        if isinstance(grid, Lossy):
            self.grid = grid
        else:
            self.grid.answers = grid
        go_on(self.folder, self.grid, self.warnings)
        return self

    @property
    def records(self) -> list[dict[str, Any]]:
        """Of the initial model and of each round."""
        return list(RunFolder.open(self.folder).records())

    @property
    def summed(self) -> list[list[int] | None]:
        """The clients in each round's sum; None: there was none."""
        return [sorted(record["summed"]) if "summed" in record else None for record in self.records[1:]]

    def warned(self, *parts: str) -> bool:
        return any(all(part in text for part in parts) for text in self.warnings)

    def of_rounds(self) -> list[str]:
        """The warnings without the remarks on the run."""
        return [text for text in self.warnings if text.startswith("round ")]
