"""EUC: which layers wait, what then crosses the wire, and what clients go on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpriv.aggregation.euc import intervals
from fedpriv.errors import UsageError
from fedpriv.interfaces import LocalUpdate
from fedpriv.server.answers.arrivals import Arrivals
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed
from fedpriv.wire.message import Refused
from fedpriv.wire.report import Answer, Report
from tests.aggregation.rounds import doubles, merge, uploads

Simulate = Callable[..., Simulation]
EARLY = {"name": "euc", "start": 2}
OPTIONS = {"train.participation": 1.0, "data.clients": 4, "train.rounds": 5, "model.projection": 16}


def test_intervals_by_hand() -> None:
    """Sizes 4, 1, 5 of 10; m * size = .4, .2, 5 of 5.6: the small ones come first."""
    m, sizes = doubles([0.1, 0.2, 1]), torch.tensor([4, 1, 5])
    # walked: .4/5.6 < 1 - 4/10 waits; .6/5.6 < 1 - 5/10 waits; 1 < 0 does not.
    assert intervals(m, sizes, 2).tolist() == [2, 2, 1]
    assert intervals(m.flip(0), sizes.flip(0), 3).tolist() == [1, 3, 3]
    assert intervals(doubles([1, 1]), torch.tensor([1, 1]), 2).tolist() == [1, 1], "half is not less than half"
    assert intervals(doubles([0, 0]), torch.tensor([1, 1]), 2).tolist() == [1, 1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.integers(1, 1000)), min_size=1, max_size=12))
def test_what_waits_differs_less_than_what_does_not(layers: list[tuple[float, int]]) -> None:
    m, sizes = doubles([layer[0] for layer in layers]), torch.tensor([layer[1] for layer in layers])
    rounds = intervals(m, sizes, 2)
    assert set(rounds.tolist()) <= {1, 2} and (rounds == 1).any()
    if (rounds == 2).any():
        assert m[rounds == 2].max() <= m[rounds == 1].min()
        weight = m * sizes
        assert weight[rounds == 2].sum() / weight.sum() < sizes[rounds == 1].sum() / sizes.sum()


def test_weights_by_closeness() -> None:
    start, rows = doubles([1, 2, 2, 0, 3, 4]), doubles([[1, 2, 2, 2, 3, 4], [1, 2, 2, -4, 6, 8]])
    merged = merge("euc", uploads(start, rows, examples=[1, 99]), euc="weight")
    first = 1 / (1e-5 + doubles([2, 4]))
    second = 1 / (1e-5 + doubles([0, 5]))
    torch.testing.assert_close(merged.row[:4], first / first.sum() @ rows[:, :4])
    torch.testing.assert_close(merged.row[4:], second / second.sum() @ rows[:, 4:])


def played(simulate: Simulate, **overrides: Any) -> tuple[Simulation, dict[int, dict[str, Any]]]:
    """A run, and by round what crossed the wire, what clients started from and ended with, and the server's model after it."""
    simulation = simulate("fedavg", play=False, aggregation=EARLY, **OPTIONS, **overrides)
    rounds: dict[int, dict[str, Any]] = {}
    method = simulation.federation.method
    server_part, begin, keep = method.aggregation, method.objective.begin, method.aggregation.keep

    def of(round: int) -> dict[str, Any]:
        return rounds.setdefault(round, {"down": set(), "up": set(), "start": {}, "end": {}})

    def watched_begin(update: LocalUpdate) -> None:
        assert torch.equal(update.start, update.row)  # an objective begins with what the client goes on from: MOON freezes it
        begin(update)
        of(update.round)["start"][update.client] = update.row.clone()

    def watched_keep(update: LocalUpdate) -> dict[str, Tensor]:
        of(update.round)["end"][update.client] = update.row.clone()
        return keep(update)

    def tap(way: str, sealed: Sealed) -> None:
        if way != "report":
            of(sealed.round)[way].add(frozenset(name for name in sealed.schema if not name.startswith("statistic.")))

    method.objective.begin, server_part.keep = watched_begin, watched_keep  # type: ignore[method-assign]
    simulation.taps.append(tap)
    for record in simulation.rounds():
        rounds[record["round"]]["after"] = simulation.state.row.clone()
        rounds[record["round"]]["waiting"] = record["metrics"]["euc/waiting"]
    return simulation, rounds


def test_what_waits_is_not_sent_and_clients_go_on_with_their_own(simulate: Simulate) -> None:
    simulation, rounds = played(simulate)
    space, shared = simulation.federation.resident.space, set(simulation.federation.method.shared_names)
    assert rounds[1]["waiting"] == 0 and rounds[2]["waiting"] > 0
    assert rounds[1]["up"] == rounds[2]["up"] == rounds[4]["up"] == {frozenset(shared)}
    assert rounds[1]["down"] == rounds[2]["down"] == rounds[3]["down"] == rounds[5]["down"] == {frozenset(shared)}
    (third,) = rounds[3]["up"]
    waiting = shared - third
    assert waiting and all(space[name].kind == "weight" for name in waiting)
    assert rounds[4]["down"] == {third}
    for name in space.names:
        unchanged = torch.equal(space.view(rounds[3]["after"], name), space.view(rounds[2]["after"], name))
        assert unchanged == (name in waiting), name
        for client in range(4):
            source = rounds[3]["end"][client] if name in waiting else rounds[3]["after"]
            assert torch.equal(space.view(rounds[4]["start"][client], name), space.view(source, name)), name


def test_euc_refuses_a_client_without_its_copy(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Arrivals.take

    def refusing(self: Arrivals, answer: Answer) -> Report:
        if (self.round, answer.client) == (3, 1):
            raise Refused("it does not fit")
        return take(self, answer)

    monkeypatch.setattr(Arrivals, "take", refusing)
    simulation = simulate("fedavg", play=False, aggregation=EARLY, **OPTIONS)
    for _ in range(3):
        simulation.run_round()
    with pytest.raises(UsageError, match=r"client 1 has no copy of \S+, which is not sent in round 4"):
        simulation.run_round()


def test_until_something_waits_it_is_fedavg(simulate: Simulate) -> None:
    late = simulate("fedavg", aggregation="euc", **OPTIONS)
    plain = simulate("fedavg", **OPTIONS, **{"train.selection": "all"})
    assert torch.equal(late.state.row, plain.state.row)
    assert late.federation.config.train.selection == "all", "as it suggests"


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"train.selection": "uniform", "train.participation": 0.5}, "all must take part each round"),
        ({"train.participation": 0.5}, "train.participation 0.5: with fedavg-euc all clients take part"),
        ({"train.on_nan": "drop"}, "train.on_nan=stop"),
        ({"wire.transforms": [{"name": "clip", "norm": 1.0}]}, "clip acts on a client's change"),
    ],
)
def test_what_cannot_be_is_refused(simulate: Simulate, overrides: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        simulate("fedavg", play=False, aggregation="euc", **{**OPTIONS, **overrides})


def test_by_closeness_some_clients_are_enough(simulate: Simulate) -> None:
    """As the refusals of euc=lama say."""
    options = {"aggregation": {"name": "euc", "euc": "weight"}, "train.participation": 0.5, "train.rounds": 1}
    run = simulate("fedavg", **options)
    assert run.config.train.selection == "uniform" and run.folder.records()[1]["metrics"]["participants"] == 5
