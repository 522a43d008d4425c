"""Statistics of training rows, and the encoding that follows from them."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.config import DataConfig, RunConfig
from fedpriv.data.encoding import CategoryColumn, NumberColumn
from fedpriv.data.statistics.cells import CategoryCells, NumberCells
from fedpriv.data.statistics.exact import SUM_WORDS, from_words, moments, to_words
from fedpriv.data.statistics.fitting import SampleKind
from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.data.statistics.messages import text_message, value_of
from fedpriv.data.statistics.totals import SQUARES, SUMS, Inquiry, Totals, added, as_row, from_row
from fedpriv.errors import UsageError
from fedpriv.wire import Expected, Payload, Refused, seal, unseal

DRAW = np.random.default_rng(0)


@pytest.mark.parametrize(
    "values",
    [
        DRAW.normal(size=500),
        1e9 + DRAW.normal(size=500),
        1e15 + DRAW.normal(size=500),
        10.0 ** DRAW.uniform(-30, 37, 500) * DRAW.choice([-1, 1], 500),
        np.full(300, 0.1),
        np.array([-3.0, 5.0]),
        np.array([2.0**-149, 3 * 2.0**-149]),
        np.array([2.0**127, -(2.0**127)]),
    ],
    ids=["usual", "1e9 + small", "1e15 + small", "wide", "constant", "two", "denormal", "large"],
)
def test_moments_are_exact(values: Any) -> None:
    """Python's statistics module computes with fractions."""
    sums = moments(values)
    assert sums.mean == statistics.mean(values.tolist())
    assert sums.deviation == pytest.approx(statistics.pstdev(values.tolist()), rel=1e-15, abs=0)
    assert sums.possible


def test_moments_agree_with_numpy() -> None:
    values = 1e9 + DRAW.normal(size=10_000)
    assert moments(values).deviation == pytest.approx(np.std(values), rel=1e-9)
    naive = np.mean(values**2) - np.mean(values) ** 2
    assert not 0.5 < naive < 2, "sums of squares in float64 would not do"


def test_equal_numbers_have_no_deviation_however_they_are_divided_among_clients() -> None:
    parts = [moments(np.full(count, 0.1)) for count in (1, 299, 7)]
    total = added([Totals(0, (part,)).tensors() for part in parts])
    (joined,) = Totals.of({**total, "statistic.rows": torch.tensor(307)}, Inquiry(("a",))).moments
    assert joined.deviation == 0 and joined.mean == 0.1 and joined.count == 307


@pytest.mark.parametrize("number", [0, 1, -1, 2**300 - 1, -(2**300), -(2**32), 2**31])
def test_words_give_their_number(number: int) -> None:
    words = to_words(number, SUM_WORDS)
    assert from_words(words) == number and all(0 <= word < 2**32 for word in words[:-1]) and abs(words[-1]) < 2**32
    assert from_words([2 * word for word in words]) == 2 * number


def rows_of(cells: Any, held: Any, min_level: int = 2) -> TrainingRows:
    return TrainingRows(np.array(held), cells, None, torch.tensor([0, 1] * 6), min_level)


AGES = [30.0, np.nan, 50.0, 1e9, 31, 32, 33, 34, 35, 36, 37, 38]
SEXES = ["f", "f", "m", None, "f", "x", "m", "m", "", "f", "f", "m"]
CELLS = (NumberCells("age", np.array(AGES), np.array([1.0])), CategoryCells.of("sex", SEXES, ["z"]))
KIND = SampleKind.of_cells(CELLS)


def test_the_sum_of_clients_is_that_of_all_rows_in_any_order() -> None:
    inquiry = Inquiry(("age",), (("sex", ("", "f", "m", "x")),), classes=2)
    clients = [rows_of(CELLS, held, 1).totals(inquiry).tensors() for held in ([0, 5, 7], [1, 2, 3, 4], [6, 8, 9, 10, 11])]
    whole = rows_of(CELLS, range(12), 1).totals(inquiry)
    assert Totals.of(added(clients), inquiry) == Totals.of(added(clients[::-1]), inquiry) == whole
    there = [age for age in AGES if not np.isnan(age)]
    assert whole.moments[0].mean == statistics.mean(there) and whole.moments[0].count == 11
    assert whole.levels == ((2, 5, 4, 1, 0),) and whole.classes == (6, 6)
    tensors = whole.tensors()
    assert Totals.of(from_row(as_row(tensors), inquiry.forms), inquiry) == whole


def test_a_level_of_too_few_rows_leaves_no_client() -> None:
    """Neither its name nor its count: client 1 has a single row with f, which client 0 names."""
    first, second = rows_of(CELLS, [0, 1, 5]), rows_of(CELLS, [2, 4, 6, 7])
    assert first.levels(["sex"]) == {"sex": ("f",)} and second.levels(["sex"]) == {"sex": ("m",)}
    inquiry = KIND.inquiry({"sex": {"f", "m"}})
    assert first.totals(inquiry).levels == ((2, 0, 1),) and second.totals(inquiry).levels == ((0, 3, 1),)


