"""A client's part in a run whose setup it has accepted: net, data, private states, and masks of secure aggregation."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from fedpriv.agreement import Agreement, Declared
from fedpriv.client.client import Client
from fedpriv.client.receiving import Received, receive
from fedpriv.client.resident import Resident
from fedpriv.client.store import ClientStore
from fedpriv.client.suspicion import secret_generator
from fedpriv.config import RunConfig
from fedpriv.data.augmentation.augment import augmentation
from fedpriv.data.federated import ClientData
from fedpriv.deploy.facts import DisjointClients
from fedpriv.errors import FedprivError
from fedpriv.files import Damaged, load_json, remembered
from fedpriv.privacy.accountant import epsilon, history_of
from fedpriv.simulation.inputs.loading import Loaded
from fedpriv.simulation.run_setup import settle
from fedpriv.wire import Sealed

if TYPE_CHECKING:
    from fedpriv.client.masking import Masking


class DeclinedTest(FedprivError):
    """The client does not take a test. The round goes on without its accuracy."""


class AgreedRun:
    """One client's part in a run.

    Args:
        declared: what the server says about all clients' data.
        loaded: this client's data.
        secret: this client's secret for the run.
        checksum: of the setup that server and clients have agreed on.
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
        checksum: str,
    ) -> None:
        self.name, self.store, self._number, self._checksum = name, store, number, checksum
        sizes = {number: size} if (size := loaded.data.size(number)) else {}
        agreement, net = settle(config, loaded.prepared.build, declared, sizes, DisjointClients(sizes), loaded.device)
        augment = augmentation(config.data.augment or "none", loaded.dataset.mean, loaded.dataset.std)
        self.agreement, self.initial = agreement, agreement.initial
        self.initial_digest, self.agreement_fingerprint = initial_digest(agreement), agreement.config.fingerprint()
        self.model = Resident(net, agreement.space, loaded.device)
        data = ClientData(loaded.data, number)
        self.client = Client(number, agreement, data, store, augment, secret, checksum, self._check_repeated)
        self._broadcast: str | None = None
        self.masking = _masking(number, agreement, name, store.folder.parent)
        torch.set_num_threads(config.threads)

    def take_broadcast(self, message: Sealed) -> None:
        """Set the initial model.

        Raises:
            FedprivError: the message holds no model, or not the model that was set before.
        """
        if self._broadcast not in (None, message.digest):
            raise FedprivError(f"client {self._number} has the initial model of run {self.name}, and this is another")
        self.initial = receive(self.agreement, 0, message, self.agreement.initial, secret_generator()).start
        self._broadcast = message.digest

    def received(self, round: int, message: Sealed | None) -> Received:
        """Decode a download."""
        return receive(self.agreement, round, message, self.initial, secret_generator())

    def _check_repeated(self, what: Literal["update", "test"], round: int, started: str) -> None:
        """Refuse a second local update of a round, if it differs and noise is added: it would cost privacy that the ledger does
        not account for, and averaging would cancel the noise. An identical request gets the same noise.

        Refuse a second test, too: with models of its choice, a server reads test samples out of the accuracies.

        Args:
            started: digest of all that the local update or test starts from.

        Raises:
            FedprivError: the client trained in this round from another message, state or data.
            Damaged: the ledger has lost a local update.
            DeclinedTest: the client was tested in this round on another message, state or data.
        """
        folder, other = self.store.folder.parent, "with another message, from another state or on other data"
        if what == "test":
            if not remembered(folder / "tested.json", str(round), started):
                raise DeclinedTest(f"client {self._number} was tested in round {round} {other}, and is tested once a round")
            return
        private = self.agreement.config.privacy.level == "sample"
        if not private and not self.agreement.transforms:
            return
        if private:
            self._check_ledger(round, folder / "trained.json")
        if not remembered(folder / "trained.json", str(round), started):
            raise FedprivError(
                f"client {self._number} has trained in round {round} {other}: it adds noise to one local update a round"
            )

    def _check_ledger(self, round: int, trained: Path) -> None:
        """Check that the ledger has every round of ``trained``, so that a lost ledger does not start again at zero.

        A round is written to the ledger before ``trained``, so a kill between the two loses nothing.
        """
        spent = self.store.spent(self._number)
        rounds = map(int, load_json(trained) if trained.exists() else {})
        if lost := sorted(number for number in rounds if number not in spent):
            raise Damaged(
                f"{self.store.ledger_file(self._number)} does not have what client {self._number} spent on privacy in round "
                f"{lost[0]}, so it does not train in run {self.name} until that file is put back"
            )
        if round not in spent:
            self.store.book(self._number, round, [])

    def epsilon(self) -> float | None:
        """What this client has spent of sample-level privacy, by its own ledger; ``None``: the run has none."""
        privacy = self.agreement.config.privacy
        if privacy.level != "sample":
            return None
        steps = [step for charges in self.store.spent(self._number).values() for step in charges]
        history = history_of(privacy.noise or 0.0, tuple(steps), self.agreement.spent_before)
        return epsilon(history, privacy.delta, privacy.accountant) if history else 0.0

    def context(self, message: Sealed | None) -> bytes:
        """Checksums of the setup, the initial model and a round's message, which secure aggregation binds its keys to."""
        return f"{self._checksum}, {self._broadcast}, {message and message.digest}".encode()


def _masking(number: int, agreement: Agreement, run: str, folder: Path) -> Masking | None:
    """The client's masks for secure aggregation; ``None`` if the run does not use it."""
    if not agreement.config.wire.secure_aggregation:
        return None
    from fedpriv.client.masking import Masking

    return Masking(number, agreement, run, folder / "uploads.json", folder.parent.parent / "summed")


def initial_digest(agreement: Agreement) -> str:
    """SHA-256 (hex) of the initial model, as it is drawn from the seed, and its constants."""
    constants = [tensor.double().flatten() for tensor in agreement.constants.values()]
    drawn = agreement.initial if agreement.drawn is None else agreement.drawn
    return row_digest(torch.cat([drawn.cpu().double(), *constants]))


def row_digest(row: torch.Tensor) -> str:
    """SHA-256 (hex) of a row of numbers ``(p,)``."""
    return hashlib.sha256(row.detach().cpu().numpy().tobytes()).hexdigest()
