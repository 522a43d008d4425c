"""The messages that a run keeps, byte for byte as they crossed the wire, so that an audit can measure what they leak.

``payloads/round-0000/broadcast.safetensors`` is the initial model, ``payloads/round-0003/download.safetensors`` the download of
round 3, ``payloads/round-0003/client-0007.safetensors`` the upload of client 7, and
``payloads/round-0003/report-0007.safetensors`` its report. What crosses before round 1 is in ``round-0000``, too: ``columns``,
``levels-0007``, ``inquiry``, ``statistics-0007`` and ``encoding`` (:mod:`fedpriv.data.statistics.messages`). An audit derives the
data behind an upload from the run's config.

With secure aggregation, ``sum.safetensors`` is the mean upload that the server learned. A simulation also keeps, as
``hidden-0007.safetensors``, the upload that client 7 held back, so that an audit can compare the two. Masked uploads are random
numbers, and are not kept.

``SHA256SUMS`` lists the checksums of a round's messages in the form of ``sha256sum --check``; the round's record holds the
checksum of that list.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Self

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.files import Damaged, write_atomically
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Direction, Kind, Sealed, unseal

Kept = Literal[Direction, "sum", "hidden", "statistics"]
"""What is kept: messages that crossed, in a round or before the first one, the mean upload of a secure sum, and an upload that a
simulated client held back."""
UPLOADS_BY_DEFAULT = 3
"""Uploads of a round that ``wire.keep_payloads: default`` keeps."""

_BROADCAST, _DOWNLOAD, _SUM, _CLIENT, _REPORT, _HIDDEN = "broadcast", "download", "sum", "client-", "report-", "hidden-"
_ROUND, _SUMS = "round-", "SHA256SUMS"
_CLIENT_PREFIXES: Mapping[Kept, str] = {"up": _CLIENT, "report": _REPORT, "hidden": _HIDDEN}
_STATISTICS: tuple[Kind, ...] = ("columns", "levels", "inquiry", "statistics", "encoding")
"""Kinds of the messages that cross before round 1, whose files have their names; those from a client also its number."""


def rounds_to_keep(config: RunConfig) -> Collection[int]:
    """The rounds (1-based) whose payloads are kept, by ``wire.keep_payloads``."""
    wanted, last = config.wire.keep_payloads, config.train.rounds
    if wanted == "none":
        return ()
    if wanted == "all":
        return range(1, last + 1)
    if wanted == "default":
        return {1, (last + 1) // 2, last}
    return wanted


class PayloadKeeper:
    """A tap that writes messages into the run folder, as ``wire.keep_payloads`` says.

    By default only the uploads and reports of the first participants of a round are kept. A round that is repeated after a kill
    writes the same files again.
    """

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self.folder = folder
        self._rounds = rounds_to_keep(config)
        self._uploads = UPLOADS_BY_DEFAULT if config.wire.keep_payloads == "default" else config.data.clients
        self._round = -1
        self._written: dict[str, str] = {}
        """Name -> checksum of the present round's files."""

    def __call__(self, direction: Kept, payload: Sealed) -> None:
        if not self._rounds or payload.round not in (0, *self._rounds):
            return
        if direction == "statistics" and payload.kind not in _STATISTICS:  # a step of their secure sum
            return
        if payload.round != self._round:
            self._begin(payload.round)
        name = _name(direction, payload)
        of_this_kind = sum(other.startswith(name.partition("-")[0]) for other in self._written)
        if name in self._written or (payload.client is not None and of_this_kind == self._uploads):
            return
        with self.folder.writing(f"the payloads of round {payload.round}"):
            path = _file(self.folder.payloads, payload.round, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, payload.data)
        self._written[name] = _checksum(payload.data)

    def _begin(self, round: int) -> None:
        """Begin another round, and remove the list of an earlier attempt at it."""
        self._round, self._written = round, {}
        with self.folder.writing(f"the payloads of round {round}"):
            (_folder(self.folder.payloads, round) / _SUMS).unlink(missing_ok=True)

    def close(self, round: int) -> str | None:
        """Write the list of a round's kept messages, and return its checksum; ``None``: nothing was kept."""
        if round != self._round or not self._written:
            return None
        names = {_file(self.folder.payloads, round, name).name: checksum for name, checksum in self._written.items()}
        data = "".join(f"{checksum}  {name}\n" for name, checksum in sorted(names.items())).encode()
        write_atomically(_folder(self.folder.payloads, round) / _SUMS, data)
        return _checksum(data)


