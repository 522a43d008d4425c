"""Reads a record, its tensors one message at a time."""

from __future__ import annotations

import hashlib
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


@dataclass(frozen=True)
class Recorded:
    """A record in a folder.

    Raises:
        Damaged: on access, a file is not what was written, or a line is none.
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
        lines = dict[tuple[int, str, Direction], Line]()
        for line in self._lines():
            if isinstance(line, End):
                break
            if isinstance(line, Refusal):
                continue
            key = line.round, line.client, line.direction
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
    def refusals(self) -> tuple[Refusal, ...]:
        """The errors that clients answered."""
        return tuple(line for line in self._lines() if isinstance(line, Refusal))

    def _lines(self) -> Iterator[Line | End | Refusal]:
        path = self.folder / layout.LINES
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        *whole, _ = text.split("\n")  # what a kill cut off has no end of line
        for number, line in enumerate(whole, 1):
            if line:
                try:
                    yield layout.line_of(line)
                except ValueError as error:
                    raise Damaged(f"{path}, line {number}: {error}") from None

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
        line = self.lines.get((round, client, direction))
        if line is None:
            return None
        return _load(self.folder / line.file, line.sha256)

    def truth(self, client: str) -> Mapping[str, Tensor] | None:
        """The samples and ``labels`` of a client; ``None``: they were not recorded."""
        return self._samples(self._truth_file(client))

    def has_truth(self, client: str) -> bool:
        """Whether a client's samples were recorded; they are not read."""
        return self._truth_file(client).exists()

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
