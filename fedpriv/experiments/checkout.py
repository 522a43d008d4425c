"""The git checkout of an experiment: a result names its commit, which reproduces it only where nothing was changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fedpriv.errors import UsageError

_SHOWN = 3
"""Changed files that an error names."""


def refuse_changes(experiment: Path) -> None:
    """Check that the git checkout that holds an experiment's YAML, if one does, is as it was committed, and has the YAML.

    Untracked files do not count.

    Raises:
        UsageError: a tracked file was changed, with the names of the first ones; or git does not track the YAML.
    """
    changed = _git(experiment, "diff", "--name-only", "HEAD")
    if changed is None:
        return
    if not changed and not _git(experiment, "ls-files", "--", experiment.name):
        changed = [experiment.name]
    if changed:
        names = ", ".join(changed[:_SHOWN]) + (f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else "")
        raise UsageError(
            f"not committed: {names}; a result names the commit that repeats it, so commit the changes first, "
            "or --allow-dirty for results that are not to be kept"
        )


def commit_of(experiment: Path) -> str | None:
    """The commit of the git checkout that holds an experiment's YAML; ``None`` outside one."""
    lines = _git(experiment, "rev-parse", "HEAD")
    return lines[0] if lines else None


def _git(experiment: Path, *command: str) -> list[str] | None:
    """What git prints in the folder, by line; ``None`` outside a checkout, before its first commit, or without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(experiment.absolute().parent), *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            encoding="utf-8",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None
