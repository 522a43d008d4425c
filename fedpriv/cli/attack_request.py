"""What the options of ``fedpriv attack`` ask for, and which of them mean nothing together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from fedpriv.audit.record.malicious import Replay
    from fedpriv.audit.record.run import RunRecord

Kind = Literal["images", "texts", "rows"]
LABEL = "data.label"
"""The key of ``--set`` that is no option of the attack: the column of the labels in a data set of the user."""
_KINDS: Mapping[str, tuple[Kind, ...]] = {
    "output": ("images",),
    "images": ("images",),
    "mask_layers": ("images", "texts"),
    "batch_size": ("texts", "rows"),
    "encoder": ("texts",),
    "tune": ("texts",),
    "mask_embeddings": ("texts",),
    "noise": ("texts",),
}
"""Option -> what the attacks that it is for reconstruct; the other options are for all."""
_SINGLE_STEPS = ("count", "mask_layers", "batch_size", "encoder", "tune", "mask_embeddings", "noise")
"""Options for single steps, not for messages of a run."""


@dataclass(frozen=True)
class Request:
    """An attack, and what it is mounted on: by default single steps on samples that are there; or a message of a run.

    Attributes:
        options: the attack's own.
        count: number of single steps.
        batch_size: texts or rows of a step.
        label: the column of the labels in ``dataset``.
        output: where originals and reconstructions are drawn.
    """

    name: str
    options: Mapping[str, Any]
    seed: int
    runs_dir: Path
    malicious: bool = False
    run: str | None = None
    round: int | None = None
    client: int | None = None
    images: Path | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    label: str | None = None
    count: int | None = None
    mask_layers: int | None = None
    batch_size: int | None = None
    encoder: str | None = None
    tune: Any = None
    mask_embeddings: bool = False
    noise: float | None = None
    output: Path | None = None

    def given(self, *names: str) -> list[str]:
        """The options among these that are given, as flags."""
        return [_flag(name) for name in names if getattr(self, name)]

    def check(self, kind: Kind) -> None:
        """Refuse options that contradict each other, or have no effect together.

        Args:
            kind: what the attack reconstructs.

        Raises:
            UsageError: names the first.
        """
        if len(sources := self.given("run", "images", "dataset")) > 1:
            raise UsageError(f"{' and '.join(sources)}: give only one of them")
        if self.label is not None and self.dataset is None:
            raise UsageError(f"{LABEL} names a column of a data set; name the data set with --dataset")
        if self.run is None:
            for name in ("round", "client"):
                if getattr(self, name) is not None:
                    raise UsageError(f"--{name} selects a message of a run; name the run with --run")
        elif single := self.given(*_SINGLE_STEPS):
            raise UsageError(f"{single[0]} is for single steps; it cannot change what a client of a run has sent")
        for name, kinds in _KINDS.items():
            if getattr(self, name) and kind not in kinds:
                raise UsageError(f"{_flag(name)} is for attacks on {' and '.join(kinds)}; {self.name} is an attack on {kind}")

    def message(self) -> tuple[RunRecord, int, int]:
        """The record of the run, and the round and the client of its message."""
        from fedpriv.audit.record.sums import record_of
        from fedpriv.tracking import find_run

        assert self.run is not None
        record = record_of(find_run(self.run, self.runs_dir))
        return record, *record.messages(self.round, self.client)[0]


def _flag(name: str) -> str:
    return "--n" if name == "count" else f"--{name.replace('_', '-')}"


def tell_replay(played: Replay | None, out: Console) -> dict[str, Any]:
    """Print what a malicious server altered, and whether clients refuse it; the same as JSON.

    Args:
        played: the client's answer; ``None``: the server is honest.
    """
    if played is None:
        return {}
    out.print(f"altered: {', '.join(played.altered)}", soft_wrap=True)
    out.print(played.sentence, soft_wrap=True)
    return {"threat": "malicious", "altered": list(played.altered), "refused": played.refusal}
