"""Files in which clients keep their private state between local updates, and what they spent on privacy.

The private state after a local update is a file of its own, which is written once. The server says which local update a client
continues from (its last merged one), so a local update that is repeated starts from the same state and gives the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from fedpriv.errors import FedprivError
from fedpriv.files import Damaged, load_json, load_tensors, save_json, save_tensors, write_atomically
from fedpriv.wire.report import Charge

CACHE = 32 * 2**20
"""Bytes of states that stay in memory; the others are read on access."""


class ClientStore:
    """The private states of all clients on this machine.

    Args:
        folder: created when the first state is stored.
        memory: bytes of states that may be cached in memory.
        hint: for the error message if it cannot be written.
    """

    def __init__(self, folder: Path, memory: int = CACHE, hint: str = "make room, then `fedpriv resume`") -> None:
        self.folder, self.hint = folder, hint
        self._cache: OrderedDict[Path, dict[str, Tensor]] = OrderedDict()
        self._room = memory

    def load(self, client: int, round: int) -> dict[str, Tensor]:
        """The client's private state after its local update in a round.

        Raises:
            FedprivError: it is missing or damaged.
        """
        path = self._state_file(client, round)
        if path not in self._cache:
            try:
                self._remember(path, load_tensors(path))
            except Damaged as error:
                raise FedprivError(f"client {client} cannot continue from its local update in round {round}: {error}") from None
        self._cache.move_to_end(path)
        return self._cache[path]

    def keep(self, client: int, round: int, state: Mapping[str, Tensor]) -> None:
        """Store the client's private state after a local update."""
        path = self._state_file(client, round)
        owned = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        with self._writing(f"the private state of client {client}"):
            save_tensors(path, owned)
        self._remember(path, owned)

    def damaged(self, states: Mapping[int, int]) -> str | None:
        """A line on the first of these states (client -> round) that cannot be read; ``None``: all can."""
        for client, round in states.items():
            try:
                load_tensors(self._state_file(client, round))
            except Damaged as error:
                return str(error)
        return None

    def forget(self, states: Iterable[tuple[int, int]]) -> None:
        """Remove states (client, round) that are not needed any more."""
        for client, round in states:
            self._drop(self._state_file(client, round))

    def keep_only(self, states: Iterable[tuple[int, int]]) -> None:
        """Remove all other states than these (client, round), such as those of a round that was killed."""
        needed = {self._state_file(client, round) for client, round in states}
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path not in needed and not (path.name.startswith("spent-") and path.suffix == ".json"):
                self._drop(path)

    def export(self, client: int, round: int | None) -> dict[str, bytes]:
        """A client's files by name, for a store on another machine: its state after a round, if any, and what it spent."""
        paths = [self.ledger_file(client), *([] if round is None else [self._state_file(client, round)])]
        return {path.name: path.read_bytes() for path in paths if path.exists()}

    def take(self, files: Mapping[str, bytes]) -> None:
        """Store the files that another store exported."""
        for name, data in files.items():
            with self._writing("a client's private state"):
                write_atomically(self.folder / name, data)
            self._forget(self.folder / name)

    def clear(self) -> None:
        """Remove everything."""
        for path in list(self.folder.iterdir()):
            self._drop(path)

    # --- sample-level DP ---------------------------------------------------------------------------------------------

    def ledger_file(self, client: int) -> Path:
        """The file of what a client spent."""
        return self.folder / f"spent-{client:06d}.json"

    def spent(self, client: int) -> dict[int, list[Charge]]:
        """(Sampling rate, steps) of each phase of DP-SGD, by round, also of local updates that were not merged."""
        path = self.ledger_file(client)
        stored = load_json(path) if path.exists() else {}
        return {int(round): [(rate, int(steps)) for rate, steps in charges] for round, charges in stored.items()}

    def check_spent(self, client: int, steps: int) -> None:
        """Raise :class:`Damaged` if fewer steps of DP-SGD are booked than the ``steps`` that the server knows of."""
        if sum(number for charges in self.spent(client).values() for _, number in charges) < steps:
            path = self.ledger_file(client)
            raise Damaged(
                f"{path} is damaged: it does not have all that client {client} spent" if path.exists() else f"{path} is missing"
            )

    def book(self, client: int, round: int, charges: Sequence[Charge]) -> None:
        """Book what a local update spends; repeated, it has the same noise and spends nothing more."""
        with self._writing(f"what client {client} spent"):
            save_json(self.ledger_file(client), {**self.spent(client), round: list(charges)})

    # -----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise FedprivError(
                f"cannot write {what} in {self.folder}: {error.strerror}; what was written before is whole: {self.hint}"
            ) from None

    def _remember(self, path: Path, state: dict[str, Tensor]) -> None:
        self._forget(path)
        self._cache[path] = state
        self._room -= _size(state)
        while self._room < 0 and len(self._cache) > 1:
            self._forget(next(iter(self._cache)))

    def _forget(self, path: Path) -> None:
        state = self._cache.pop(path, None)
        if state is not None:
            self._room += _size(state)

    def _drop(self, path: Path) -> None:
        self._forget(path)
        path.unlink(missing_ok=True)

    def _state_file(self, client: int, round: int) -> Path:
        return self.folder / f"client-{client:06d}-{round:06d}.safetensors"


def _size(state: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())
