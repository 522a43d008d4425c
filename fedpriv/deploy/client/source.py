"""Where a client's samples come from. The client's own file decides it: no server can have other files or columns read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from fedpriv.config import DataConfig
from fedpriv.errors import UsageError

MIN_TESTED = 10
"""The lowest ``data.test_limit`` that a client accepts for its own samples."""


@dataclass(frozen=True)
class Source:
    """``data`` of a client's file. Without a ``name`` it is the registered data set that the run's config names."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Annotated[str | None, Field(description="as --dataset takes it: a name, a folder, a parquet or CSV file")] = None
    dir: Annotated[Path | None, Field(description="as --data-dir")] = None
    share: Annotated[
        Literal["own", "partition"], Field(description="own: all samples; partition: its share of the run's partition")
    ] = "own"
    label: Annotated[str | None, Field(description="column of the labels; null: found by its type or a common name")] = None
    features: Annotated[
        tuple[str, ...] | None, Field(description="columns of a table that a run may use; null: all but `drop`")
    ] = None
    drop: Annotated[tuple[str, ...], Field(description="columns of a table that no run uses")] = ()

    def __post_init__(self) -> None:
        for key in ("label", "features", "drop"):
            if (value := getattr(self, key)) and self.name is None:
                shown = repr(value) if isinstance(value, str) else ", ".join(value)
                raise UsageError(f"data.{key} {shown} needs data.name, the data whose column it is")

    @property
    def private(self) -> bool:
        """Whether the samples may differ from a public data set."""
        return self.dir is not None or (self.name is not None and not _is_registered(self.name))

    def of_run(self, data: DataConfig) -> DataConfig:
        """A run's data config, with the files and columns that this client chooses.

        Raises:
            UsageError: the config names files, another label column, or columns that no run may use; or it tests so few of the
                client's own samples that an accuracy reveals single ones.
        """
        if self.private and data.test_limit is not None and data.test_limit < MIN_TESTED:
            raise UsageError(
                f"data.test_limit {data.test_limit}: an accuracy on so few of a client's own samples tells of single ones; "
                f"at least {MIN_TESTED}"
            )
        if self.name is None:
            if not _is_registered(data.name):
                raise UsageError(
                    "clients open only registered data sets for a server; the client's file says where its own are (data.name); "
                    f"the run's config names {data.name!r}"  # at the end, as the server is not sent what follows a path
                )
            return data.model_copy(update={"dir": self.dir})
        if data.label not in (None, self.label):
            raise UsageError(f"data.label {data.label!r}: the client's file says which column has its labels (data.label)")
        allowed = None if self.features is None else set(self.features) - set(self.drop)
        for name in data.features or ():
            if name in self.drop or (allowed is not None and name not in allowed):
                raise UsageError(f"data.features: the client's file lets no run use column {name!r} (data.features, data.drop)")
        features = self.features if data.features is None else data.features
        drop = (*data.drop, *self.drop)
        kept = None if features is None else tuple(name for name in features if name not in drop)
        columns = {"label": self.label, "features": kept, "drop": drop}
        partition = {} if self.share == "partition" else {"partition": data.partition.model_copy(update={"column": None})}
        return data.model_copy(update={"name": self.name, "dir": self.dir, **columns, **partition})


def _is_registered(name: str) -> bool:
    """Whether a data set is registered. Imports torch, which the processes that only read the file do without."""
    from fedpriv.data.sources import sources

    return name in sources()
