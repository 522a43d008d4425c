"""The server's part in secure aggregation: the sum of a round's uploads, and the model that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedpriv.agreement import Agreement
from fedpriv.secure.fixed_point import decoded
from fedpriv.secure.layout import Layout, Sums
from fedpriv.secure.protocol import PublicKeys, majority
from fedpriv.secure.protocol_checks import FEWEST, as_sent, expected_mean, takes_a_step
from fedpriv.server.clients import Clients
from fedpriv.server.masked_sum import MaskedSum
from fedpriv.wire import Payload, Sealed, Tap, seal
from fedpriv.wire.message import Refused


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
        opened_before: the clients of a secure sum that was opened for the present model but led to no new model; ``None``: no
            such sum. The difference of two sums for one model over different clients may show single uploads.
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
        layout = Layout(self.agreement, self.received)

        def step(questions: Mapping[int, Sealed]) -> Iterator[tuple[int, Sealed]]:
            for client, answer in self.clients.step(self.round, questions):
                self.tap("up", answer)
                yield client, answer
            for client in questions.keys() - set(self.clients.not_sent()):
                self.tap("down", questions[client])

        def check(active: tuple[int, ...], asked: int) -> None:
            self._check_members(active, asked, examples)

        protocol = MaskedSum(step, self.round, self.label, self.warn, check, self.on_opened)
        active, words = protocol.sum(keys, layout.size)
        sums = layout.sums(decoded(words))
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

    def _mean(self, sums: Sums, count: int, examples: int) -> Sealed:
        """The mean upload of a sum, checked as an upload is."""
        tensors = self.agreement.method.mean_upload(sums.tensors, self.received, sums.weight, count)
        expected = expected_mean(self.agreement, self.round, self.received, count)
        rounded = as_sent(tensors, expected)
        sealed = seal(Payload(rounded, self.round, None, "weights", expected.examples and examples, expected.transforms))
        expected.check(sealed)
        return sealed
