"""Reads a record, its tensors one message at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.errors import UsageError
from fedpriv.files import Damaged
from fedpriv.recorder import layout
from fedpriv.recorder.layout import Direction, End, Facts, Line, Refusal
from fedpriv.recorder.writer import check_samples, file_name

if TYPE_CHECKING:
    from torch import Tensor


def is_record(folder: Path) -> bool:
    """Whether a folder holds a record."""
    return (folder / layout.FACTS).is_file()


def is_whole(line: str) -> bool:
    """Whether a line is one of JSON, and not what was left of one."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return line.endswith("\n")


@dataclass(frozen=True)
class Recorded:
    """A record in a folder.

    Raises:
        Damaged: on access, a file is not what was written, or a line is none. What a kill or a full disk cut off is left out.
        UsageError: the folder holds no record, or one message stands twice in it with different tensors.
    """

    folder: Path

    @cached_property
    def facts(self) -> Facts:
        """What holds for all messages."""
        path = self.folder / layout.FACTS
        try:
            return layout.facts_of(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UsageError(f"{self.folder} holds no {layout.FACTS}, so it is no record") from None
        except (OSError, ValueError) as error:
            raise Damaged(f"{path}: {error}") from None

    @cached_property
    def lines(self) -> dict[tuple[int, str, Direction], Line]:
        """(round, client, direction) -> message, in the order of the file; one that stands there twice alike counts once."""
        lines, members = dict[tuple[int, str, Direction], Line](), dict[str, tuple[str, ...]]()
        for line in self._lines():
            if isinstance(line, End):
                break
            if isinstance(line, Refusal):
                continue
            key = line.round, line.client, line.direction
            if line.direction == "up" and members.setdefault(line.client, line.members) != line.members:
                raise UsageError(f"{self.folder}: {line.client} is a sum of other clients in round {line.round} than before")
            if lines.setdefault(key, line).sha256 != line.sha256:
                what = "was sent" if line.direction == "down" else "answered"
                raise UsageError(
                    f"{self.folder}: client {line.client} {what} twice in round {line.round}, with different tensors; record "
                    "each run into a folder of its own"
                )
        return lines

    @cached_property
    def ended(self) -> str | None:
        """Why the writer stopped before training did; ``None``: it did not, as far as the record says."""
        return next((line.ended for line in self._lines() if isinstance(line, End)), None)

    @cached_property
    def cut(self) -> int:
        """How many lines a kill or a full disk cut off."""
        return sum(not is_whole(line) for _, line in self._texts())

    @cached_property
    def refusals(self) -> tuple[Refusal, ...]:
        """The errors that clients answered."""
        return tuple(line for line in self._lines() if isinstance(line, Refusal))

    def _lines(self) -> Iterator[Line | End | Refusal]:
        for number, line in self._texts():
            if is_whole(line):
                try:
                    yield layout.line_of(line)
                except ValueError as error:
                    raise Damaged(f"{self.folder / layout.LINES}, line {number}: {error}") from None

    def _texts(self) -> Iterator[tuple[int, str]]:
        """The lines of the file that are not empty, with their numbers."""
        path = self.folder / layout.LINES
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The names of all clients that answered, in the order of their first answer."""
        return tuple(dict.fromkeys(client for _, client, direction in self.lines if direction == "up"))

    def answered(self) -> list[tuple[int, str]]:
        """The (round, client) of all answers, by round and in the order of :attr:`clients`."""
        place = {client: number for number, client in enumerate(self.clients)}
        ups = [(round, client) for round, client, direction in self.lines if direction == "up"]
        return sorted(ups, key=lambda message: (message[0], place[message[1]]))

    def tensors(self, round: int, client: str, direction: Direction) -> dict[str, Tensor] | None:
        """The tensors of a message; ``None``: it was not recorded."""
        line = self.received(round, client) if direction == "down" else self.lines.get((round, client, direction))
        return None if line is None else self.tensors_of(line)

    def tensors_of(self, line: Line) -> dict[str, Tensor]:
        """The tensors of a line's file."""
        return _load(self.folder / line.file, line.sha256)

    @cached_property
    def sums(self) -> dict[str, tuple[str, ...]]:
        """The members of each sum, by its name."""
        return {line.client: line.members for line in self.lines.values() if line.members}

    def behind(self, client: str) -> tuple[str, ...]:
        """The clients behind a name: the members of a sum, or the client itself."""
        return self.sums.get(client, (client,))

    def received(self, round: int, client: str) -> Line | None:
        """What a client, or the first known member of a sum, was sent; ``None``: it was not recorded."""
        downs = (self.lines.get((round, name, "down")) for name in dict.fromkeys((client, *self.behind(client))))
        return next((line for line in downs if line is not None), None)

    def truth(self, client: str) -> Mapping[str, Tensor] | None:
        """The samples and ``labels`` of a client; ``None``: they were not recorded."""
        return self._samples(self._truth_file(client))

    def has_truth(self, client: str) -> bool:
        """Whether the samples of a client, or of all members of a sum, were recorded; they are not read."""
        return all(self._truth_file(name).exists() for name in self.behind(client))

    def _truth_file(self, client: str) -> Path:
        return self.folder / layout.TRUTH / f"{file_name(client)}.safetensors"

    def public(self) -> Mapping[str, Tensor] | None:
        """The samples and ``labels`` that are no client's; ``None``: they were not recorded."""
        return self._samples(self.folder / layout.PUBLIC)

    def _samples(self, path: Path) -> Mapping[str, Tensor] | None:
        if not path.exists():
            return None
        tensors = _load(path)
        check_samples(tensors, str(path), self.facts)
        return tensors


def _load(path: Path, digest: str | None = None) -> dict[str, Tensor]:
    import safetensors
    import safetensors.torch

    try:
        data = path.read_bytes()
        tensors = safetensors.torch.load(data)
    except (OSError, safetensors.SafetensorError, KeyError, OverflowError, RuntimeError, TypeError) as error:
        raise Damaged(f"{path} is damaged or missing: {str(error).partition(chr(10))[0]}") from None
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise Damaged(f"{path} is damaged: its checksum does not match")
    return tensors
