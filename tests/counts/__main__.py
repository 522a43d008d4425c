"""Prints each count, its difference from the committed table and its bound; exits with 1 if one is over its bound."""

import sys
import tempfile
from pathlib import Path

from tests.counts.measure import bounds, measure


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        counts = measure(Path(folder))
    table = bounds()
    for name, count in counts.items():
        row = table[name]
        change = f"{count - row.count:+g}" if count != row.count else "as before"
        print(f"{name:40}{count:>8g}{change:>12}   at most {row.bound:g}: {row.reason}")
    return int(any(count > table[name].bound for name, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
