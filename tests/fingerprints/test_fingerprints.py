"""Short runs end where they ended when their fingerprints were stored.

On the machine that stored them, bit for bit; on another one, whose sums may round differently, within a tolerance. The name of
each test says which. Where a change is meant to move numbers, ``python -m tests.fingerprints --write`` renews the file.
"""

from __future__ import annotations

import pytest

from tests.fingerprints import stored
from tests.fingerprints.runs import runs
from tests.fingerprints.taking import HASHES, machine, take
from tests.marks import slow_but

STORED = stored.load()
EXACT = STORED["machine"] == machine()
HOW = "bit for bit" if EXACT else "within tolerance"
RUNS = runs()
QUICK = ["method fedavg", "method mpfedcon", "method scaffold, together", "defence gaussian", "schedule"]


@pytest.mark.parametrize("name", slow_but(QUICK, RUNS), ids=[f"{name} - {HOW}" for name in RUNS])
def test_a_run_ends_where_it_ended(name: str) -> None:
    assert name in STORED["runs"], f"no fingerprint of {name!r} is stored: python -m tests.fingerprints --write"
    expected, taken = STORED["runs"][name], take(RUNS[name])
    if EXACT:
        assert taken == expected, f"other bits of {[part for part in expected if taken[part] != expected[part]]}"
    else:
        numbers = {part: value for part, value in taken.items() if part not in HASHES}
        assert numbers == stored.rounded(expected), f"compared within tolerance: stored on {STORED['machine']}, here {machine()}"


def test_no_fingerprint_is_left_of_a_run_that_is_no_more() -> None:
    assert STORED["runs"].keys() <= RUNS.keys()
