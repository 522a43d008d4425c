"""Trackers, by name: each copies the records of a run. The run folder stays the primary record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fedpriv.config import TrackingConfig
from fedpriv.errors import UsageError
from fedpriv.registry import Registry, subclass_of


class Tracker(ABC):
    """Copies the records of one run.

    Args:
        run_dir: the run's folder, which a tracker only reads (:func:`fedpriv.tracking.read_records`).
        uri, experiment: as in the section ``tracking`` of the config.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    uses: ClassVar[frozenset[str]] = frozenset()
    """The options of the section ``tracking`` that it uses, such as ``uri``; others are refused. ``run.json`` has them under
    ``tracking``."""
    own_process: ClassVar[bool] = False
    """Whether it copies in a process of its own, because its packages take seconds to import, and not in a thread of the
    run's."""

    def __init__(self, run_dir: Path, uri: str, experiment: str) -> None:
        self.run_dir, self.uri, self.experiment = run_dir, uri, experiment

    @classmethod
    def missing(cls) -> str | None:
        """What this machine lacks, such as a package, in one line. Called before training."""
        return None

    @abstractmethod
    def copy(self) -> None:
        """Copy the records that the copy does not have yet.

        Called from one thread while the run continues, and once after its end. If it raises, the user is warned once, and the
        next call copies what is missing.
        """

    def close(self) -> None:  # noqa: B027 -- most have nothing to release
        """Release resources; called from that thread after the last copy."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the copy is, in a few words for the user."""

    @property
    def later(self) -> str:
        """How to copy later what could not be copied during the run, for the user."""
        return "resuming the run copies them"


registry: Registry[type[Tracker]] = Registry(
    "tracker", "fedpriv.trackers", ["fedpriv.tracking.to_mlflow", "fedpriv.tracking.to_tensorboard"], *subclass_of(Tracker)
)
register = registry.register


def check_tracking(config: TrackingConfig) -> None:
    """Check that the tracker of a config exists, works here, and uses the options that were set.

    Raises:
        UsageError: in one line.
    """
    kind, defaults = registry.find(config.name), TrackingConfig()
    for key in type(config).model_fields:
        if key not in {"name", *kind.uses} and getattr(config, key) not in (getattr(defaults, key), "none"):
            raise UsageError(f"tracking.{key} does nothing with the tracker {config.name!r}")
    if (missing := kind.missing()) is not None:
        raise UsageError(f"the tracker {config.name!r} needs {missing}")


def tracker_of(run_dir: Path, tracking: Mapping[str, Any]) -> Tracker | None:
    """The tracker of a run; ``None`` if it is not tracked.

    Args:
        tracking: ``tracking`` of ``run.json``: ``name``, ``uri`` and ``experiment``.
    """
    name = tracking["name"]
    if name == "mlflow" and tracking["uri"] == "none":
        return None
    return registry.find(name)(run_dir, tracking["uri"], tracking["experiment"])
