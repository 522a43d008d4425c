"""Tables that the `datasets` library opened: data sets of the Hugging Face hub, and what it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.data.tables.files import Table, Typed, from_zero, without_half_floats
from fedpriv.errors import FedprivError, UsageError, first_line
from fedpriv.hub import hub_mode

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

SPLITS = ("test", "valid", "validation", "val")
"""Names of a test split; the first that is there is taken."""


@dataclass(frozen=True)
class HubTable(Typed):
    """A split that the `datasets` library opened, from the hub or what it saved."""

    rows: datasets.Dataset
    origin: str
    files: tuple[Path, ...]

    @property
    def features(self) -> datasets.Features:
        return self.rows.features

    def at(self, row: int) -> str:
        return from_zero(self.origin, row)

    def column(self, name: str) -> pa.ChunkedArray:
        return without_half_floats(self.rows.select_columns([name]).with_format("arrow")[:].column(name))


def open_hub(
    hub_id: str, name: str, splits: Sequence[str] | None, hint: str, config: str | None = None, revision: str | None = None
) -> list[Table]:
    """Splits of a data set of the hub; one that was downloaded before needs no connection.

    Args:
        splits: which ones; ``None``: the training split, and a test split (:data:`SPLITS`) if there is one.
        hint: what to do where it is not available.
        config, revision: those of the data set; ``None``: its only config, its latest revision.

    Raises:
        UsageError: neither the hub nor a downloaded copy is available; the message says what to do.
    """
    import datasets

    try:
        with hub_mode():
            if splits is None:
                tables = _splits(datasets.load_dataset(hub_id, config, revision=revision))
            else:
                tables = {split: datasets.load_dataset(hub_id, split=split) for split in splits}
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"cannot get {name} from the hub ({hub_id}: {first_line(error)}); {hint}") from None
    return [_opened(rows, f"{hub_id} ({split})") for split, rows in tables.items()]


def open_saved(folder: Path) -> tuple[Table, Table | None]:
    """What ``datasets.Dataset.save_to_disk``, or ``DatasetDict.save_to_disk``, wrote."""
    import datasets
    import pyarrow as pa

    try:
        loaded = datasets.load_from_disk(str(folder))
        splits = _splits(loaded) if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise FedprivError(f"{folder} is not a whole data set of save_to_disk: {first_line(error)}") from None
    train, *test = [_opened(rows, f"{folder} ({name})") for name, rows in splits.items()]
    return train, test[0] if test else None


def _splits(by_name: datasets.DatasetDict) -> dict[str, datasets.Dataset]:
    """The training split, and a test split (:data:`SPLITS`) if there is one; :class:`ValueError` where the first is missing."""
    if "train" not in by_name:
        raise ValueError(f"it has no split train, but {', '.join(by_name)}")
    return {name: by_name[name] for name in ["train", *[name for name in SPLITS if name in by_name][:1]]}


def _opened(rows: datasets.Dataset, origin: str) -> HubTable:
    return HubTable(rows, origin, tuple(Path(file["filename"]) for file in rows.cache_files))
