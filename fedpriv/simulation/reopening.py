"""Rebuilds the federation of a run from its config, and checks that its data are unchanged."""

from __future__ import annotations

from fedpriv.config import RunConfig
from fedpriv.data.partitions.partition import Partition
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged
from fedpriv.simulation.setup import Federation, build
from fedpriv.storage.run_folder import RunFolder


def hashes(federation: Federation) -> dict[str, str]:
    """Hashes of the partition and of the samples, as in ``run.json``."""
    return {"partition_hash": federation.data.partition.hash(), "data_hash": federation.dataset.hash}


def reopened(folder: RunFolder, config: RunConfig | None = None) -> Federation:
    """The federation of a run that has begun.

    Args:
        config: may differ from the stored one in options that no number depends on; ``None``: the stored one.

    Raises:
        UsageError: the clients' data are on their own machines, or the config or the data have changed.
        Damaged: the run folder lacks the hashes of the data.
    """
    facts = folder.facts
    if not facts:
        raise Damaged(f"{folder.path / 'run.json'} is missing")
    if facts.get("deployed", {}).get("own_data"):
        raise UsageError(
            f"{folder.path}: not scored: its clients' data are on their own machines, and the server has no originals to compare "
            "with; what crossed is in its folder payloads/"
        )
    federation = build(config or folder.config(), begun=True)
    for name, now in hashes(federation).items():
        before = facts.get(name)
        if before is None:
            if "deployed" in facts:  # whose server has no data to hash
                continue
            raise Damaged(f"{folder.path / 'run.json'} is damaged: it has no {name}")
        if before != now:
            what = name.removesuffix("_hash")
            raise UsageError(f"{folder.path}: the data are not those the run began with ({what} {now[:12]}, then {before[:12]})")
    return federation


def damaged_partition(folder: RunFolder) -> str | None:
    """A line on why the stored partition is not the run's; ``None``: it is, or the clients are on other machines."""
    if "deployed" in folder.facts:
        return None
    try:
        stored = Partition.load(folder.partition_file).hash()
    except FedprivError as error:
        return str(error)
    return None if stored == folder.facts.get("partition_hash") else f"{folder.partition_file} is the partition of another run"
