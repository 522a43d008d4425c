"""The tracker that writes event files for TensorBoard."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.errors import extra
from fedpriv.tracking.folder import read_records
from fedpriv.tracking.trackers import Tracker, register

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@register("tensorboard")
class TensorBoardTracker(Tracker):
    """Event files in the run folder, which `tensorboard --logdir runs` shows."""

    def __init__(self, run_dir: Path, uri: str, experiment: str) -> None:
        super().__init__(run_dir, uri, experiment)
        self._folder = run_dir / "tensorboard"
        self._writer: SummaryWriter | None = None
        self._copied = -1

    @classmethod
    def missing(cls) -> str | None:
        return None if find_spec("tensorboard") else f"the package tensorboard; {extra('tensorboard')}"

    def copy(self) -> None:
        if self._writer is None:
            self._writer = self._new_writer()
        for record in read_records(self.run_dir):
            if record["round"] > self._copied:
                for name, value in record["metrics"].items():
                    if value is not None:
                        self._writer.add_scalar(name, value, record["round"], walltime=record["time_ms"] / 1000)
                self._copied = record["round"]
        self._writer.flush()

    def _new_writer(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        # All events are written again from the records: those of a killed run would be shown twice.
        shutil.rmtree(self._folder, ignore_errors=True)
        writer = SummaryWriter(str(self._folder))
        config = (self.run_dir / "config.yaml").read_text(encoding="utf-8")
        writer.add_text("config", "".join(f"    {line}\n" for line in config.splitlines()))
        return writer

    @property
    def place(self) -> str:
        return f"TensorBoard, tensorboard --logdir {self.run_dir.parent}"
