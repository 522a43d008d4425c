"""Learned inversion of rows: what it learns from, the distributions of cells, what it recovers, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding, made_up_rows
from fedpriv.attacks.core.observation import Observation, Public, Schedule, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.gradients.simulated_messages import simulate_messages
from fedpriv.attacks.lab.row_controls import negative_control, positive_control
from fedpriv.attacks.lab.same_net import rows_on_same_net
from fedpriv.attacks.lab.setting import EXAMPLE, RowSetting
from fedpriv.attacks.rows.closed_form import ClosedForm
from fedpriv.attacks.rows.learned_rows import Grids, LearnedRows, crossed
from fedpriv.attacks.scoring.row_scores import right_cells, typical_row
from tests.attacks.sent import each, messages_of, noisy

TABLE = RowEncoding(
    (NumberColumn("age", 40.0, 10.0), NumberColumn("dose", 2.0, 0.5, gaps=True), CategoryColumn("ward", ("a", "b", "c")))
)

SMALL = RowSetting(TABLE, widths=(64, 16), rows=12, threat=ThreatModel(public=True))
QUICK = LearnedRows(rows=400, components=20, width=96, steps=150, lr=1e-2)
HARDLY = LearnedRows(rows=20, components=4, width=8, steps=2)


def share(raw: torch.Tensor, rows: torch.Tensor) -> float:
    return float(right_cells(raw, rows, TABLE).double().mean())


def test_distributions_of_cells_are_those_of_their_rows() -> None:
    rows = made_up_rows(EXAMPLE, 40, torch.Generator().manual_seed(0))
    grids = Grids.of(EXAMPLE, rows)
    weights = grids.weights(rows)
    for part in torch.split(weights, grids.sizes, 1):
        torch.testing.assert_close(part.sum(1), torch.ones(40))
    torch.testing.assert_close(grids.rows(weights.clamp_min(1e-12).log()), rows, atol=1e-4, rtol=0)


def test_crossings_have_each_cell_from_either_of_two_public_rows() -> None:
    rows, labels = made_up_rows(TABLE, 5, torch.Generator().manual_seed(0)), torch.arange(5)
    torch.manual_seed(0)
    known = crossed(Public(rows, labels), 50, TABLE)
    assert torch.equal(known.images[:5], rows) and torch.equal(known.labels[:5], labels) and len(known.images) == 50
    for at in TABLE.entries:
        assert (known.images[:, None, at] == rows[:, at]).all(2).any(1).all()
    assert not (known.images[5:, None] == rows).all(2).any(1).all(), "some are new"
    assert torch.equal(crossed(Public(rows, labels), 3, TABLE).images, rows[:3])


def test_it_recovers_rows_also_under_noise_and_nothing_from_noise_alone() -> None:
    seen, rows, _ = messages_of(SMALL)
    guess = share(typical_row(TABLE).expand_as(rows), rows)
    assert share(QUICK.run(seen).raw, rows) >= 0.9 > guess + 0.5
    hidden = [noisy(message, 0.1, seed) for seed, message in enumerate(seen)]
    assert share(QUICK.run(hidden).raw, rows) > max(guess, share(ClosedForm().run(hidden).raw, rows)) + 0.2
    silent = [noisy(each(message, torch.zeros_like), 1.0, seed) for seed, message in enumerate(seen)]
    assert share(QUICK.run(silent).raw, rows) <= guess + 0.2


def test_simulated_messages_of_true_rows_are_theirs_for_numeric_labels_too() -> None:
    setting = replace(SMALL, rows=3, numbers=True, classes=1, steps=2)
    seen, rows, labels = messages_of(setting)
    (made,) = simulate_messages(seen[0], Public(rows, labels))
    for name, tensor in made.items():
        torch.testing.assert_close(tensor, torch.stack([message.shared[name] for message in seen]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"public": None}, "public rows of the same table"),
        ({"num_examples": 2}, "learns messages of one row, and this one stands for 2"),
        ({"loss": "a contrast"}, "the client minimised a contrast"),
        ({"kind": "change"}, "its schedule, which is not known"),
        ({"encoding": None}, "rows of a table"),
        ({"shared": {}}, "no layer is shared"),
    ],
)
def test_it_says_where_it_does_not_apply(changes: dict[str, object], reason: str) -> None:
    (seen, *_), _, _ = messages_of(SMALL)
    LearnedRows.check(replace(seen, kind="change", schedule=Schedule(lr=0.1)))
    with pytest.raises(Inapplicable, match=reason):
        QUICK.run([replace(seen, **changes)])


def test_on_the_attacked_net_it_is_tried_on_public_rows_that_it_does_not_get() -> None:
    (seen, *_), _, _ = messages_of(SMALL)
    assert seen.public is not None
    weights, given = dict(seen.weights), list[Observation]()

    class Watched(LearnedRows):
        def run(self, observations: Sequence[Observation], seed: int = 0) -> RowReconstruction:
            given.extend(observations)
            return super().run(observations, seed)

    control = rows_on_same_net(Watched(**vars(HARDLY)), seen, weights, 0)
    assert "of the cells of 4 public rows" in control.sentence and len(given) == 4 and given[0].public is not None
    assert torch.equal(given[0].public.images, seen.public.images[4:]), "a copy of the row would be found"
    few = replace(seen, public=Public(seen.public.images[:7], seen.public.labels[:7]))
    refused = rows_on_same_net(HARDLY, few, weights, 0)
    assert not refused.passed and "7 public rows are too few" in refused.sentence


@pytest.mark.slow
def test_it_passes_its_controls() -> None:
    attack = LearnedRows()
    for control in (positive_control(attack, attack.control), negative_control(attack, attack.control)):
        assert control.passed, control.sentence
