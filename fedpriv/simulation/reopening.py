"""Making again what a run was made of, from its config, and checking that it is the same."""

from __future__ import annotations

from fedpriv.config import RunConfig
from fedpriv.data.partitions.partition import Partition
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import Damaged
from fedpriv.simulation.setup import Federation, build
from fedpriv.storage.run_folder import RunFolder


def hashes(federation: Federation) -> dict[str, str]:
    """What ``run.json`` says of a run's data: who holds which samples, and what the samples are."""
    return {"partition_hash": federation.data.partition.hash(), "data_hash": federation.dataset.hash}


def reopened(folder: RunFolder, config: RunConfig | None = None) -> Federation:
    """The federation of a run that has begun.

    Args:
        config: with other values where no number depends on them; ``None``: as stored.

    Raises:
        UsageError: its clients' data are on their own machines; or its config or its data have changed. A run of an earlier
            version says nothing of what its samples are.
        Damaged: its folder does not say any more what they were.
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
        if (then := facts.get(name, now)) != now:
            what = name.removesuffix("_hash")
            raise UsageError(f"{folder.path}: the data are not those the run began with ({what} {now[:12]}, then {then[:12]})")
    return federation


def damaged_partition(folder: RunFolder) -> str | None:
    """Why the stored partition is not that of the run, in a line; ``None``: it is, or the run's clients are on other machines."""
    if "deployed" in folder.facts:
        return None
    try:
        found = Partition.load(folder.partition_file).hash()
    except FedprivError as error:
        return str(error)
    return None if found == folder.facts.get("partition_hash") else f"{folder.partition_file} is the partition of another run"
