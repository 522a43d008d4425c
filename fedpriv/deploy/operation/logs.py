"""The log of a machine's processes: lines of text or of JSON, in files that are rotated."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

LogFormat = Literal["text", "json"]
MAX_BYTES, KEPT = 10 * 2**20, 5
"""Size at which a log is put aside, and how many are kept."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Log:
    """A log that several processes write.

    Attributes:
        file: the newest lines; older ones are in ``<file>.1`` and so on.
        format: ``json``: each line is an object of ``time`` (UTC), ``process`` and ``message``.
    """

    file: Path
    format: LogFormat = "text"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self, process: str, output: IO[bytes]) -> threading.Thread:
        """Start to write what a process prints, until it ends."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.touch()
        thread = threading.Thread(target=self._collect, args=(process, output), daemon=True)
        thread.start()
        return thread

    def messages(self) -> list[str]:
        """What processes printed, of the newest file."""
        lines = self.file.read_text(errors="replace", encoding="utf-8").splitlines()
        return lines if self.format == "text" else [str(json.loads(line)["message"]) for line in lines]

    def _collect(self, process: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._write(process, line)

    def _write(self, process: str, line: bytes) -> None:
        if self.format == "json":
            time, message = datetime.now(UTC).isoformat(timespec="milliseconds"), _COLOUR.sub("", line.decode(errors="replace"))
            line = json.dumps({"time": time, "process": process, "message": message.rstrip("\n")}).encode() + b"\n"
        try:
            with self._lock:
                if self.file.exists() and self.file.stat().st_size + len(line) > MAX_BYTES:
                    self._rotate()
                with self.file.open("ab") as file:
                    file.write(line)
        except OSError:  # a full disk ends no run
            return

    def _rotate(self) -> None:
        for number in range(KEPT - 1, 0, -1):
            if (older := self._aside(number)).exists():
                older.replace(self._aside(number + 1))
        self.file.replace(self._aside(1))

    def _aside(self, number: int) -> Path:
        return self.file.with_name(f"{self.file.name}.{number}")
