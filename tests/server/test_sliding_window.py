"""SimProx's selection: a cycle serves all clients, in windows of distinct clients."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.server.sampling import participants, sliding_window
from fedpriv.simulation.setup import build
from tests.simulation.small import config

TWENTY = list(range(20))


def cycle(seed: int, first: int, everyone: list[int] = TWENTY, count: int = 6, windows: int = 4) -> list[list[int]]:
    return [sliding_window(seed, everyone, count, round) for round in range(first, first + windows)]


@pytest.mark.parametrize("first", [1, 5, 9])
def test_six_of_twenty_take_four_rounds(first: int) -> None:
    served = cycle(0, first)
    assert all(len(set(window)) == 6 for window in served)
    updates = Counter(client for window in served for client in window)
    assert set(updates) == set(TWENTY)
    assert sorted(updates.values()) == [1] * 16 + [2] * 4
    assert set(served[0][:4]) == {client for client, n in updates.items() if n == 2}, (
        "the cycle's first clients fill its last window"
    )


def test_it_is_shuffled_anew_in_each_cycle_and_by_seed() -> None:
    assert cycle(0, 1) == cycle(0, 1)
    assert cycle(0, 1) != cycle(0, 5) and cycle(0, 1) != cycle(1, 1)
    assert cycle(0, 1)[0] != list(range(6)), "the first cycle too"


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 5))
def test_everybody_is_served_in_any_cycle(clients: int, count: int, number: int) -> None:
    count = min(count, clients)
    windows = -(-clients // count)
    everyone = [3 * i for i in range(clients)]
    served = cycle(7, number * windows + 1, everyone, count, windows)
    assert all(len(set(window)) == count for window in served)
    assert {client for window in served for client in window} == set(everyone)


def test_simprox_suggests_it_and_the_config_decides() -> None:
    federation = build(config("simprox"))
    assert federation.config.train.selection == "window"
    chosen = participants(federation.agreement, 2)
    assert chosen == sorted(sliding_window(0, federation.data.nonempty, 3, 2))
    assert build(config("simprox", **{"train.selection": "uniform"})).config.train.selection == "uniform"
