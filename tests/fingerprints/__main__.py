"""``python -m tests.fingerprints --write``: replace the stored fingerprints by this machine's."""

from __future__ import annotations

import sys

from tests.fingerprints import stored
from tests.fingerprints.runs import runs
from tests.fingerprints.taking import machine, take

if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    stored.write({name: take(settings) for name, settings in runs().items()})
    print(f"{stored.FILE}: {len(stored.load()['runs'])} runs on {machine()}")
