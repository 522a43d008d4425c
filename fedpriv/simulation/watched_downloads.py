"""A simulation's warning of downloads that clients of a deployment would refuse, if ``wire.check_downloads`` is not set."""

from __future__ import annotations

from collections.abc import Callable

from fedpriv.agreement import Agreement
from fedpriv.client.suspicion import first_of_attack, generator_of_run
from fedpriv.storage.run_folder import RunFolder
from fedpriv.wire import Direction, Sealed

_FACT = "suspicious_download"
"""The fact of the run folder that holds the warning, so that a resumed run does not repeat it."""


class WatchedDownloads:
    """A tap that checks what the server sends, and warns at most once in a run.

    A simulation's server is the user's own, so weights with marks of an attack only mean that the run is unusual, and it goes on.
    """

    def __init__(self, agreement: Agreement, folder: RunFolder, warn: Callable[[str], None]) -> None:
        self._agreement, self._folder, self._warn = agreement, folder, warn
        self._has_warned = self.warning is not None
        self._last_round: int | None = None

    @property
    def warning(self) -> str | None:
        """The warning of the run; ``None``: there was none."""
        return self._folder.facts.get(_FACT)

    def __call__(self, direction: Direction, message: Sealed) -> None:
        if self._has_warned or direction != "down" or message.kind != "weights" or message.round == self._last_round:
            return
        self._last_round = message.round
        mark = first_of_attack(self._agreement, message.tensors(), generator_of_run(self._agreement, message.round))
        if mark is None:
            return
        warning = (
            f"round {message.round}: in a deployment, clients would refuse what the server sent as an attack on their data: "
            f"{mark}. The simulation goes on; --set wire.check_downloads=true ends it there, false looks for no marks"
        )
        self._has_warned = True
        with self._folder.writing("run.json"):
            self._folder.update_facts(**{_FACT: warning})
        self._warn(warning)
