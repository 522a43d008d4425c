"""What a record costs the process that writes it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from fedpriv.recorder.layout import Facts
from fedpriv.recorder.writer import Recording


def test_a_record_holds_a_download_and_one_message_however_many_there_are(tmp_path: Path) -> None:
    size = 2**18

    def peak(folder: Path, rounds: int) -> int:
        recording = Recording(folder, Facts("memory", 10, (1, 8, 8)))
        tracemalloc.start()
        try:
            for round in range(1, rounds + 1):
                weights = np.full(size // 4, round, np.float32)
                recording.sent(round, "a", {"w": weights})
                for client in ("a", "b"):
                    recording.answered(round, client, {"w": weights + 1})
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(tmp_path / "few", 2), peak(tmp_path / "many", 12)
    assert few < 8 * size and many < few + size // 2
