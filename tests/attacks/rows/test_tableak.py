"""Gradient matching over mixed columns: its unknowns, the pooling of starts, and rows that it recovers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding, made_up_rows
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.distances import cosine
from fedpriv.attacks.gradients.matching import Objective, build_case
from fedpriv.attacks.gradients.variables import Cells
from fedpriv.attacks.image.dlg import labels_together
from fedpriv.attacks.lab.row_controls import negative_control, positive_control
from fedpriv.attacks.lab.setting import EXAMPLE, RowSetting
from fedpriv.attacks.rows.tableak import EXPLAINED, Search, TabLeak, likely_labels
from fedpriv.attacks.scoring.row_scores import in_order, score_rows
from tests.attacks.sent import in_double, messages_of, noisy

TABLE = RowEncoding(
    (
        NumberColumn("age", 40.0, 10.0, low=20.0, high=80.0),
        NumberColumn("dose", 2.0, 0.5, gaps=True),
        CategoryColumn("smoker", ("no", "yes"), other=False),
        CategoryColumn("ward", ("a", "b", "c")),
    )
)


def search(setting: RowSetting, seed: int = 0) -> tuple[Search, torch.Tensor]:
    """The search for the rows of one message, and the rows."""
    seen, rows, labels = messages_of(setting, seed)
    case = build_case(seen, bounded=True, scale_free=True)
    assert isinstance(case.pixels, Cells)
    return Search(labels_together(case, cosine, labels.view(1, -1), known_top=True), case.pixels, setting.encoding), rows


def test_unknowns_become_rows_within_their_columns() -> None:
    rows = Cells.of(TABLE).image(3 * torch.randn(50, 2, TABLE.width, generator=torch.Generator().manual_seed(0)))
    ages, missing = rows[..., 0] * 10 + 40, rows[..., 2]
    assert ages.min() > 20 and ages.max() < 80 and ages.std() > 10
    for at in TABLE.categories:
        torch.testing.assert_close(rows[..., at].sum(-1), torch.ones(50, 2))
    assert missing.min() > 0 and missing.max() < 1
    unknown = torch.zeros(TABLE.width)
    unknown[1], unknown[2] = 2.0, 1.0
    row = Cells.of(TABLE).image(unknown)
    assert float(row[1]) == pytest.approx(2 * (1 - 0.7310586)) and float(row[0]) == pytest.approx(1.0)
    assert row[3:].tolist() == pytest.approx([0.5, 0.5, *[0.25] * 4])


def test_rows_have_unknowns() -> None:
    for encoding in (TABLE, EXAMPLE):
        rows = made_up_rows(encoding, 20, torch.Generator().manual_seed(0))
        cells = Cells.of(encoding)
        torch.testing.assert_close(cells.image(cells.unknown(rows)), rows, atol=1e-4, rtol=0)


def test_starts_are_pooled_by_the_median_after_matching() -> None:
    """Of three starts, each with its rows in another order, one is wrong in a number and in a level."""
    finder, rows = search(RowSetting(rows=3, per_message=3))
    wrong = rows.clone()
    wrong[0, 0] += 5
    wrong[1, EXAMPLE.categories[0]] = torch.tensor([0.1, 0.2, 0.7])
    ensemble = torch.stack([rows[[2, 0, 1]], wrong[[1, 0, 2]], rows])
    torch.testing.assert_close(finder.pooled(ensemble, rows), rows)


@pytest.mark.slow
def test_rows_that_are_nearly_right_are_refined() -> None:
    """Wrong levels are exchanged one after the other, and numbers descend."""
    finder, rows = search(RowSetting(TABLE, widths=(64, 16), rows=2, per_message=2))
    start = rows.clone()
    start[:, 0] *= 0.8
    for row, at in ((0, TABLE.categories[0]), (1, TABLE.categories[1])):
        start[row, at] = start[row, at].roll(1)
    refined, loss = finder.refined(start, finder.losses(start[None])[0], sweeps=10)
    torch.testing.assert_close(refined, rows, atol=0.05, rtol=0)
    assert float(loss) <= EXPLAINED


@pytest.mark.parametrize("encoding", [TABLE, EXAMPLE])
def test_the_slope_is_that_of_the_loss(encoding: RowEncoding) -> None:
    """Second derivatives against central differences, in double precision."""
    setting = RowSetting(encoding, smooth=True, widths=(9, 7), rows=2, per_message=2)
    (message,), _, labels = messages_of(setting)
    case = build_case([in_double(message)], bounded=True)
    objective = labels_together(case, cosine, labels.view(1, -1), known_top=True)
    point = torch.randn(1, objective.layout.size, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    _, slope = objective(torch.zeros(1, dtype=torch.long), point)
    moves = 1e-5 * torch.eye(objective.layout.size, dtype=torch.double)
    many = Objective(objective.loss, objective.layout, objective.data, together=objective.together).select(
        torch.zeros(len(moves), dtype=torch.long)
    )
    ahead, behind = (many(torch.arange(len(moves)), point + sign * moves)[0] for sign in (1, -1))
    torch.testing.assert_close(slope[0], (ahead - behind) / 2e-5, atol=1e-7, rtol=1e-5)
    assert slope.abs().max() > 1e-3


@pytest.mark.slow
def test_few_steps_recover_two_rows_with_unknown_labels() -> None:
    seen, rows, labels = messages_of(RowSetting(TABLE, widths=(64, 16), rows=2, per_message=2))
    result = TabLeak(steps=100, starts=4).run(seen)
    raw, _ = in_order(result.raw, rows, TABLE, 1)
    assert score_rows(raw, rows, TABLE).cells.share == 1 and sorted(result.labels.tolist()) == sorted(labels.tolist())
    assert result.loss.shape == (1,) and result.cells[0][2] in ("no", "yes")


def test_hidden_heads_are_refused() -> None:
    (message,), _, _ = messages_of(RowSetting(threat=ThreatModel(labels=True), rows=1))
    known = {name: tensor for name, tensor in message.weights.items() if not name.startswith("top.")}
    with pytest.raises(Inapplicable, match="hidden layers"):
        TabLeak().run([replace(message, weights=known)])


@pytest.mark.slow
@pytest.mark.parametrize("per_message", [1, 8])
def test_it_passes_its_controls(per_message: int) -> None:
    setting = RowSetting(rows=max(4, per_message), per_message=per_message)
    for control in (positive_control(TabLeak(), setting), negative_control(TabLeak(steps=100, starts=2), setting)):
        assert control.passed, control.sentence


def test_noise_is_weighed_by_its_variance() -> None:
    """Of a noisy message, the true rows leave what noise alone leaves, and other rows more."""
    (message,), rows, labels = messages_of(RowSetting(TABLE, widths=(64, 16), rows=2, per_message=2))
    case = build_case([noisy(message, 1e-3)], bounded=True, scale_free=True)
    assert isinstance(case.pixels, Cells) and not case.exact
    finder = Search(labels_together(case, cosine, labels.view(1, -1), known_top=True), case.pixels, TABLE)
    other = rows.roll(1, 1)
    of_truth, of_others = finder.losses(torch.stack([rows, TABLE.project(other)])).tolist()
    assert of_truth == pytest.approx(case.expected(), rel=0.2) and of_others > 3 * of_truth


def test_labels_are_inferred_by_two_rules() -> None:
    """The rules agree on a message of one row; where they differ, both answers are tried."""
    (message,), _, labels = messages_of(RowSetting(rows=1))
    assert [guess.tolist() for guess in likely_labels(message)] == [labels.tolist()]
    assert [guess.tolist() for guess in likely_labels(replace(message, labels=labels))] == [labels.tolist()]
    setting = RowSetting(rows=16, per_message=16)
    differing = 0
    for seed in range(6):
        (message,), _, labels = messages_of(setting, seed)
        guesses = likely_labels(message)
        differing += len(guesses) > 1
        assert any(guess.sum() == labels.sum() for guess in guesses), "one of them is right"
    assert differing
