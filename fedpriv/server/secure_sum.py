"""The server's part in a secure sum: it carries keys and letters between clients, and learns the sum of their uploads."""

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
class Summed:
    """What the server learns of a round's uploads.

    Attributes:
        clients: whose uploads are in the sum, ascending.
        loss: their mean training loss; ``None``: none of them took a step.
        mean: the upload of which as many copies merge as theirs do: a message for the run folder, which never crossed the wire.
    """

    clients: tuple[int, ...]
    loss: float | None
    mean: Sealed


@dataclass(frozen=True)
class SecureSum:
    """Sums the uploads of a round (:mod:`fedpriv.secure.protocol`).

    Args:
        label: names run and round.
        received: what every client had been sent, by name.
        crossed: called with every message that crosses.
        warn: called with a line for each client that drops out.
        opens: called with the clients of a sum once enough shares have come for the server to know it, whatever becomes of it.
        opened: those of a sum over the same model that was opened in an earlier round; ``None``: there is none. The difference of
            two such sums over other clients may show single uploads.
    """

    agreement: Agreement
    clients: Clients
    label: bytes
    round: int
    received: Mapping[str, Tensor]
    crossed: Tap
    warn: Callable[[str], None]
    opens: Callable[[tuple[int, ...]], None]
    opened: tuple[int, ...] | None = None

    def sum(self, keys: Mapping[int, PublicKeys], examples: Mapping[int, int]) -> Summed:
        """Sum the uploads that clients hold.

        Args:
            keys: what each of them sent in the place of its upload.
            examples: their numbers of training samples.

        Raises:
            Refused: no sum may be opened (:meth:`_check_members`), it does not open, or their mean is no upload of this run.
        """
        keys = self._different(keys)
        layout, all_keys = Layout(self.agreement, self.received), {one: messages.public(found) for one, found in keys.items()}
        questions = {one: messages.table("keys", self.round, one, all_keys) for one in keys}
        letters = self._ask(questions, lambda one, answer: self._rows(answer, "letters", one, keys.keys() - {one}))
        carried = {to: {of: sent[to] for of, sent in letters.items() if of != to} for to in letters}
        questions = {to: messages.table("letters", self.round, to, rows) for to, rows in carried.items()}
        uploads = self._ask(questions, lambda one, answer: messages.words_of(answer, self.round, one, layout.size))
        dropped = letters.keys() - uploads.keys()
        active = tuple(sorted(uploads))
        self._check_members(active, len(keys), examples)
        lists = {one: messages.members(self.round, one, uploads.keys(), dropped) for one in uploads}
        confirmed = self._ask(lists, lambda one, answer: messages.rows_of(answer, "confirmed", self.round, one))
        carried = {to: {of: sent[to] for of, sent in confirmed.items() if to in sent} for to in confirmed}
        questions = {to: messages.table("confirmed", self.round, to, rows) for to, rows in carried.items()}
        came = list[int]()

        def read(one: int, answer: Sealed) -> dict[int, bytes]:
            came.append(one)
            return self._rows(answer, "shares", one, letters.keys())

        shares = self._ask(questions, read)
        if len(came) >= majority(len(keys)):  # a table that is refused has shares, too
            self.opens(active)
        sums = layout.sums(unmasked(uploads, letters, keys, shares, self.label))
        return Summed(active, sums.loss, self._mean(sums, len(active), sum(examples[one] for one in active)))

    def _check_members(self, active: tuple[int, ...], asked: int, examples: Mapping[int, int]) -> None:
        """Refuse a sum before it is opened: one of which no model would come, or that would tell more beside an earlier one.

        Args:
            active: the clients that sent a masked upload.
            asked: how many began.
            examples: the clients' numbers of training samples.
        """
        if len(active) < (needed := majority(asked)):
            raise Refused(f"{len(active)} of {asked} clients are left for the sum; {needed} are needed")
        if len(active) < (least := self.agreement.config.train.min_uploads):
            raise Refused(f"{len(active)} of {asked} clients are left for the sum; {least} are needed (train.min_uploads)")
        if (trained := sum(takes_a_step(self.agreement, examples[one]) for one in active)) < FEWEST:
            raise Refused(
                f"{len(active)} clients are left for the sum, of whom {trained} have a batch that is large enough to train on; "
                f"{FEWEST} are needed"
            )
        if self.opened not in (None, active):
            raise Refused(
                "an earlier round opened a sum over the same model and other clients; both together may show single uploads"
            )

    def _different(self, keys: Mapping[int, PublicKeys]) -> dict[int, PublicKeys]:
        """The keys without those of clients that repeat a key of another, with which every client would refuse the sum."""
        owners: dict[bytes, int] = {}
        found = {}
        for client, sent in sorted(keys.items()):
            others = [owners[key] for key in (sent.letters, sent.masks) if key in owners]
            if others:
                self.warn(f"round {self.round}: the keys of client {client} are refused: one of them is client {others[0]}'s")
                continue
            found[client] = sent
            owners |= {sent.letters: client, sent.masks: client}
        return found

    def _mean(self, sums: Sums, count: int, examples: int) -> Sealed:
        """What the sum stands for, checked as an upload is."""
        tensors = self.agreement.method.mean_upload(sums.tensors, self.received, sums.weight, count)
        expected = expected_mean(self.agreement, self.round, self.received, count)
        rounded = as_sent(tensors, expected)
        sealed = seal(Payload(rounded, self.round, None, "weights", expected.examples and examples, expected.transforms))
        expected.check(sealed)
        return sealed

    def _rows(self, answer: Sealed, kind: Kind, client: int, about: Collection[int]) -> dict[int, bytes]:
        """A table with a row for each of these clients."""
        rows = messages.rows_of(answer, kind, self.round, client)
        if rows.keys() != set(about):
            strange = min(rows.keys() ^ set(about))
            raise Refused(f"its {kind} have {'a' if strange in rows else 'no'} row for client {strange}")
        return rows

    def _ask(self, questions: Mapping[int, Sealed], read: Callable[[int, Sealed], T]) -> dict[int, T]:
        """What clients answer, by client in ascending order; those who do not, or not as they should, drop out."""
        found: dict[int, T] = {}
        for client, answer in self.clients.step(self.round, questions):
            self.crossed("up", answer)
            try:
                if client not in questions or client in found:
                    raise Refused("it was not asked, or has answered before")
                found[client] = read(client, answer)
            except Refused as reason:
                self.warn(f"round {self.round}: what client {client} sent for the sum is refused: {reason}")
        for client in questions.keys() - set(self.clients.not_sent()):
            self.crossed("down", questions[client])
        return {client: found[client] for client in sorted(found)}
