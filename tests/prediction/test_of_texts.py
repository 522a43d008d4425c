"""Models of runs on texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedpriv
from fedpriv.data.sources import load_data
from tests.notes import noted


@pytest.mark.slow
def test_the_server_s_model_has_the_accuracy_that_the_run_reports(of_texts: fedpriv.Run, texts: Path) -> None:
    dataset = load_data(of_texts.config.data)
    assert dataset.texts is not None and of_texts.summary is not None
    predictions = of_texts.predict(texts / "test.csv")
    truth = [dataset.classes[label] for label in dataset.test_labels]
    assert (predictions.prediction == truth).mean() == of_texts.summary["protocols"]["global_test_final"]
    assert predictions.prediction.nunique() == 2  # or the accuracy would say little


@pytest.mark.slow
def test_texts_in_every_form_are_the_same(of_texts: fedpriv.Run, texts: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(texts / "test.csv").head(6)
    expected = of_texts.predict(list(rows.text))
    (tmp_path / "lines.txt").write_text("\n".join(rows.text))
    rows.to_parquet(tmp_path / "rows.parquet")
    forms: list[Any] = [rows.text.to_numpy(), rows[["text"]], {"text": list(rows.text)}, tmp_path / "lines.txt", tuple(rows.text)]
    forms += [str(tmp_path / "lines.txt"), rows.drop(columns="label").rename(columns={"text": "said by the patient"})]
    for form in forms:
        pd.testing.assert_frame_equal(of_texts.predict(form), expected)
    indexed = rows.set_index(pd.Index(list("abcdef")))
    assert of_texts.predict(indexed.text).index.equals(indexed.index)
    single = of_texts.predict(rows.text[3])
    assert single.iloc[0].prediction == expected.iloc[3].prediction
    assert single.iloc[0, 1] == pytest.approx(expected.iloc[3, 1], abs=1e-6)


@pytest.mark.slow
def test_texts_that_do_not_fit_are_named(of_texts: fedpriv.Run, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("a,b\nx,y\n")
    cases: list[tuple[Any, str]] = [
        (["fine", " "], r"text 1 \(from 0\) is empty"),
        ([], "no texts"),
        ([3], "is 3, no text"),
        (pd.Series(["a", None]), "is empty"),
        (tmp_path / "a.csv", r"a\.csv has no column of texts; its columns are: a, b"),
        (tmp_path / "b.csv", r"several columns of texts \(a, b\); name one 'text'"),
        (3, "texts of type int"),
        ("nowhere.csv", r"there is no file nowhere\.csv"),
    ]
    for samples, message in cases:
        with pytest.raises(fedpriv.UsageError, match=message):
            of_texts.predict(samples)
    with noted("1 of 1 texts were cut to 128 tokens"):
        of_texts.predict(["fine " * 200])
