"""A run to whose terms a client has agreed, as it is played there: net, data, private states and part in secure sums."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from fedpriv.agreement import Agreement, Declared
from fedpriv.client.client import Client, Received, receive
from fedpriv.client.resident import Resident
from fedpriv.client.store import ClientStore
from fedpriv.client.suspicion import secret_generator
from fedpriv.config import RunConfig
from fedpriv.data.augmentation.augment import augmentation
from fedpriv.data.federated import ClientData
from fedpriv.deploy.handshake import Apart
from fedpriv.errors import FedprivError
from fedpriv.files import Damaged, load_json, remembered
from fedpriv.simulation.run_setup import settle
from fedpriv.simulation.setup import Loaded
from fedpriv.wire import Sealed

if TYPE_CHECKING:
    from fedpriv.client.masking import Masking


class Untested(FedprivError):
    """A test that a client does not take. It is no error for the server: the round goes on without the accuracy."""


class AgreedRun:
    """A run at one of its clients.

    Args:
        declared: what the server says of all clients' data.
        loaded: this client's data.
        secret: of the run, at this client.
        terms: checksum of all that the server and its clients have agreed on.
    """

    def __init__(
        self,
        name: str,
        number: int,
        config: RunConfig,
        declared: Declared,
        loaded: Loaded,
        store: ClientStore,
        secret: bytes,
        terms: str,
    ) -> None:
        self.name, self.store, self._number, self._terms = name, store, number, terms
        sizes = {number: size} if (size := loaded.data.size(number)) else {}
        agreement, net = settle(config, loaded.prepared.build, declared, sizes, Apart(sizes), loaded.device)
        augment = augmentation(config.data.augment or "none", loaded.dataset.mean, loaded.dataset.std)
        self.agreement, self.initial = agreement, agreement.initial
        self.initial_digest, self.agreement_fingerprint = initial_digest(agreement), agreement.config.fingerprint()
        self.model = Resident(net, agreement.space, loaded.device)
        data = ClientData(loaded.data, number)
        self.client = Client(number, agreement, data, store, augment, secret, terms, self._check_repeated)
        self._broadcast: str | None = None
        self.masking = _masking(number, agreement, name, store.folder.parent)
        torch.set_num_threads(config.threads)

    def take_broadcast(self, message: Sealed) -> None:
        """Start from the model that every client is sent.

        Raises:
            FedprivError: it is none, or another than the one before.
        """
        if self._broadcast not in (None, message.digest):
            raise FedprivError(f"client {self._number} has the initial model of run {self.name}, and this is another")
        self.initial = receive(self.agreement, 0, message, self.agreement.initial, secret_generator()).start
        self._broadcast = message.digest

    def received(self, round: int, message: Sealed | None) -> Received:
        """A download as the client reads it."""
        return receive(self.agreement, round, message, self.initial, secret_generator())

    def _check_repeated(self, what: Literal["update", "test"], round: int, started: str) -> None:
        """Refuse a second local update in a round where what is sent depends on draws: it would spend more of an epsilon than the
        ledger books, and the mean of many has less noise. A local update that starts from exactly the same has the same draws.

        Refuse a second test, too: with models of its choice, a server reads test samples out of their accuracies.

        Raises:
            FedprivError: the round was played with another message, from another state, or on other samples.
            Damaged: the ledger does not know of a local update any more.
            Untested: it was tested so.
        """
        folder, other = self.store.folder.parent, "with another message, from another state or on other data"
        if what == "test":
            if not remembered(folder / "tested.json", str(round), started):
                raise Untested(f"client {self._number} was tested in round {round} {other}, and is tested once a round")
            return
        private = self.agreement.config.privacy.level == "sample"
        if not private and not self.agreement.transforms:
            return
        if private:
            self._check_ledger(round, folder / "asked.json")
        if not remembered(folder / "asked.json", str(round), started):
            raise FedprivError(f"client {self._number} has played round {round} {other}: it adds noise to one turn a round")

    def _check_ledger(self, round: int, asked: Path) -> None:
        """Refuse to begin again at zero where the ledger is lost.

        A round is in the ledger before it is in ``asked``, so a kill between the two is no loss.
        """
        spent = self.store.spent(self._number)
        if lost := sorted(int(one) for one in (load_json(asked) if asked.exists() else {}) if int(one) not in spent):
            raise Damaged(
                f"{self.store.ledger_file(self._number)} does not have what client {self._number} spent on privacy in round "
                f"{lost[0]}, so it takes no local update in run {self.name} until that file is put back"
            )
        if round not in spent:
            self.store.book(self._number, round, [])

    def told(self, message: Sealed | None) -> bytes:
        """What the server has sent the client for a round, and before the first one, by checksums."""
        return f"{self._terms}, {self._broadcast}, {message and message.digest}".encode()


def _masking(number: int, agreement: Agreement, run: str, folder: Path) -> Masking | None:
    """A client's part in secure sums; ``None``: the run has none."""
    if not agreement.config.wire.secure_aggregation:
        return None
    from fedpriv.client.masking import Masking

    return Masking(number, agreement, run, folder / "uploads.json", folder.parent.parent / "summed")


def initial_digest(agreement: Agreement) -> str:
    """SHA-256 (hex) of the initial model, with its constants."""
    constants = [one.double().flatten() for one in agreement.constants.values()]
    return digest_of(torch.cat([agreement.initial.cpu().double(), *constants]))


def digest_of(row: torch.Tensor) -> str:
    """SHA-256 (hex) of a row of numbers ``(p,)``."""
    return hashlib.sha256(row.detach().cpu().numpy().tobytes()).hexdigest()
