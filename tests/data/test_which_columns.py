"""Which columns of a table are features: identifiers, dates and numbers that are written as texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from fedpriv.cli import main
from fedpriv.config import DataConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import load_data
from fedpriv.errors import UsageError

N = 300
DRAW = np.random.default_rng(0)
BASE = pd.DataFrame({"a": DRAW.normal(size=N).round(3), "label": DRAW.choice(["no", "yes"], N)})
OTHERS = DRAW.choice(np.arange(100_000, 1_000_000), N, replace=False)


def loaded(tmp_path: Path, frame: pd.DataFrame, suffix: str = "csv", **keys: Any) -> Dataset:
    file = tmp_path / f"t.{suffix}"
    frame.to_csv(file, index=False) if suffix == "csv" else frame.to_parquet(file, index=False)
    return load_data(DataConfig(name=str(file), **keys))


def scaled(found: Dataset, values: Any) -> bool:
    """Whether the second feature is these values ``(N,)``, standardised by those of the training rows."""
    from fedpriv.data.subsets import hold_out

    labels = np.concatenate([found.train_labels, found.test_labels])
    assert found.vectors is not None and len(labels) == len(values)
    train, test = hold_out((BASE.label == "yes").to_numpy().astype(np.int64), 0.2)
    kept = np.asarray(values, dtype=float)
    expected = (kept[test] - kept[train].mean()) / kept[train].std()
    return np.allclose(found.vectors[1][:, 1], expected, atol=1e-4)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "values",
    [
        OTHERS,
        [*OTHERS[1:], None],  # pandas makes floats of them
        [f"{one // 1000} {one % 1000:03}" for one in OTHERS],
        OTHERS + 2**60,  # which are the same once rounded
    ],
    ids=["numbers", "one missing", "spaces", "long"],
)
def test_identifiers_are_left_out_and_said(values: Any, suffix: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, BASE.assign(patient=values), suffix)
    assert found.input_shape == (1,)
    said = (
        "columns that are no features: patient (identifiers: another whole number in every row); --set data.features=[NAME,...]"
    )
    assert any(line.startswith(said) for line in found.notes)
    kept = loaded(tmp_path, BASE.assign(patient=values), suffix, features=["a", "patient"])
    assert kept.input_shape[0] >= 2 and not any("no features" in line for line in kept.notes)


@pytest.mark.parametrize(
    "values",
    [
        DRAW.normal(size=N),  # distinct in every row, too, but measured
        np.where(np.arange(N) == 7, OTHERS[8], OTHERS),  # one of them twice
        DRAW.integers(18, 90, N),
    ],
    ids=["measured", "twice", "age"],
)
def test_measurements_stay_features(values: Any, tmp_path: Path) -> None:
    found = loaded(tmp_path, BASE.assign(x=values))
    assert found.input_shape == (2,) and scaled(found, values)
    few = BASE[:40].assign(x=OTHERS[:40])  # of so few, any may be distinct
    assert loaded(tmp_path, few).input_shape == (2,)


WHOLE = DRAW.integers(0, 30_000, N)
WHOLE[:2] = WHOLE[2:4]  # no identifiers
SHARES = DRAW.integers(0, 1000, N) / 10


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ([f"{one}%" for one in SHARES], SHARES),
        ([f" {one} % " for one in SHARES], SHARES),
        ([f"{one:,}".replace(",", " ") for one in WHOLE], WHOLE),
        ([f"{one:,}".replace(",", "\u202f") for one in WHOLE], WHOLE),
        ([f"{-one:,}".replace(",", "'") for one in WHOLE], -WHOLE),
        ([f"${one}" for one in SHARES], SHARES),
        ([f"{one} €" for one in SHARES], SHARES),
    ],
    ids=["percent", "spaces around", "spaces", "thin spaces", "apostrophes", "dollars", "euros"],
)
def test_numbers_written_as_texts_are_numbers(written: list[str], values: Any, tmp_path: Path) -> None:
    found = loaded(tmp_path, BASE.assign(p=written))
    assert found.input_shape == (2,) and scaled(found, values)
    alone = loaded(tmp_path, pd.DataFrame({"p": written, "label": BASE.label}))  # not a text, either
    assert alone.texts is None and alone.input_shape == (1,)
    levels = [written[i % 5] for i in range(N)]
    assert loaded(tmp_path, BASE.assign(p=levels)).input_shape == (2,)
    missing = loaded(tmp_path, BASE.assign(p=[*written[1:], ""]))
    assert missing.input_shape in ((2,), (3,))  # another column says where, if it is a training row


@pytest.mark.parametrize(
    ("written", "odd"),
    [
        ([f"{one:,}" for one in WHOLE], None),  # 1,234 may be 1.234
        ([f"{one}%" if i % 2 else f"{one / 100}" for i, one in enumerate(SHARES)], None),
        ([f"${one}" if i % 2 else f"€{one}" for i, one in enumerate(SHARES)], None),
        ([f"{one}%" for one in SHARES[1:]] + ["n/a"], "n/a"),
        ([f"{i % 40},{i % 10}" for i in range(N)], None),  # forty levels
    ],
    ids=["commas", "with and without", "currencies", "no number", "decimal commas"],
)
def test_numbers_that_may_be_several_are_refused(written: list[str], odd: str | None, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=rf"t\.csv: column 'p' holds numbers, but also '{re.escape(odd) if odd else '.*'}'; leave"
    ):
        loaded(tmp_path, BASE.assign(p=written))
    assert loaded(tmp_path, BASE.assign(p=written), drop=["p"]).input_shape == (1,)


def test_units_that_differ_in_the_test_rows_are_refused(tmp_path: Path) -> None:
    BASE.assign(p=[f"{one}%" for one in SHARES]).to_csv(tmp_path / "train.csv", index=False)
    BASE.assign(p=SHARES / 100).to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(UsageError, match=r"test\.csv: column 'p' is written as plain numbers, and as % in .*train\.csv"):
        load_data(DataConfig(name=str(tmp_path)))


def test_codes_and_names_stay_categories(tmp_path: Path) -> None:
    for values in (["s1", "s2"], ["grade 1", "grade 2"], ["1-2", "3-4"], ["A%", "B%"], ["10 %-20 %", "20 %-30 %"]):
        assert loaded(tmp_path, BASE.assign(p=[values[i % 2] for i in range(N)])).input_shape == (4,)


@pytest.mark.parametrize(
    "form", ["P{:05}", "{:x}-ab{:x}", "ISIC_{:07}", "+49 170 {:07}", "http://there.org/{}.html", "user{}@there.org"]
)
def test_codes_of_persons_are_no_texts(form: str, tmp_path: Path) -> None:
    """Though they are the only column of texts."""
    codes = [form.format(one, one) for one in OTHERS]
    found = loaded(tmp_path, BASE.assign(code=codes))
    assert found.input_shape == (1,) and any("code (text: over half of its values are distinct)" in line for line in found.notes)
    with pytest.raises(
        UsageError, match=r"no recognisable image or text column.*name the one with the texts 'text'; columns that"
    ):
        loaded(tmp_path, pd.DataFrame({"code": codes, "label": BASE.label}))
    assert loaded(tmp_path, pd.DataFrame({"text": codes, "label": BASE.label})).texts is not None


@pytest.mark.parametrize("form", ["it is {} again", "Wie geht es {}", "今天天气很好{}", "สวัสดี{}", "нет {}"])
def test_texts_are_texts(form: str, tmp_path: Path) -> None:
    texts = [form.format(one) for one in OTHERS]
    assert loaded(tmp_path, pd.DataFrame({"body": texts, "n": DRAW.integers(0, 9, N), "label": BASE.label})).texts is not None


def test_why_nothing_is_left_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no recog.*; columns that are no features: patient \(identifiers.*data\.features="):
        loaded(tmp_path, pd.DataFrame({"patient": OTHERS, "label": BASE.label}))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_dates_are_features_where_they_are_named(suffix: str, tmp_path: Path) -> None:
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(DRAW.integers(0, 300, N), unit="D")
    frame = BASE.assign(day=days.date, at=days + pd.Timedelta(hours=3), hour=[f"{i % 24:02}:30:00" for i in range(N)])
    found = loaded(tmp_path, frame.drop(columns="hour") if suffix == "parquet" else frame, suffix)
    assert found.input_shape == (1,)
    assert any("day (dates), at (dates)" in line and ("hour (times)" in line) == (suffix == "csv") for line in found.notes)
    since = (days - days.min()).days
    for name in ("day", "at"):
        assert scaled(loaded(tmp_path, frame, suffix, features=["a", name]), since)


def test_the_day_of_a_year_can_be_kept(tmp_path: Path) -> None:
    days = pd.DataFrame({"store": np.repeat(["a", "b", "c"], 365), "day": np.tile(np.arange(1, 366), 3)})
    days["temp"] = DRAW.normal(15, 8, len(days)).round(1)
    days["label"] = np.where((days.day > 150) & (days.day < 270), "ice", "soup")
    by_store = {"name": "by_column", "column": "store"}
    found = loaded(tmp_path, days, partition=by_store)
    assert found.input_shape == (1,) and any("day (row numbers); --set data.features=[NAME,...]" in line for line in found.notes)
    kept = loaded(tmp_path, days, partition=by_store, features=["day", "temp"])
    assert kept.vectors is not None and kept.input_shape == (2,)
    ice = kept.vectors[0][kept.train_labels == 0, 0]
    assert ice.min() > -0.33 and ice.max() < 0.85  # days 151 to 269, of mean 183 and deviation 105


MIXED = BASE.assign(b=DRAW.normal(size=N), name=[f"name {i}" for i in range(N)], site=[f"s{i % 3}" for i in range(N)])


def test_named_and_dropped_columns(tmp_path: Path) -> None:
    assert loaded(tmp_path, MIXED, features=["b"]).input_shape == (1,)
    assert loaded(tmp_path, MIXED, drop=["b", "site"]).texts is not None  # one column of texts, beside numbers
    assert loaded(tmp_path, MIXED, drop=["b", "name"]).input_shape == (1 + 4,)
    assert loaded(tmp_path, MIXED.assign(target=MIXED.a), features=["a", "target"]).input_shape == (2,)
    renamed = MIXED.rename(columns={"label": "class"}).assign(label=MIXED.a)
    assert loaded(tmp_path, renamed, features=["label"]).classes == ("no", "yes")  # the feature is not the label
    assert loaded(tmp_path, renamed, drop=["label"]).classes == ("no", "yes")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"features": ["a", "nane"]}, r"unknown column in data\.features 'nane'; did you mean 'name'\?"),
        ({"drop": ["sitte"]}, r"unknown column in data\.drop 'sitte'; did you mean 'site'\?"),
        ({"features": ["a", "label"], "label": "label"}, r"data\.features: column 'label' is that of the labels"),
        (
            {"drop": ["site"], "partition": {"name": "by_column", "column": "site"}},
            r"data\.drop: column 'site' is that of the clients",
        ),
        ({"features": ["a"], "drop": ["a"]}, r"column 'a' is in data\.features and in data\.drop"),
        ({"features": ["name"]}, r"data\.features: column 'name' of .*t\.csv can be no feature \(text: over half"),
        ({"drop": ["label"]}, r"no recognisable label column"),
    ],
)
def test_names_that_cannot_be_used(keys: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        loaded(tmp_path, MIXED, **keys)


def test_the_columns_of_other_data_are_known(tmp_path: Path) -> None:
    for key in ("features", "drop"):
        result = CliRunner().invoke(
            main, ["train", "--method", "fedavg", "--set", f"data.{key}=[x]", "--runs-dir", str(tmp_path)]
        )
        assert result.exit_code == 2 and f"data.{key} x: the columns of digits are known; leave it out" in result.stderr
