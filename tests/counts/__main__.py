"""Prints each count, its difference from the committed table and its bound; exits with 1 if one is over its bound."""

import sys
import tempfile
from pathlib import Path

from tests.counts.measure import bounds, lines, measure


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        counts = measure(Path(folder))
    table = bounds()
    print(*lines(counts), sep="\n")
    return int(any(count > table[name].bound for name, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
