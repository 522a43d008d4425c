"""The records of a run's rounds: ``metrics.jsonl``, a line for each round, with a checksum.

A line that is damaged, lost, doubled or misplaced is repaired if possible: lines name their rounds, and the last two checkpoints
hold the records of their rounds too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedpriv.files import Damaged, load_json, with_checksum, without_checksum, write_atomically

Record = dict[str, Any]
"""The record of a round: ``round``, ``time_ms``, ``metrics``, and ``per_client`` if it was evaluated. Further keys, if not empty:

* ``refused``, ``missing``, ``untested``: the clients whose answers were refused, that gave no answer, and that could not be
  tested, with reasons;
* ``diverged``, ``untrained``: the clients that diverged, and that took no step, so that they sent no upload;
* ``without_effect``: the participants whose local updates were not merged;
* ``summed``: the clients of the round's secure sum, also if its model is not finite and was left out;
* ``opened``: the clients of a secure sum over the model at the end of the round, if one was opened;
* ``payloads``: the checksum of the list of the round's kept payloads.
"""


class Records:
    """The records of one run.

    Args:
        run: the run folder.
    """

    def __init__(self, run: Path) -> None:
        self.file = run / "metrics.jsonl"
        self._checkpoints = run / "checkpoints"

    def read(self, last: int | None = None) -> list[Record]:
        """The records of the rounds 0 to ``last``, in order; ``None``: of all rounds.

        Text after the last newline is ignored: it is still being written, or was cut by a kill.

        Raises:
            Damaged: a record is lost; the message names the line, or the round.
        """
        committed = self.committed()  # read first, as a running process appends lines
        records, damaged, lines = dict[int, Record](), list[int](), lines_of(self.file)
        for number, line in enumerate(lines, 1):
            try:
                record = parsed(line)
            except ValueError:
                damaged.append(number)
            else:
                records[record["round"]] = record
        records |= committed
        rounds = range(1 + (max(records, default=-1) if last is None else last))
        # Look for the first gap only: a bad line may name a huge round.
        missing = next((round for round in rounds if round not in records), None)
        # With no checkpoint to restore it, a damaged last line may be a round that we would not miss.
        lost = bool(damaged) and last is None and not committed and damaged[-1] == len(lines)
        if damaged and (missing is not None or lost):
            raise Damaged(f"{self.file}, line {damaged[-1] if lost else damaged[0]} is damaged")
        if missing is not None:
            raise Damaged(f"{self.file} is damaged: it has no line of round {missing}")
        return [records[round] for round in rounds]

    def append(self, record: Record) -> None:
        """Append the record of a round."""
        with self.file.open("ab") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())

    def mend(self, last: int) -> None:
        """Make the file hold exactly the records of the rounds 0 to ``last``.

        Raises:
            Damaged: as :meth:`read`.
        """
        whole = b"".join(map(_line, self.read(last)))
        if whole != (self.file.read_bytes() if self.file.exists() else b""):
            write_atomically(self.file, whole)

    def committed(self) -> dict[int, Record]:
        """The records in the checkpoints, by round."""
        records = {}
        for path in self._checkpoints.glob("round-*.json"):
            try:
                record = _record(load_json(path)["progress"]["record"])
            except (Damaged, KeyError, TypeError, ValueError):  # a running process may have removed the file
                continue
            records[record["round"]] = record
        return records


def lines_of(file: Path) -> list[bytes]:
    """The complete lines of a file; none if it does not exist."""
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def parsed(line: bytes) -> Record:
    """The record of a line; raises :class:`ValueError` if it is damaged, or is not a record."""
    try:
        record = json.loads(line)
        return _record(without_checksum(record, "the line") if isinstance(record, dict) else record)
    except (Damaged, RecursionError) as error:
        raise ValueError(str(error)) from None


def _record(values: Any) -> Record:
    if not (isinstance(values, dict) and {"round", "time_ms", "metrics"} <= values.keys()):
        raise ValueError("not a record")
    if type(values["round"]) is not int or values["round"] < 0:
        raise ValueError("not the number of a round")
    return values


def _line(record: Record) -> bytes:
    return json.dumps(with_checksum(record)).encode() + b"\n"


def merged_clients(record: Record, participants: Collection[int]) -> set[int]:
    """The participants of a round whose local updates were merged."""
    return set(participants) - set(record.get("without_effect", ()))
