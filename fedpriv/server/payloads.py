"""The sealed payloads that a run keeps: byte for byte what crossed the wire, so that what it gave away can be measured later.

``payloads/round-0000/broadcast.safetensors`` is the initial model, ``payloads/round-0003/download.safetensors`` what every
participant of round 3 was sent, ``payloads/round-0003/client-0007.safetensors`` what client 7 uploaded, and
``payloads/round-0003/report-0007.safetensors`` what it reported beside it. Nothing else is stored: an audit derives the data
behind an upload from the run's config again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.files import Damaged, write_atomically
from fedpriv.server.run_folder import RunFolder
from fedpriv.wire import Direction, Sealed, unseal

UPLOADS_BY_DEFAULT = 3
"""Uploads of a round that ``wire.keep_payloads: default`` keeps."""

_BROADCAST, _DOWNLOAD, _CLIENT, _REPORT = "broadcast", "download", "client-", "report-"


def rounds_to_keep(config: RunConfig) -> Collection[int]:
    """The rounds (1-based) of which ``wire.keep_payloads`` wants payloads."""
    wanted, last = config.wire.keep_payloads, config.train.rounds
    if wanted == "none":
        return ()
    if wanted == "all":
        return range(1, last + 1)
    if wanted == "default":
        return {1, (last + 1) // 2, last}
    return wanted


class PayloadKeeper:
    """A tap that writes into the run folder what ``wire.keep_payloads`` says.

    By default the uploads and reports of the first clients asked in a round are kept. A round that is run again after a
    kill writes the same files with the same bytes.
    """

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self.folder = folder
        self._rounds = rounds_to_keep(config)
        self._uploads = UPLOADS_BY_DEFAULT if config.wire.keep_payloads == "default" else config.data.clients
        self._round = -1
        self._written: set[str] = set()

    def __call__(self, direction: Direction, payload: Sealed) -> None:
        if not self._rounds or payload.round not in (0, *self._rounds):
            return
        if payload.round != self._round:
            self._round, self._written = payload.round, set()
        name = _name(direction, payload)
        alike = sum(known.startswith(name.partition("-")[0]) for known in self._written)
        if name in self._written or (direction != "down" and alike == self._uploads):
            return
        with self.folder.writing(f"the payloads of round {payload.round}"):
            path = _file(self.folder.payloads, payload.round, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, payload.data)
        self._written.add(name)


class PayloadStore:
    """Reads what :class:`PayloadKeeper` wrote.

    Args:
        path: the folder ``payloads`` of a run; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rounds(self) -> list[int]:
        """The rounds (1-based, ascending) with at least one upload."""
        numbers = sorted(int(folder.name.removeprefix("round-")) for folder in self.path.glob("round-[0-9]*"))
        return [round for round in numbers if self.clients(round)]

    def clients(self, round: int) -> list[int]:
        """The clients whose upload of a round was kept, ascending."""
        found = _file(self.path, round, _CLIENT).parent.glob(f"{_CLIENT}*.safetensors")
        return sorted(int(file.stem.removeprefix(_CLIENT)) for file in found)

    def broadcast(self) -> Sealed | None:
        """The initial model as every client was sent it in round 0; ``None`` where the method sends none, or nothing was kept."""
        return self._read(0, _BROADCAST)

    def download(self, round: int) -> Sealed | None:
        """The download of a round; ``None`` where there was none, or it was not kept."""
        return self._read(round, _DOWNLOAD)

    def upload(self, round: int, client: int) -> Sealed:
        """A client's upload in a round.

        Raises:
            UsageError: it was not kept; says what was, or how to keep payloads.
            Damaged: its file is not what was written.
        """
        sealed = self._read(round, f"{_CLIENT}{client:04d}")
        if sealed is not None:
            return sealed
        if not (rounds := self.rounds()):
            raise UsageError(f"{self.path.parent} kept no uploads; train with --keep-payloads default, all or rounds such as 1,5")
        if round not in rounds:
            raise UsageError(f"{self.path.parent} kept no uploads of round {round}, but of rounds {_listed(rounds)}")
        kept = _listed(self.clients(round))
        raise UsageError(f"{self.path.parent} kept no upload of client {client} in round {round}, but of clients {kept}")

    def report(self, round: int, client: int) -> Sealed | None:
        """What a client reported beside its upload in a round; ``None``: it was not kept."""
        return self._read(round, f"{_REPORT}{client:04d}")

    def files(self) -> list[Path]:
        """All files, in no order."""
        return list(self.path.glob("round-*/*.safetensors"))

    @property
    def nbytes(self) -> int:
        """Bytes on disk of all of them."""
        return sum(file.stat().st_size for file in self.files())

    def _read(self, round: int, name: str) -> Sealed | None:
        path = _file(self.path, round, name)
        try:
            sealed = unseal(path.read_bytes())
            says = _file(self.path, sealed.round, _name(_direction(name), sealed))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Damaged(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise Damaged(f"{path} is damaged: {error}") from None
        if says != path:
            raise Damaged(f"{path} is damaged: by its facts it is {says.relative_to(self.path)}")
        return sealed


def _direction(name: str) -> Direction:
    return "up" if name.startswith(_CLIENT) else "report" if name.startswith(_REPORT) else "down"


def _name(direction: Direction, payload: Sealed) -> str:
    if direction == "down":
        return _DOWNLOAD if payload.round else _BROADCAST
    if payload.client is None:
        raise ValueError("an upload must say its client: Payload(..., client=turn.client)")
    return f"{_CLIENT if direction == 'up' else _REPORT}{payload.client:04d}"


def _file(folder: Path, round: int, name: str) -> Path:
    return folder / f"round-{round:04d}" / f"{name}.safetensors"


def _listed(numbers: Sequence[int], most: int = 16) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown}, ... ({len(numbers)} in all)"
