"""A sum behind masks, at the server: it passes messages between clients, and learns only the sum of their words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedpriv.noise_source import Words
from fedpriv.secure import messages
from fedpriv.secure.protocol import PublicKeys, majority, unmasked
from fedpriv.wire import Kind, Refused, Sealed

T = TypeVar("T")
Step = Callable[[Mapping[int, Sealed]], Iterable[tuple[int, Sealed]]]
"""Sends each client its message, and yields (client, answer) in the order of arrival."""


@dataclass(frozen=True)
class MaskedSum:
    """The conversation of a secure sum (:mod:`fedpriv.secure.protocol`), after the clients' public keys have arrived.

    Attributes:
        label: names the sum; keys and encrypted shares are valid for it alone.
        warn: called with a line for each client that drops out.
        check: called with the clients that sent masked words, and the number of those that began, before the sum is opened;
            raises ``Refused`` if it must not be.
        on_opened: called with the clients of the sum as soon as enough shares have arrived for the server to know it, whether or
            not the sum is used.
    """

    step: Step
    round: int
    label: bytes
    warn: Callable[[str], None]
    check: Callable[[tuple[int, ...], int], None]
    on_opened: Callable[[tuple[int, ...]], None] = lambda clients: None

    def sum(self, keys: Mapping[int, PublicKeys], size: int) -> tuple[tuple[int, ...], Words]:
        """The clients of the sum, ascending, and the sum of their words ``(size,)``.

        Args:
            keys: the public keys that each client sent.

        Raises:
            Refused: the sum may not or cannot be opened.
        """
        round, keys = self.round, self._distinct(keys)

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
        uploads = self._ask(share_tables, lambda client, answer: messages.words_of(answer, round, client, size))
        dropped = encrypted.keys() - uploads.keys()
        active = tuple(sorted(uploads))
        self.check(active, len(keys))

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
        return active, unmasked(uploads, encrypted, keys, shares, self.label)

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
        for client, answer in self.step(questions):
            try:
                if client not in questions or client in answers:
                    raise Refused("it was not asked, or has answered before")
                answers[client] = read(client, answer)
            except Refused as reason:
                self.warn(f"round {self.round}: what client {client} sent for the sum is refused: {reason}")
        return {client: answers[client] for client in sorted(answers)}