def test_the_most_frequent_levels_are_coded_and_declared_ones_as_declared() -> None:
    inquiry = KIND.inquiry({"sex": {"f", "m", "x"}})
    totals = rows_of(CELLS, range(12)).totals(inquiry)
    age, sex = KIND.encoding(inquiry, totals, {}).columns
    assert isinstance(age, NumberColumn) and age.gaps and sex == CategoryColumn("sex", ("f", "m"))
    without = KIND.inquiry({})
    declared = KIND.encoding(without, rows_of(CELLS, range(12)).totals(without), {"sex": ("m", "f", "q")}).columns
    assert declared[1] == CategoryColumn("sex", ("m", "f", "q"))


def test_a_column_without_any_number_is_named() -> None:
    inquiry = KIND.inquiry({})
    with pytest.raises(UsageError, match=r"no training row has a number in column 'age'; leave it out: --set data\.drop=\[age\]"):
        KIND.encoding(inquiry, rows_of(CELLS, [1]).totals(inquiry), {"sex": ("f",)})


def test_numbers_that_float32_does_not_have_are_named() -> None:
    cells = (NumberCells("age", np.array([1.0, 1e39]), np.array([1.0])),)
    with pytest.raises(UsageError, match=r"column 'age' holds 1e\+39; numbers are below 3\.4e\+38"):
        TrainingRows(np.arange(2), cells, None, torch.zeros(2), 1).totals(Inquiry(("age",)))


@pytest.mark.parametrize(
    "asked", [Inquiry(("sex",)), Inquiry(("height",)), Inquiry(levels=(("age", ("30",)),)), Inquiry(channels=3)]
)
def test_a_client_is_asked_for_its_own_columns_alone(asked: Inquiry) -> None:
    with pytest.raises(UsageError, match=r"should hold|statistics of 3 channels"):
        rows_of(CELLS, [0]).totals(asked)


def test_channels_of_images_and_arrays() -> None:
    images = torch.from_numpy(DRAW.integers(0, 256, (600, 3, 4, 5), dtype=np.uint8))
    rows = TrainingRows(np.arange(0, 600, 2), (), images, torch.zeros(600), 1)
    kind = SampleKind((), 3, images=True)
    encoding = kind.encoding(inquiry := kind.inquiry({}), rows.totals(inquiry), {})
    pixels = images[::2].double() / 255
    assert encoding.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=5.1e-5)
    assert encoding.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=5.1e-5)
    flat = TrainingRows(np.arange(600), (), torch.full_like(images, 7), torch.zeros(600), 1)
    assert kind.encoding(inquiry, flat.totals(inquiry), {}).std == (1.0, 1.0, 1.0)


def test_messages_are_read_as_they_were_written() -> None:
    inquiry = Inquiry(("a",), (("sex", ("", "weiblich", "männlich")),), 0, 2)
    message = text_message("inquiry", None, inquiry)
    assert value_of(unseal(message.data), "inquiry", None, Inquiry) == inquiry
    with pytest.raises(Refused, match="kind"):
        value_of(message, "levels", None, Inquiry)
    for text in (b"{", b"[]", b'{"numbers": 3}', b"\xff"):
        tensor = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        with pytest.raises(Refused, match="cannot be read"):
            value_of(seal(Payload({"statistic.text": tensor}, 0, None, "inquiry")), "inquiry", None, Inquiry)


def test_statistics_of_no_rows_are_refused() -> None:
    inquiry = Inquiry(("age",), (("sex", ("f", "m")),), classes=2)
    right = rows_of(CELLS, range(12)).totals(inquiry).tensors()
    expected = Expected(0, 3, inquiry.forms, kind="statistics")
    expected.check(seal(Payload(right, 0, 3, "statistics")))
    wrong = {
        "too small for its sums": {SQUARES: right[SQUARES] * 0},
        "more numbers than rows": {"statistic.present": right["statistic.present"] + 5},
        "do not add up": {"statistic.levels": right["statistic.levels"] + 1},
        "add up to its rows": {"statistic.classes": right["statistic.classes"] + 1},
    }
    for why, change in wrong.items():
        with pytest.raises(Refused, match=why):
            Totals.of({**right, **change}, inquiry)
    for name, change in {SUMS: right[SUMS] * 2**40, "statistic.levels": right["statistic.levels"] - 99}.items():
        with pytest.raises(Refused, match=name):
            expected.check(seal(Payload({**right, name: change}, 0, 3, "statistics")))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"levels": {"sex": []}}, "sex: at least one level, each once"),
        ({"levels": {"sex": ["f", "f"]}}, "sex: at least one level, each once"),
        ({"bounds": {"age": [120, 0]}}, r"age: \[120, 0\] is no range"),
    ],
)
def test_declarations_that_cannot_be(data: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RunConfig(data=data)
    assert DataConfig(levels={"smoker": [0, 1]}).levels == {"smoker": ("0", "1")}  # type: ignore[dict-item]
