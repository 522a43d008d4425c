"""The record of a run with secure aggregation: its sums, each the mean upload of a round's clients.

To an attacker such a sum is the message of one client that holds all of their samples. Its number is that of the round
plus the number of clients.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.outcome import Sender
from fedpriv.errors import UsageError
from fedpriv.files import Damaged
from fedpriv.methods.mpfedcon import HOLDERS
from fedpriv.secure.protocol_checks import FEWEST, expected_mean, takes_a_step
from fedpriv.simulation.setup import Federation
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Sealed
from fedpriv.wire.message import Refused


def record_of(run_dir: Path) -> RunRecord:
    """The record of what the server of a run saw: its clients' messages, or their sums.

    Raises:
        UsageError: there is no run, or it kept no payloads.
        Damaged: a file of the run is not what was written.
    """
    return (SumRecord if RunFolder.open(run_dir).config().wire.secure_aggregation else RunRecord)(run_dir)


class HeldBack(RunRecord):
    """The uploads behind the sums of a simulation, which its server never saw."""

    def _stored(self) -> PayloadStore:
        return PayloadStore.of(self.folder, uploads="hidden")


class SumRecord(RunRecord):
    """The kept sums of a run; arguments and errors as for :class:`RunRecord`."""

    summed = True

    def _stored(self) -> PayloadStore:
        store = _SumStore.of(self.folder)
        store.first = self.folder.config().data.clients
        return store

    def sender(self, round: int, client: int) -> Sender:
        return Sender(None, len(self._members(round)), self._trained(round))

    def of_sums(self) -> list[str]:
        few = [round for round in self.store.rounds() if self._trained(round) < FEWEST]
        server = ["learns the sum of a round's uploads behind masks" + ("" if few else ", and no single upload")]
        server += self._single_centers()
        return server + [
            f"knows that of the {len(self._members(round))} clients in the sum of round {round} only {self._trained(round)} "
            "trained: the others sent back what they had received, so the sum shows the uploads of so few"
            for round in few
        ]

    def _single_centers(self) -> list[str]:
        """The class centres that the server knows to be of a single client, if clients send centres."""
        of_one, rounds = {}, self.store.rounds()
        for round, client in self.messages():
            holders = self.store.upload(round, client).tensors().get(HOLDERS)
            if holders is not None and (alone := int((holders == 1).sum())):
                of_one[round] = (alone, len(holders))
        if not of_one:
            return []
        most = max(of_one, key=lambda round: of_one[round])
        alone, centers = of_one[most]
        return [
            f"knows class centres of single clients: in {len(of_one)} of {len(rounds)} kept rounds, only one client in the sum "
            f"holds some class; most often in round {most}: {alone} of {centers} centres"
        ]

    def _trained(self, round: int) -> int:
        """How many clients of a sum had a batch to train on."""
        data, agreement = self.federation.data, self.federation.agreement
        return sum(takes_a_step(agreement, data.size(client)) for client in self._members(round))

    def number(self, round: int, client: int) -> int:
        return self.federation.config.data.clients + round

    def behind(self, round: int, client: int) -> list[int]:
        return self._members(round)

    @cached_property
    def federation(self) -> Federation:
        """As of the run; a sum holds the samples of its clients."""
        federation = super().federation
        first = federation.config.data.clients
        unions = {first + round: clients for round, clients in self._clients.items()}
        return replace(federation, data=federation.data.with_unions(unions))

    def message(self, round: int, client: int) -> Message:
        download, sealed, count = self.store.download(round), self.store.upload(round, client), len(self._members(round))
        received = {} if download is None else download.tensors()
        try:
            expected_mean(self.federation.agreement, round, received, count).check(sealed)
        except Refused as reason:
            raise Damaged(f"{self.folder.path}: the sum of round {round} does not fit the run: {reason}") from None
        message = self.read(round, client, sealed, received, sealed.num_examples)
        variance = {name: value / count for name, value in message.altered.variance.items()}  # of a mean
        return replace(message, parts=count, altered=replace(message.altered, variance=variance))

    def _members(self, round: int) -> list[int]:
        if (clients := self._clients.get(round)) is None:
            raise Damaged(f"{self.folder.path}: the record of round {round} does not say whose uploads are in its sum")
        return clients

    @cached_property
    def _clients(self) -> dict[int, list[int]]:
        """Whose uploads are in the sum of a round."""
        return {record["round"]: record["summed"] for record in self.folder.records() if "summed" in record}


class _SumStore(PayloadStore):
    """A payload store that returns sums in place of uploads.

    Attributes:
        first: number of clients of the run.
    """

    first = 0

    def clients(self, round: int) -> list[int]:
        return [self.first + round] if self.mean(round) is not None else []

    def upload(self, round: int, client: int) -> Sealed:
        if (sealed := self.mean(round)) is None or client != self.first + round:
            raise UsageError(f"{self.path.parent} kept no sum of round {round} under number {client}; see --keep-payloads")
        return sealed

    def report(self, round: int, client: int) -> Sealed | None:
        """The report of the first client of which one was kept."""
        kept = (super(_SumStore, self).report(round, client) for client in range(self.first))
        return next((report for report in kept if report is not None), None)
