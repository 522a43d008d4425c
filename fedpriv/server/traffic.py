"""The messages of a run: they are counted and shown to taps as they cross, and kept in the run folder."""

from __future__ import annotations

from fedpriv.config import RunConfig
from fedpriv.spans import Spans
from fedpriv.storage.payloads import Kept, PayloadKeeper
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import ByteMeter, Direction, Sealed, Tap


class Traffic:
    """What crosses between the server and its clients.

    Attributes:
        meter: the bytes that crossed since it was last read.
        taps: called with (direction, message) for every message that crosses, in either direction.
    """

    def __init__(self, folder: RunFolder, config: RunConfig, profile: Spans) -> None:
        self.meter, self._profile = ByteMeter(), profile
        self.taps: list[Tap] = [self.meter]
        self._payloads = PayloadKeeper(folder, config)

    def cross(self, direction: Direction, message: Sealed, times: int = 1) -> None:
        """A message crosses; one to several clients once for each."""
        for _ in range(times):
            for tap in self.taps:
                tap(direction, message)

    def keep(self, direction: Kept, message: Sealed) -> None:
        """Write a message into the run folder, if ``wire.keep_payloads`` wants it."""
        with self._profile("checkpoint"):
            self._payloads(direction, message)

    def end_round(self, round: int) -> str | None:
        """Finish the file of the round's kept messages; returns its checksum, or ``None`` if none was kept."""
        return self._payloads.close(round)
