"""The server's part in secure aggregation: it passes messages between clients, and learns only the sum of their uploads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.secure import messages
from fedpriv.secure.layout import Layout, Sums
from fedpriv.secure.protocol import PublicKeys, majority, unmasked
from fedpriv.secure.protocol_checks import FEWEST, as_sent, expected_mean, takes_a_step
from fedpriv.server.clients import Clients
from fedpriv.wire import Kind, Payload, Sealed, Tap, seal
from fedpriv.wire.message import Refused

T = TypeVar("T")


@dataclass(frozen=True)
class SecureSumResult:
    """What the server learns of a round's uploads.

    Attributes:
        clients: the clients whose uploads are in the sum, ascending.
        loss: the clients' mean training loss; ``None``: no client took a step.
        mean: a stand-in upload: merging one copy of it for each client gives the same model as merging the clients' uploads. It
            is written as a message into the run folder, but never crosses the wire.
    """

    clients: tuple[int, ...]
    loss: float | None
    mean: Sealed


@dataclass(frozen=True)
class SecureSum:
    """Sums the uploads of a round (:mod:`fedpriv.secure.protocol`).

    Args:
        label: bytes that identify the run and the round.
        received: what every client was sent, by name.
        tap: called with every message that crosses.
        warn: called with a line for each client that drops out.
        on_opened: called with the clients of the sum as soon as enough shares have arrived for the server to know it, whether or
            not the sum is used.
        opened_before: the clients of a secure sum that was opened for the present model but gave no new one; ``None``: there is
            none. The difference of two sums for one model over different clients may show single uploads.
    """

    agreement: Agreement
    clients: Clients
    label: bytes
    round: int
    received: Mapping[str, Tensor]
    tap: Tap
    warn: Callable[[str], None]
    on_opened: Callable[[tuple[int, ...]], None]
    opened_before: tuple[int, ...] | None = None

    def sum(self, keys: Mapping[int, PublicKeys], examples: Mapping[int, int]) -> SecureSumResult:
        """Sum the uploads that the clients hold back.

        Args:
            keys: the public keys that each client sent in place of its upload.
            examples: the clients' numbers of training samples.

        Raises:
            Refused: the sum may not be opened (:meth:`_check_members`), cannot be opened, or is not a valid upload of this run.
        """
        round, keys = self.round, self._distinct(keys)
        layout = Layout(self.agreement, self.received)

        # 1. Each client gets all public keys, and answers with encrypted shares of its secrets for each other client.
        all_keys = {client: messages.public(key) for client, key in keys.items()}
        key_tables = {client: messages.table("keys", round, client, all_keys) for client in keys}
        encrypted = self._ask(key_tables, lambda client, answer: self._rows(answer, "letters", client, keys.keys() - {client}))

        # 2. Each client gets the shares that are meant for it, and answers with its masked upload.
        share_tables = {
            receiver: messages.table(
                "letters", round, receiver, {sender: encrypted[sender][receiver] for sender in encrypted if sender != receiver}
            )
            for receiver in encrypted
        }
        uploads = self._ask(share_tables, lambda client, answer: messages.words_of(answer, round, client, layout.size))
        dropped = encrypted.keys() - uploads.keys()
        active = tuple(sorted(uploads))
        self._check_members(active, len(keys), examples)

        # 3. Each client gets the lists of active and dropped clients, and confirms them to the other active ones.
        lists = {client: messages.members(round, client, uploads.keys(), dropped) for client in uploads}
        confirmed = self._ask(lists, lambda client, answer: messages.rows_of(answer, "confirmed", round, client))

        # 4. Each client gets the confirmations, and reveals one share of each client's secrets.
        confirmation_tables = {
            receiver: messages.table(
                "confirmed", round, receiver, {sender: rows[receiver] for sender, rows in confirmed.items() if receiver in rows}
            )
            for receiver in confirmed
        }
        answered = list[int]()

        def shares_of(client: int, answer: Sealed) -> dict[int, bytes]:
            answered.append(client)
            return self._rows(answer, "shares", client, encrypted.keys())

        shares = self._ask(confirmation_tables, shares_of)
        if len(answered) >= majority(len(keys)):  # count refused answers too: the server has seen their shares
            self.on_opened(active)
        sums = layout.sums(unmasked(uploads, encrypted, keys, shares, self.label))
        mean = self._mean(sums, len(active), sum(examples[client] for client in active))
        return SecureSumResult(active, sums.loss, mean)

    def _check_members(self, active: tuple[int, ...], asked: int, examples: Mapping[int, int]) -> None:
        """Refuse a sum that would give no model, or that, together with an earlier sum, would show single uploads.

        Args:
            active: the clients that sent a masked upload.
            asked: how many clients began.
            examples: the clients' numbers of training samples.
        """
        if len(active) < (needed := majority(asked)):
            raise Refused(f"{len(active)} of {asked} clients are left for the sum; {needed} are needed")
        if len(active) < (needed := self.agreement.config.train.min_uploads):
            raise Refused(f"{len(active)} of {asked} clients are left for the sum; {needed} are needed (train.min_uploads)")
        if (trained := sum(takes_a_step(self.agreement, examples[client]) for client in active)) < FEWEST:
            raise Refused(
                f"{len(active)} clients are left for the sum, of whom {trained} have a batch that is large enough to train on; "
                f"{FEWEST} are needed"
            )
        if self.opened_before not in (None, active):
            raise Refused(
                "an earlier round opened a sum for this model, of other clients; the two sums together may show single uploads"
            )

    def _distinct(self, keys: Mapping[int, PublicKeys]) -> dict[int, PublicKeys]:
        """Drop clients whose key equals another's; if they stayed, every other client would refuse to go on."""
        owners: dict[bytes, int] = {}
        distinct = {}
        for client, sent in sorted(keys.items()):
            others = [owners[key] for key in (sent.encryption, sent.masking) if key in owners]
            if others:
                self.warn(f"round {self.round}: the keys of client {client} are refused: one of them is client {others[0]}'s")
                continue
            distinct[client] = sent
            owners |= {sent.encryption: client, sent.masking: client}
        return distinct

    def _mean(self, sums: Sums, count: int, examples: int) -> Sealed:
        """The mean upload of a sum, checked as an upload is."""
        tensors = self.agreement.method.mean_upload(sums.tensors, self.received, sums.weight, count)
        expected = expected_mean(self.agreement, self.round, self.received, count)
        rounded = as_sent(tensors, expected)
        sealed = seal(Payload(rounded, self.round, None, "weights", expected.examples and examples, expected.transforms))
        expected.check(sealed)
        return sealed

    def _rows(self, answer: Sealed, kind: Kind, client: int, about: Collection[int]) -> dict[int, bytes]:
        """Read a table; it must have exactly one row for each client in ``about``."""
        rows = messages.rows_of(answer, kind, self.round, client)
        if rows.keys() != set(about):
            strange = min(rows.keys() ^ set(about))
            raise Refused(f"its message of kind {kind} has {'a' if strange in rows else 'no'} row for client {strange}")
        return rows

    def _ask(self, questions: Mapping[int, Sealed], read: Callable[[int, Sealed], T]) -> dict[int, T]:
        """Send each client its message, and read the answers; clients whose answer is missing or refused drop out.

        Returns:
            Client -> its answer, ascending.
        """
        answers: dict[int, T] = {}
        for client, answer in self.clients.step(self.round, questions):
            self.tap("up", answer)
            try:
                if client not in questions or client in answers:
                    raise Refused("it was not asked, or has answered before")
                answers[client] = read(client, answer)
            except Refused as reason:
                self.warn(f"round {self.round}: what client {client} sent for the sum is refused: {reason}")
        for client in questions.keys() - set(self.clients.not_sent()):
            self.tap("down", questions[client])
        return {client: answers[client] for client in sorted(answers)}
