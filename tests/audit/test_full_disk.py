"""A full disk during an audit: one clear line, an earlier report that stays whole, and an audit that goes on with room."""

from __future__ import annotations

import resource
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fedpriv.audit import report
from fedpriv.audit.finished import UNFINISHED
from fedpriv.audit.run_audit import Audited
from fedpriv.errors import FedprivError
from tests.audit.sample_findings import findings, pictures
from tests.marks import quick_first
from tests.simulation.processes import Process
from tests.simulation.small import play
from tests.simulation.test_full_disk import Disk, disk

__all__ = ["disk"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", quick_first(["audit.html", "audit.md", "audit.json", "mp-r1-c0.png", "mp-dp-r1-c0.png"]))
def test_a_report_without_room_leaves_the_earlier_one_whole(tmp_path: Path, disk: Disk, name: str) -> None:
    old, new = (
        Audited(replace(findings(), created=date), {picture: png + date.encode() for picture, png in pictures().items()})
        for date in ("2026-01-01T00:00:00+00:00", "2026-02-02T00:00:00+00:00")
    )
    report.write(old, tmp_path / "audit")
    before = contents(tmp_path / "audit")
    disk.fill_at(name)
    with pytest.raises(FedprivError, match=r"cannot write the audit in .*: No space left on device; once it can be, repeat"):
        report.write(new, tmp_path / "audit")
    assert disk.full and contents(tmp_path / "audit") == before
    disk.make_room()
    report.write(new, tmp_path / "audit")
    report.write(new, tmp_path / "again")
    assert contents(tmp_path / "audit") == contents(tmp_path / "again") != before


def limit_the_report(room: int) -> None:
    """No file of the report can grow beyond a size (bytes): a real failure."""
    real = report.write
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limited(audited: Audited, folder: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        real(audited, folder)

    report.write = limited


@pytest.mark.slow
@pytest.mark.usefixtures("hardly_any_steps")
def test_when_the_system_refuses_to_write_the_report(tmp_path: Path) -> None:
    play(tmp_path / "run", "mpfedcon", **{"data.limit": 200, "train.participation": 0.1})
    few = ("--messages", 1, "--label-shadows", 4, "--membership-shadows", 4, "--singles", 2, "--workers", 1)
    ended = Process(tmp_path, "audit", tmp_path / "run", *few, sabotage=partial(limit_the_report, 5000)).wait(300)
    last = ended.err.strip().splitlines()[-1]
    assert ended.code == 1 and last.startswith("fedpriv: cannot write the audit in") and "File too large" in last
    assert "Traceback" not in ended.err
    kept = contents(tmp_path / "run" / "audit")
    assert kept and all(name.startswith(UNFINISHED) for name in kept)
    again = Process(tmp_path, "audit", tmp_path / "run", *few).wait(300)
    assert again.code == 0 and {"audit.json", "audit.md", "audit.html"} <= contents(tmp_path / "run" / "audit").keys()
