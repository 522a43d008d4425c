"""What a simulation says of downloads that clients of a deployment would refuse, where ``wire.check_downloads`` is not set."""

from __future__ import annotations

from collections.abc import Callable

from fedpriv.agreement import Agreement
from fedpriv.client.suspicion import draw_of_run, first_of_attack
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Direction, Sealed

_FACT = "suspicious_download"
"""Of the folder: the warning, by which a resumed run knows that it was given."""


class WatchedDownloads:
    """A tap that looks at what the server sends, and warns once a run. It stands for all clients: they are sent the same.

    A simulation's server is the user's own, so weights with marks of an attack are those of an unusual run; it goes on.
    """

    def __init__(self, agreement: Agreement, folder: RunFolder, warn: Callable[[str], None]) -> None:
        self._agreement, self._folder, self._warn = agreement, folder, warn
        self._done = self.warning is not None
        self._looked_at: int | None = None

    @property
    def warning(self) -> str | None:
        """The warning of the run; ``None``: there was nothing to warn of."""
        return self._folder.facts.get(_FACT)

    def __call__(self, direction: Direction, message: Sealed) -> None:
        if self._done or direction != "down" or message.kind != "weights" or message.round == self._looked_at:
            return
        self._looked_at = message.round
        mark = first_of_attack(self._agreement, message.tensors(), draw_of_run(self._agreement, message.round))
        if mark is None:
            return
        warning = (
            f"round {message.round}: in a deployment, clients would refuse what the server sent as an attack on their data: "
            f"{mark}. The simulation goes on; --set wire.check_downloads=true ends it there, false looks for no marks"
        )
        self._done = True
        with self._folder.writing("run.json"):
            self._folder.update_facts(**{_FACT: warning})
        self._warn(warning)
