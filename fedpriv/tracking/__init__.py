"""Tracking, by MLflow unless the config names another tracker. The run folder is the primary record; a tracker copies it.

The round loop writes the folder and notifies a copier, which only reads the records. Records that were not sent (the server was
unreachable, the process was killed) stay in the folder, and :func:`sync` sends them later.
"""

from fedpriv.storage.records import Record
from fedpriv.tracking.access import ForeignStore, named_store, permitted_store, settle_store, whole_address
from fedpriv.tracking.copiers import ProcessCopier, ThreadCopier, copier_of
from fedpriv.tracking.folder import find_run, flatten, read_records, read_run
from fedpriv.tracking.mirror import sync, target_uri
from fedpriv.tracking.parents import parent_run
from fedpriv.tracking.sending import SyncReport
from fedpriv.tracking.store import (
    ServerAway,
    TrackingError,
    artifact_dir,
    create_store,
    default_uri,
    sqlite_path,
    tracked_in,
)
from fedpriv.tracking.trackers import Tracker, check_tracking, tracker_of

__all__ = [
    "ForeignStore",
    "ProcessCopier",
    "Record",
    "ServerAway",
    "SyncReport",
    "ThreadCopier",
    "Tracker",
    "TrackingError",
    "artifact_dir",
    "check_tracking",
    "copier_of",
    "create_store",
    "default_uri",
    "find_run",
    "flatten",
    "named_store",
    "parent_run",
    "permitted_store",
    "read_records",
    "read_run",
    "settle_store",
    "sqlite_path",
    "sync",
    "target_uri",
    "tracked_in",
    "tracker_of",
    "whole_address",
]
