"""Statistics of tables and images under differential privacy: declared bounds, noise, and a part of epsilon."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.client.statistics import PrivateStatistics
from fedpriv.data.encoding import CategoryColumn, NumberColumn
from fedpriv.data.statistics.cells import CategoryCells, NumberCells
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.data.statistics.private import contribution, from_tensors, noisy_encoding, sensitivity
from fedpriv.data.statistics.totals import Inquiry
from fedpriv.errors import UsageError
from fedpriv.noise_source import SeededSource
from fedpriv.privacy.accountant import epsilon, history_of, noise_for
from fedpriv.simulation.setup import build
from tests.simulation.small import config, play

BOUNDS = {"age": (0.0, 100.0), "pulse": (40.0, 200.0)}
LEVELS = {"sex": ("f", "m")}
DRAW = np.random.default_rng(0)
AGES, PULSES = DRAW.normal(60, 12, 4000), np.where(DRAW.random(4000) < 0.3, np.nan, DRAW.normal(80, 9, 4000))
CELLS = (
    NumberCells("age", AGES, AGES[:1]),
    CategoryCells.of("sex", ["f", "m"] * 2000, ["f"]),
    NumberCells("pulse", PULSES, PULSES[:1]),
)
KIND = SampleKind.of_cells(CELLS)
INQUIRY = KIND.inquiry({}, classes=2)


def rows(held: Any, cells: Any = CELLS) -> TrainingRows:
    return TrainingRows(np.asarray(held), cells, None, torch.tensor([0, 1] * 2000), 5)


def test_without_noise_the_encoding_is_that_of_the_rows() -> None:
    total = sum(contribution(rows(range(first, first + 1000)), INQUIRY, BOUNDS, False) for first in range(0, 4000, 1000))
    encoding = noisy_encoding(KIND, INQUIRY, total.tolist(), BOUNDS, LEVELS)
    age, sex, pulse = encoding.columns
    assert isinstance(age, NumberColumn) and age.mean == pytest.approx(AGES.mean()) and age.std == pytest.approx(AGES.std())
    assert isinstance(pulse, NumberColumn) and pulse.mean == pytest.approx(np.nanmean(PULSES)) and pulse.gaps and age.gaps
    assert sex == CategoryColumn("sex", ("f", "m")) and encoding.classes == (2000, 2000)


@pytest.mark.parametrize("values", [(1e9, -1e9), (np.nan, 40.0), (100.0, 200.0), (50.0, 120.0)])
def test_no_row_adds_more_than_the_sensitivity(values: tuple[float, float]) -> None:
    """Numbers beyond the bounds are clipped. At client level, the mean over rows is no larger either."""
    cells = tuple(NumberCells(name, np.full(4000, value), np.zeros(1)) for name, value in zip(BOUNDS, values, strict=True))
    asked = Inquiry(("age", "pulse"), classes=2)
    assert sensitivity(asked) == math.sqrt(7)
    assert np.linalg.norm(contribution(rows([3], cells), asked, BOUNDS, False)) <= sensitivity(asked)
    assert np.linalg.norm(contribution(rows(range(500), cells), asked, BOUNDS, True)) <= sensitivity(asked)


def test_each_client_adds_noise_of_that_size_and_the_same_to_the_same_question() -> None:
    private = PrivateStatistics(BOUNDS, 3.0, SeededSource(5))
    exact = contribution(rows(range(40)), INQUIRY, BOUNDS, False)
    answers = [from_tensors(PrivateStatistics(BOUNDS, 3.0, SeededSource(n))(rows(range(40)), INQUIRY)) for n in range(400)]
    spread = np.stack(answers) - exact
    assert spread.std() == pytest.approx(3 * sensitivity(INQUIRY), rel=0.05) and abs(spread.mean()) < 0.5
    again, other = private(rows(range(40)), INQUIRY), private(rows(range(40)), Inquiry(("age",)))
    assert torch.equal(*(part["statistic.noisy"] for part in (private(rows(range(40)), INQUIRY), again)))
    assert other["statistic.noisy"].shape == (3,)


def test_what_is_not_declared_is_not_told() -> None:
    private = PrivateStatistics({"age": (0.0, 100.0)}, 3.0, SeededSource(5))
    with pytest.raises(UsageError, match="bounds of column 'pulse' are not declared"):
        private(rows([0]), INQUIRY)
    with pytest.raises(UsageError, match="counts of levels under differential privacy"):
        private(rows([0]), Inquiry(("age",), (("sex", ("f",)),)))


def test_training_gets_the_rest_of_epsilon() -> None:
    """By the accountant: the noise of training is that with which both together spend the target."""
    before = ((noise_for(0.5, 1e-5, [((1.0, 1),)], "rdp"), 1.0, 1),)
    assert 0.48 < epsilon(before, 1e-5, "rdp") <= 0.5
    plan = ((0.1, 200),)
    noise = noise_for(3.0, 1e-5, [plan], "rdp", before)
    assert 2.98 < epsilon(history_of(noise, plan, before), 1e-5, "rdp") <= 3.0
    assert noise > noise_for(3.0, 1e-5, [plan], "rdp")
    shared = noise_for(3.0, 1e-5, [(*plan, *plan)], "rdp", before)  # a sample of two clients, each of which sends statistics
    assert 2.98 < epsilon(history_of(shared, (*plan, *plan), before * 2), 1e-5, "rdp") <= 3.0


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f"{AGES[n]:.1f},{'fm'[n % 2]},s{n % 4},{int(AGES[n] > 60)}" for n in range(400)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,sex,site,label", *lines]) + "\n", encoding="utf-8")
    return tmp_path / "rows.csv"


def private_run(table: Path, **more: Any) -> dict[str, Any]:
    by_site = {"data.partition.name": "by_column", "data.partition.column": "site", "data.clients": 4}
    private = {"privacy.level": "sample", "privacy.target_epsilon": 4.0, "privacy.delta": 1e-4, "train.rounds": 1}
    declared = {"data.bounds": {"age": [0, 100]}, "data.levels": {"sex": ["f", "m"]}}
    return {"data.name": str(table), "train.participation": 1.0, **by_site, **private, **declared, **more}


def test_a_private_run_of_a_table(table: Path, tmp_path: Path) -> None:
    play(tmp_path / "run", "fedavg", **private_run(table, **{"wire.keep_payloads": "all"}))
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert 0.38 < privacy["statistics_epsilon"] <= 0.4 and 3.9 < privacy["epsilon"] <= 4.0
    kept = sorted(path.name for path in (tmp_path / "run" / "payloads" / "round-0000").glob("*-*.safetensors"))
    assert kept == [f"statistics-{client:04d}.safetensors" for client in range(4)]


def test_declared_bounds_alone_spend_nothing(table: Path) -> None:
    federation = build(config("fedavg", **private_run(table, **{"privacy.statistics_epsilon": 0})))
    age, sex = federation.dataset.columns
    assert age == NumberColumn("age", 50.0, pytest.approx(100 / math.sqrt(12)), True) and sex == CategoryColumn("sex", ("f", "m"))
    assert federation.agreement.spent_before == ()


def test_client_level_statistics_are_noisy_at_the_server(table: Path) -> None:
    more = {"privacy.level": "client", "privacy.delta": 1e-2, "privacy.statistics_epsilon": 1.0}
    federation = build(config("fedavg", **private_run(table, **more)))
    assert federation.statistics is not None and federation.agreement.spent_before
    sent = [crossed.message for crossed in federation.statistics.crossed if crossed.message.client is not None]
    assert len(sent) == 4 and all(float(from_tensors(message.tensors())[0]) == 1.0 for message in sent)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"data.bounds": {}}, r"no client may tell how large the numbers of column 'age' are; --set data\.bounds\.age="),
        ({"data.levels": {}}, r"no client may tell the levels of column 'sex'; --set data\.levels\.sex=\[NAME"),
        ({"privacy.target_epsilon": None, "privacy.noise": 1.0}, r"how much epsilon .* --set privacy\.statistics_epsilon=E"),
        ({"privacy.statistics_epsilon": 4.0}, r"leaves nothing of target_epsilon 4 for training"),
        ({"privacy.level": "none", "privacy.target_epsilon": None, "privacy.statistics_epsilon": 1.0}, "without a level"),
        ({"data.bounds": {"sex": [0, 1]}}, "column 'sex' .* holds no numbers"),
        ({"data.bounds": {"height": [0, 1]}}, r"unknown column in data\.bounds 'height'"),
    ],
)
def test_what_is_refused(table: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        build(config("fedavg", **private_run(table, **more)))
