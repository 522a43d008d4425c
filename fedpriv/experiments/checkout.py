"""The checkout that holds an experiment: a result names its commit, which repeats the result only where nothing was changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fedpriv.errors import UsageError

_SHOWN = 3
"""Changed files that an error names."""


def refuse_changes(experiment: Path) -> None:
    """Check that the git checkout that holds an experiment's YAML, if one does, is as it was committed.

    Files that git does not track are no changes.

    Raises:
        UsageError: a tracked file was changed; with the names of the first ones.
    """
    command = ["git", "-C", str(experiment.absolute().parent), "diff", "--name-only", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    changed = done.stdout.splitlines()
    if done.returncode == 0 and changed:
        names = ", ".join(changed[:_SHOWN]) + (f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else "")
        raise UsageError(
            f"not committed: {names}; a result names the commit that repeats it, so commit the changes first, "
            "or --allow-dirty for results that are not to be kept"
        )
