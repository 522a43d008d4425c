"""Which code computes a run: server and clients must have the same."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import fedpriv
from fedpriv.deploy.frames import one_line
from fedpriv.errors import UsageError

WITHOUT_EFFECT = frozenset(
    {
        *("api", "attacks", "audit", "cli", "experiments", "flower", "frontier", "nvflare"),
        *("plots", "prediction", "recorder", "tracking"),
    }
)
"""Packages on which no message and no state of a deployed run depends: with others of them, runs and clients go on."""
WITH_EFFECT = frozenset(f"attacks/core/{name}.py" for name in ("by_name", "functional", "threads"))
"""Files of these packages that a run uses all the same."""


@cache
def code_version() -> str:
    """The version of this fedpriv, and after a ``+`` a hash of the source files that a run depends on."""
    root = Path(fedpriv.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path.parts[0] not in WITHOUT_EFFECT or path.as_posix() in WITH_EFFECT:
            digest.update(str(path).encode() + b"\0" + file.read_bytes())
    return f"{version('fedpriv')}+{digest.hexdigest()[:12]}"


def code_hash(code: str) -> str:
    """The hash in a :func:`code_version`. Where it is the same, server and clients compute the same, whatever their versions."""
    return code.rpartition("+")[2]


def check_code(code: object, what_runs: str) -> None:
    """Check that some code computes the same as that of this process.

    Args:
        code: its :func:`code_version`, as another side says.
        what_runs: subject and verb of the message, such as ``client 2 runs``.

    Raises:
        UsageError: it does not.
    """
    if not isinstance(code, str) or code_hash(code) != code_hash(code_version()):
        raise UsageError(
            f"{what_runs} fedpriv {one_line(code)}, and here is fedpriv {code_version()}, which may compute other numbers; "
            "install the same version on all machines, and start them again"
        )
