"""Where a client's samples come from, which its own file says: no server has other files read, or other columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedpriv.config import DataConfig
from fedpriv.data.sources import sources
from fedpriv.errors import UsageError

FEWEST_TESTED = 10
"""Fewer of a client's own samples no server may choose to test (``data.test_limit``)."""


@dataclass(frozen=True)
class Source:
    """Where a client's samples come from.

    Attributes:
        name: as ``--dataset`` takes it; ``None``: as the run's config says, if that is a registered name.
        dir: as ``--data-dir``.
        share: ``own``: all of it is this client's; ``partition``: its share, as the run's partition deals it.
        label: column of the labels; ``None``: found by its type or a common name.
    """

    name: str | None = None
    dir: Path | None = None
    share: str = "own"
    label: str | None = None

    def __post_init__(self) -> None:
        if self.share not in ("own", "partition"):
            raise UsageError(f"data.share {self.share!r}: own (all samples are this client's) or partition (its share of them)")
        if self.label is not None and self.name is None:
            raise UsageError(f"data.label {self.label!r}: a column of which data? data.name says where they are")

    @property
    def private(self) -> bool:
        """Whether the samples may be others than everyone can get."""
        return self.dir is not None or (self.name is not None and self.name not in sources())

    def of_run(self, data: DataConfig) -> DataConfig:
        """What a run's config says of the data, with what the client alone decides: which files, and which of their columns.

        Raises:
            UsageError: the config names files, or another column of this client's; or it has so few of the client's own samples
                tested that an accuracy tells of a single one.
        """
        if self.private and data.test_limit is not None and data.test_limit < FEWEST_TESTED:
            raise UsageError(
                f"data.test_limit {data.test_limit}: an accuracy on so few of a client's own samples tells of single ones; "
                f"at least {FEWEST_TESTED}"
            )
        if self.name is None:
            if data.name not in sources():
                raise UsageError(
                    "clients open no files that a server names, only registered data sets; the client's file says where its own "
                    f"are (data.name); the run's config says data set {data.name!r}"
                )
            return data.model_copy(update={"dir": self.dir})
        if data.label not in (None, self.label):
            raise UsageError(f"data.label {data.label!r}: the client's file says which column has its labels (data.label)")
        partition = {} if self.share == "partition" else {"partition": data.partition.model_copy(update={"column": None})}
        return data.model_copy(update={"name": self.name, "dir": self.dir, "label": self.label, **partition})