class PayloadStore:
    """Reads what :class:`PayloadKeeper` wrote, as far as a round's record confirms it. Other files are ignored.

    Args:
        path: the folder ``payloads`` of a run, which may not exist.
        sums: round -> checksum of the list of its messages.
        uploads: which uploads are read: those that were sent, or those that were held back for a secure sum.
    """

    def __init__(self, path: Path, sums: Mapping[int, str], uploads: Literal["up", "hidden"] = "up") -> None:
        self.path, self.sums, self._upload = path, sums, _CLIENT_PREFIXES[uploads]
        self._listed = cache(self._read_list)

    @classmethod
    def of(cls, folder: RunFolder, uploads: Literal["up", "hidden"] = "up") -> Self:
        """The payloads of a run; raises ``Damaged`` if its records are lost."""
        sums = {record["round"]: record["payloads"] for record in folder.records() if "payloads" in record}
        return cls(folder.payloads, sums, uploads)

    def rounds(self) -> list[int]:
        """The rounds (1-based, ascending) with at least one upload.

        Raises:
            Damaged: a file is missing, or is not what was written. The methods below raise it too.
        """
        return [round for round in sorted(self.sums) if self.clients(round)]

    def clients(self, round: int) -> list[int]:
        """The clients whose upload of a round was kept, ascending."""
        return _numbers(self._upload, (Path(name).stem for name in self._listed(round)))

    def broadcast(self) -> Sealed | None:
        """The initial model as it was broadcast in round 0; ``None``: the method sends none, or it was not kept."""
        return self._read(0, _BROADCAST)

    def download(self, round: int) -> Sealed | None:
        """The download of a round; ``None``: there was none, or it was not kept."""
        return self._read(round, _DOWNLOAD)

    def upload(self, round: int, client: int) -> Sealed:
        """A client's upload in a round.

        Raises:
            UsageError: it was not kept; the message says what was kept, or how to keep payloads.
            Damaged: its file is not what was written.
        """
        sealed = self._read(round, f"{self._upload}{client:04d}")
        if sealed is not None:
            return sealed
        if not (rounds := self.rounds()):
            raise UsageError(f"{self.path.parent} kept no uploads; train with --keep-payloads default, all or rounds such as 1,5")
        if round not in rounds:
            raise UsageError(f"{self.path.parent} kept no uploads of round {round}, but of rounds {_listed(rounds)}")
        kept = _listed(self.clients(round))
        raise UsageError(f"{self.path.parent} kept no upload of client {client} in round {round}, but of clients {kept}")

    def mean(self, round: int) -> Sealed | None:
        """The mean upload of a round's secure sum; ``None``: there was none, or it was not kept."""
        return self._read(round, _SUM)

    def report(self, round: int, client: int) -> Sealed | None:
        """A client's report in a round; ``None``: it was not kept."""
        return self._read(round, f"{_REPORT}{client:04d}")

    def statistics(self) -> list[Sealed]:
        """The messages that crossed before round 1 and were kept, by kind and client."""
        names = sorted(Path(name).stem for name in self._listed(0))
        read = (self._read(0, name) for kind in _STATISTICS for name in names if name.partition("-")[0] == kind)
        return [message for message in read if message is not None]

    def files(self) -> list[Path]:
        """All files, in any order."""
        return list(self.path.glob("round-*/*.safetensors"))

    def verify(self) -> None:
        """Compare all files with their checksums; raises ``Damaged`` if one does not match."""
        for round in self.sums:
            for name in self._listed(round):
                self._bytes(round, name)

    @property
    def nbytes(self) -> int:
        """Bytes on disk of all files."""
        return sum(file.stat().st_size for file in self.files())

    def _read(self, round: int, name: str) -> Sealed | None:
        path = _file(self.path, round, name)
        data = self._bytes(round, path.name)
        if data is None:
            return None
        try:
            sealed = unseal(data)
            expected = _file(self.path, sealed.round, _name(_direction(name), sealed))
        except ValueError as error:
            raise Damaged(f"{path} is damaged: {error}") from None
        if expected != path:
            raise Damaged(f"{path} is damaged: its content says it is {expected.relative_to(self.path)}")
        return sealed

    def _bytes(self, round: int, name: str) -> bytes | None:
        """The content of a file; ``None``: it was not kept."""
        path, listed = _folder(self.path, round) / name, self._listed(round)
        if name not in listed:
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise Damaged(f"{path} is missing") from None
        except OSError as error:
            raise Damaged(f"cannot read {path}: {error.strerror}") from None
        if listed[name] != _checksum(data):
            raise Damaged(f"{path} is damaged: its checksum does not match")
        return data

    def _read_list(self, round: int) -> dict[str, str]:
        """File name -> checksum of a round's kept messages."""
        if round not in self.sums:
            return {}
        path = _folder(self.path, round) / _SUMS
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise Damaged(f"{path} is missing") from None
        except OSError as error:
            raise Damaged(f"cannot read {path}: {error.strerror}") from None
        lines = [re.fullmatch(rb"([0-9a-f]{64})  ([a-z0-9-]+\.safetensors)", line) for line in data.split(b"\n")[:-1]]
        if _checksum(data) != self.sums[round] or None in lines:
            raise Damaged(f"{path} is damaged: its checksum does not match")
        return {line[2].decode(): line[1].decode() for line in lines if line is not None}


def _direction(name: str) -> Kept:
    if name.partition("-")[0] in _STATISTICS:
        return "statistics"
    return next(
        (direction for direction, prefix in _CLIENT_PREFIXES.items() if name.startswith(prefix)),
        "sum" if name == _SUM else "down",
    )


def _name(direction: Kept, payload: Sealed) -> str:
    if direction == "statistics":
        return payload.kind if payload.client is None else f"{payload.kind}-{payload.client:04d}"
    if direction == "down":
        return _DOWNLOAD if payload.round else _BROADCAST
    if direction == "sum":
        return _SUM
    if payload.client is None:
        raise ValueError("an upload must say its client: Payload(..., client=update.client)")
    return f"{_CLIENT_PREFIXES[direction]}{payload.client:04d}"


def _folder(payloads: Path, round: int) -> Path:
    return payloads / f"{_ROUND}{round:04d}"


def _file(payloads: Path, round: int, name: str) -> Path:
    return _folder(payloads, round) / f"{name}.safetensors"


def _numbers(prefix: str, names: Iterable[str]) -> list[int]:
    """The numbers in the names that consist of the prefix and a number, ascending."""
    matches = [re.fullmatch(f"{prefix}([0-9]{{4,9}})", name) for name in names]
    return sorted(int(match[1]) for match in matches if match and f"{int(match[1]):04d}" == match[1])


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _listed(numbers: Sequence[int], most: int = 16) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown}, ... ({len(numbers)} in all)"
