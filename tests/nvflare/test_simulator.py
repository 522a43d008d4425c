"""NVFlare's simulator, its first example's net and script, recorded by one line at the clients and at the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.audit.foreign.audit import AuditedFolder
from fedpriv.audit.foreign.program import load_program
from fedpriv.audit.foreign.replay import compare_with_message
from fedpriv.errors import UsageError
from fedpriv.recorder.layout import PROGRAM
from fedpriv.recorder.reader import Recorded
from tests.recorder.loop import small_net

pytestmark = pytest.mark.slow
WITH = 'uv run --with "nvflare>=2.9,<2.10" pytest -m "" tests/nvflare'
pytest.importorskip("nvflare", reason=f"needs NVFlare: {WITH}")
JOB = Path(__file__).parent / "job"
LONGEST = 540


def run(folder: Path, transfer: str, record: bool) -> dict[str, bytes]:
    """The bytes of each tensor of the final model of a job."""
    folder.mkdir()
    arguments = [folder / "workspace", folder / "initial.pt", transfer, *([folder] if record else [])]
    command = [sys.executable, "job.py", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(JOB.parents[2])}
    done = subprocess.run(command, cwd=JOB, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    (final,) = (folder / "workspace").rglob("app_server/FL_global_model.pt") or [None]
    assert done.returncode == 0 and final is not None, done.stdout + done.stderr
    return {name: tensor.numpy().tobytes() for name, tensor in torch.load(final)["model"].items()}


def test_one_line_records_a_job_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path / "plain", "FULL", record=False) == run(tmp_path / "recorded", "FULL", record=True)
    clients, server = (Recorded(tmp_path / "recorded" / at) for at in ("clients", "server"))
    expected = {(round, site, way) for round in (1, 2) for site in ("site-1", "site-2") for way in ("down", "up")}
    assert clients.lines.keys() == server.lines.keys() == expected and clients.facts.framework.startswith("NVFlare")
    assert all(clients.lines[key].sha256 == line.sha256 for key, line in server.lines.items())
    monkeypatch.syspath_prepend(str(JOB))
    record = AuditedFolder(tmp_path / "recorded" / "clients")
    assert all(compare_with_message(record, round, 0).agrees for round in (1, 2))


def test_changes_are_recorded_as_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "job", "DIFF", record=True)
    recorded = Recorded(tmp_path / "job" / "clients")
    assert {line.kind for line in recorded.lines.values() if line.direction == "up"} == {"change"}
    monkeypatch.syspath_prepend(str(JOB))
    assert compare_with_message(AuditedFolder(recorded.folder), 2, 1).agrees


def test_a_message_of_another_kind_passes(tmp_path: Path) -> None:
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    import fedpriv.nvflare

    recorder = fedpriv.nvflare.RecordFilter(str(tmp_path / "record"), {"classes": 10, "input_shape": (3, 32, 32)})
    message = Shareable({"cipher": b"x"})
    assert recorder.process(message, FLContext()) is message and not (tmp_path / "record").exists()


def test_a_net_is_recorded_as_a_program(tmp_path: Path) -> None:
    import fedpriv.nvflare

    class Job:
        """The part of a recipe that the recorder calls."""

        def add_client_input_filter(self, recorder: Any, tasks: list[str]) -> None:
            assert recorder.facts["net"] == PROGRAM and tasks == ["train"]

        add_client_output_filter = add_client_input_filter

    fedpriv.nvflare.record(Job(), tmp_path / "record", classes=3, input_shape=(1, 6, 6), net=small_net())
    assert load_program(tmp_path / "record" / PROGRAM)(torch.rand(4, 1, 6, 6)).shape == (4, 3)


def test_what_cannot_be_recorded_is_refused_before_the_job() -> None:
    import fedpriv.nvflare

    with pytest.raises(UsageError, match="not a whole path"):
        fedpriv.nvflare.record(None, "record", classes=10, input_shape=(3, 32, 32))
    with pytest.raises(UsageError, match="lr -1"):
        fedpriv.nvflare.record(None, "/no/record", classes=10, input_shape=(3, 32, 32), training={"lr": -1})
