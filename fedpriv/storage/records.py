"""The records of a run's rounds: ``metrics.jsonl``, a line a round, each with a checksum of what it says.

A line that is torn, damaged, gone, there twice or in another place is made good where the run folder still knows what it said:
wherever the lines stand, they name their rounds, and the last two checkpoints hold the records of theirs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedpriv.files import Damaged, load_json, with_checksum, without_checksum, write_atomically

Record = dict[str, Any]
"""One line: ``round``, ``time_ms``, ``metrics``, ``per_client`` where evaluated; ``refused``, ``missing``: the clients whose
uploads were left out, and those that gave no answer, with reasons, if any; ``diverged``, ``untrained``: the clients that
diverged, and those that took no step and so sent nothing, if any; ``without_effect``: the clients whose local update counts for
nothing, if any; ``summed``: the clients in the round's secure sum, also where its model is not finite and left out; ``opened``:
those in a secure sum over the model with which the round ends, if one was opened; ``payloads``: the checksum of the list of what
was kept of the round, if anything was."""


class Records:
    """The records of one run.

    Args:
        run: its folder.
    """

    def __init__(self, run: Path) -> None:
        self.file = run / "metrics.jsonl"
        self._checkpoints = run / "checkpoints"

    def read(self, last: int | None = None) -> list[Record]:
        """The records of the rounds 0 to ``last``, in order; ``None``: of all that are known.

        Text after the last newline is no line: it is still being written, or a kill tore it.

        Raises:
            Damaged: a record is not known; names the line, or the round.
        """
        committed = self.committed()  # before the lines, to which a running process adds
        found, wrong, lines = dict[int, Record](), list[int](), lines_of(self.file)
        for number, line in enumerate(lines, 1):
            try:
                record = parsed(line)
            except ValueError:
                wrong.append(number)
            else:
                found[record["round"]] = record
        found |= committed
        rounds = range(1 + (max(found, default=-1) if last is None else last))
        # The first only: a line may name any number as its round.
        missing = next((round for round in rounds if round not in found), None)
        # Where no checkpoint says how many there are, a line at the end may have been that of one more round.
        lost = bool(wrong) and last is None and not committed and wrong[-1] == len(lines)
        if wrong and (missing is not None or lost):
            raise Damaged(f"{self.file}, line {wrong[-1] if lost else wrong[0]} is damaged")
        if missing is not None:
            raise Damaged(f"{self.file} is damaged: it has no line of round {missing}")
        return [found[round] for round in rounds]

    def append(self, record: Record) -> None:
        """Add the line of a round."""
        with self.file.open("ab") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())

    def mend(self, last: int) -> None:
        """Write the lines of the rounds 0 to ``last`` as they should be, and no others.

        Raises:
            Damaged: as :meth:`read`.
        """
        whole = b"".join(map(_line, self.read(last)))
        if whole != (self.file.read_bytes() if self.file.exists() else b""):
            write_atomically(self.file, whole)

    def committed(self) -> dict[int, Record]:
        """The records that the checkpoints hold, by round."""
        found = {}
        for path in self._checkpoints.glob("round-*.json"):
            try:
                record = _record(load_json(path)["progress"]["record"])
            except (Damaged, KeyError, TypeError, ValueError):  # or a running process has removed it
                continue
            found[record["round"]] = record
        return found


def lines_of(file: Path) -> list[bytes]:
    """The complete lines of a file; none where it is not there."""
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def parsed(line: bytes) -> Record:
    """The record of a line; :class:`ValueError` where it is damaged or something else."""
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


def counted(record: Record, clients: Collection[int]) -> set[int]:
    """Of the clients of a round, those whose local update had an effect: they did not diverge, and what they sent was merged."""
    if (lost := record.get("without_effect")) is None:  # there is none, or it is a record of an earlier version
        if record["metrics"].keys() & {"too_few_uploads", "not_finite"}:
            return set()
        named = [one["client"] for how in ("refused", "missing") for one in record.get(how, ())]
        lost = [*named, *record.get("diverged", ())]
    return set(clients) - set(lost)
