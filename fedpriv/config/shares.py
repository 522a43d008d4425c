"""Shares of the clients: how many one comes to, and which one is usual."""

USUAL_PARTICIPANTS = 10
"""Clients a round where ``train.participation`` is not set: what 100 clients at 10 %, the papers' usual setting, come to."""


def part_of(count: int, share: float) -> int:
    """How many of ``count`` a share is, rounded down: 0.29 of 100 are 29, though the product of the floats is a little less."""
    return int(share * count + 1e-9)


def usual_share(holders: int) -> float:
    """The share of the clients that take part in a round where none is given, of so many that hold training data."""
    return min(1.0, USUAL_PARTICIPANTS / max(1, holders))
