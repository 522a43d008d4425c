"""Rows of numbers and categories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from image_files import load_labels

from fedpriv.cli import main
from fedpriv.config import DataConfig, load_config
from fedpriv.data.sources import load_data
from fedpriv.errors import UsageError
from fedpriv.simulation.setup import build


def write(file: Path, header: str, *rows: str) -> DataConfig:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([header, *rows]) + "\n")
    return DataConfig(name=str(file), min_level=1)


def test_numbers_are_standardised_and_categories_one_hot(tmp_path: Path) -> None:
    write(tmp_path / "d" / "train.csv", "age,sex,label", "1,f,no", "2,m,no", "3,f,yes", "6,f,yes")
    write(tmp_path / "d" / "test.csv", "age,sex,label", "3,m,no", "9,x,yes")
    found = load_data(DataConfig(name=str(tmp_path / "d"), min_level=1))
    assert found.vectors is not None
    ages = np.array([1, 2, 3, 6.0])
    assert found.vectors[0][:, 0].tolist() == pytest.approx((ages - 3) / ages.std(), abs=1e-6)
    assert found.vectors[0][:, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [1, 0, 0]]  # f, m, other
    assert found.vectors[1][:, 1:].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert float(found.vectors[1][1, 0]) == pytest.approx((9 - 3) / ages.std())
    assert found.default_model == "mlp" and found.input_shape == (4,) and found.classes == ("no", "yes")
    assert found.notes[-1] == (
        "column 'sex': 1 test rows have a level that no training row has ('x'); it is read as all other levels are"
    )


def test_missing_values(tmp_path: Path) -> None:
    rows = [f"{age},{sex},{i % 2}" for i, (age, sex) in enumerate([("1", "f"), ("", "f"), ("3", ""), ("5", "f")] * 5)]
    write(tmp_path / "d" / "train.csv", "age,sex,label", *rows)
    write(tmp_path / "d" / "test.csv", "age,sex,label", ",,0", "3,f,1")
    train, test = load_data(DataConfig(name=str(tmp_path / "d"), min_level=1)).vectors or ()
    assert train.shape == (20, 5)  # age, missing; f, none, other
    assert train[1, :2].tolist() == [0, 1] and train[0, 1] == 0 and train[2, 2:].tolist() == [0, 1, 0]
    assert test[0].tolist() == [0, 1, 0, 1, 0] and test[1].tolist() == [0, 0, 1, 0, 0]


def test_a_column_that_is_constant_in_training_is_zero_there_and_a_difference_elsewhere(tmp_path: Path) -> None:
    """The mean of 300 times 0.1 is not 0.1, so that the deviation is not 0 either."""
    write(tmp_path / "d" / "train.csv", "a,b,label", *(f"{i % 4},0.1,{i % 2}" for i in range(300)))
    write(tmp_path / "d" / "test.csv", "a,b,label", "1,0.2,0", "2,0.1,1")
    train, test = load_data(DataConfig(name=str(tmp_path / "d"), min_level=1)).vectors or ()
    assert train[:, 1].abs().max() == 0 and test[:, 1].tolist() == pytest.approx([0.1, 0])


def test_long_integers_are_rounded(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", "stamp,label", *(f"{10**18 + i % 7 * 10**15},{i % 2}" for i in range(40)))
    train, _ = load_data(data).vectors or ()
    assert train[:, 0].std(correction=0) == pytest.approx(1, abs=1e-5)


def test_a_column_of_numbers_with_another_value_is_named(tmp_path: Path) -> None:
    rows = [f"{'unknown' if i == 7 else i % 9},{'fm'[i % 2]},{i % 3}" for i in range(40)]
    said = " ".join(load_data(write(tmp_path / "a.csv", "age,sex,label", *rows)).notes)
    assert "column 'age' is read as categories" in said and "'unknown'" in said and "'sex'" not in said


@pytest.mark.parametrize("odd", ["?", '"3,5"', '"1,003.5"'])
def test_numbers_of_which_some_cannot_be_read_are_no_texts(odd: str, tmp_path: Path) -> None:
    rows = [f"{i / 7:.3f},{i * 3},{i % 2}" for i in range(60)]
    wrong = write(tmp_path / "one.csv", "a,b,label", *rows, f"{odd},5,1")
    with pytest.raises(UsageError, match=re.escape(f"one.csv: column 'a' holds numbers, but also {odd.strip(chr(34))!r}; leave")):
        load_data(wrong)
    alone = write(tmp_path / "alone.csv", "a,label", *(f'"{i},{i % 10}",{i % 2}' for i in range(60)))
    with pytest.raises(UsageError, match=r"alone.csv: column 'a' holds numbers, but also '0,0'"):
        load_data(alone)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("train", "test", "lacks"),
    [
        ("age,bp,label", "age,label", "bp"),
        ("text,label", "sentence,label", "text"),
        ("text,label", "id,text", "label"),
        ("text,category", "text,label", "category"),
    ],
)
def test_a_test_file_that_lacks_a_column_is_named(train: str, test: str, lacks: str, suffix: str, tmp_path: Path) -> None:
    """Before any sample is read, so that `fedpriv data show` says so, too."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    for split, header in (("train", train), ("test", test)):
        values = {"text": ["good", "bad"], "sentence": ["good", "bad"], "age": [1.5, 2.5], "bp": [7.5, 9.5]}
        columns = {name: values.get(name, [0, 1]) for name in header.split(",")}
        file = tmp_path / f"{split}.{suffix}"
        csv.write_csv(pa.table(columns), file) if suffix == "csv" else pq.write_table(pa.table(columns), file)
    expected = rf"/test\.{suffix} lacks the column '{lacks}' of .*/train\.{suffix}; its columns are: {test.replace(',', ', ')}"
    with pytest.raises(UsageError, match=expected) as refused:
        load_labels(str(tmp_path))
    assert ("leave out a test split that has no labels" in str(refused.value)) == (lacks in ("label", "category"))


def test_a_suffix_says_what_a_file_is(tmp_path: Path) -> None:
    capital = write(tmp_path / "A.CSV", "age,n,label", *(f"{i % 5},{i % 3},{i % 2}" for i in range(20)))
    assert load_data(capital).input_shape == (2,)
    with pytest.raises(UsageError, match=r"a\.tsv is no \.csv or \.parquet file"):
        load_data(write(tmp_path / "a.tsv", "age\tlabel", "1\t0"))


def test_a_csv_file_without_rows_or_not_in_utf_8(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.csv has no rows"):
        load_data(write(tmp_path / "a.csv", "age,label"))
    for header, value, where in (("age,label", "gesünd", "column 'label'"), ("größe,label", "ill", "header")):
        (tmp_path / "b.csv").write_text(f"{header}\n" + f"1,{value}\n2,well\n" * 5, encoding="latin-1")
        with pytest.raises(UsageError, match=rf"b\.csv: its {where} is not UTF-8; .*iconv -f latin1 -t utf-8 b\.csv"):
            load_data(DataConfig(name=str(tmp_path / "b.csv")))


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_csv_file_without_commas(sign: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"a\.csv: {name} separate its columns; save it with commas"):
        load_data(write(tmp_path / "a.csv", sign.join(["age", "label"]), *(f"{i},5{sign}{i % 2}" for i in range(9))))


def test_rare_levels_go_together(tmp_path: Path) -> None:
    levels = [f"l{i:02}" for i in range(25) for _ in range(40 - i)]
    data = write(tmp_path / "a.csv", "level,n,label", *(f"{one},{i % 7},{i % 2}" for i, one in enumerate(levels)))
    train, _ = load_data(data).vectors or ()
    assert train.shape[1] == 20 + 1 + 1 and (train[:, :21].sum(1) == 1).all() and 0.08 < float(train[:, 20].mean()) < 0.2


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    rows = [f"{i},name {i},{'fm'[i % 2]},{i % 5},{i % 2},2026-01-0{1 + i % 9}" for i in range(20)]
    data = write(tmp_path / "a.csv", "id,name,sex,age,label,day", *rows)
    found = load_data(data)
    assert found.input_shape == (3 + 1,)
    (line,) = [one for one in found.notes if one.startswith("columns that are no features")]
    assert "id (row numbers)" in line and "name (text" in line and "day (dates)" in line


def test_one_of_several_texts_is_named_text(tmp_path: Path) -> None:
    rows = [f"about {i},what is {i}?,{i % 3},{i % 2}" for i in range(60)]
    numbers = load_data(write(tmp_path / "a.csv", "title,body,stars,label", *rows))
    assert numbers.input_shape == (1,)
    assert load_data(write(tmp_path / "b.csv", "title,text,stars,label", *rows)).texts is not None
    with pytest.raises(UsageError, match=r"no recognisable image or text column.* body \(string\).*; name the one with"):
        load_data(write(tmp_path / "c.csv", "title,body,label", *(f"about {i},what is {i}?,{i % 2}" for i in range(20))))


def test_texts_stay_texts(tmp_path: Path) -> None:
    """A single column of distinct strings is a text, beside numbers too; one of few values is a category."""
    body = write(tmp_path / "a.csv", "score,body,label", *(f"{i % 3},what is {i},{i % 2}" for i in range(20)))
    assert load_data(body).texts is not None and "texts of column body; not used: score" in load_data(body).notes[0]
    few = write(tmp_path / "b.csv", "score,body,label", *(f"{i % 3},{'ab'[i % 2]},{i % 2}" for i in range(20)))
    assert load_data(few).vectors is not None
    alone = write(tmp_path / "c.csv", "body,label", *(f"{'ab'[i % 2]},{i % 2}" for i in range(20)))
    assert load_data(alone).texts is not None


def test_the_label_may_have_any_name(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", "age,outcome", *(f"{i % 9},{'ill' if i % 3 else 'well'}" for i in range(30)))
    with pytest.raises(UsageError, match=r"no recognisable label column.*--set data\.label=NAME"):
        load_data(data)
    found = load_data(data.model_copy(update={"label": "outcome"}))
    assert found.classes == ("ill", "well") and found.input_shape == (1,)
    with pytest.raises(UsageError, match=r"data\.label age: the columns of digits are known"):
        load_data(DataConfig(label="age"))


def test_parquet_with_other_types(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "flag": [True, False] * 10,
        "size": np.arange(20, dtype=np.float32) % 7,
        "kind": pa.array(["a", "b"] * 10).dictionary_encode(),
        "label": [0, 1] * 10,
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = load_data(DataConfig(name=str(tmp_path / "a.parquet")))
    assert found.input_shape == (1 + 1 + 3,)
    assert found.hash != load_data(DataConfig(name=str(tmp_path / "a.parquet"), test_limit=2)).hash


def test_half_floats(tmp_path: Path) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    sizes = [None, *(np.float16(i % 7 / 2) for i in range(1, 20))]
    for name, kind in (("half", pa.float16()), ("single", pa.float32())):
        table = pa.table({"size": pa.array(sizes, pa.float16()).cast(kind), "label": [0, 1] * 10})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    saved = datasets.Dataset.from_parquet(str(tmp_path / "half.parquet"), cache_dir=str(tmp_path / "hf"))
    saved.save_to_disk(tmp_path / "saved")
    hashes = {load_data(DataConfig(name=str(tmp_path / name))).hash for name in ("half.parquet", "single.parquet", "saved")}
    assert len(hashes) == 1


def test_infinite_numbers_are_named(tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", "age,label", *(f"{i % 4}.5,{i % 2}" for i in range(9)), "inf,1")
    with pytest.raises(UsageError, match=r"a\.csv, line 11: column 'age' is inf"):
        load_data(data)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(160, 3, generator=draw)
    rows = [f"{a:.3f},{b:.3f},{'uvw'[int(c > 0)]},s{i % 4},{int(a + b > 0)}" for i, (a, b, c) in enumerate(x.tolist())]
    write(folder / "rows.csv", "a,b,kind,site,label", *rows)
    options = ["--method", "fedavg", "--dataset", str(folder / "rows.csv"), "--partition", "by_column", "--column", "site"]
    options += ["--rounds", "3", "--lr", "0.1", "--tracking-uri", "none", "--run-dir", str(folder / "run")]
    result = CliRunner().invoke(main, ["train", *options])
    assert result.exit_code == 0, result.output
    assert "each client sends statistics of its training rows" in result.output
    return folder / "run"


def test_a_run_on_rows_learns(trained: Path) -> None:
    import json

    summary = json.loads((trained / "summary.json").read_text())
    assert summary["accuracy"] > 0.7
    facts = json.loads((trained / "run.json").read_text())
    assert facts["client_names"] == ["s0", "s1", "s2", "s3"] and any("no epsilon" in note for note in facts["notes"])


@pytest.mark.slow
def test_an_audit_of_rows(trained: Path) -> None:
    import json

    options = ["--messages", "1", "--label-shadows", "0", "--membership-shadows", "4", "--workers", "1"]
    result = CliRunner().invoke(main, ["audit", str(trained), *options])
    assert result.exit_code == 0, result.output
    (run,) = json.loads((trained / "audit" / "audit.json").read_text())["runs"]
    assert (
        run["modalities"] == [] and run["images"] == [] and run["labels"] and "rows of a table" in run["not_run"]["rows"]["text"]
    )
    assert sum("No attack was mounted on the rows" in line for line in run["verdict"]) == 1
    assert "Nothing was found" not in run["answer"]["words"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--set", "data.augment=crop_flip"), "data.augment crop_flip is for images or texts"),
        (("--model", "transformer"), "--model mlp"),
        (("--model", "cnn10"), "does not fit inputs of 1"),
        (("--encoder", "tiny"), "it holds texts where a single column of texts is left"),
        (("--objective", "simclr"), "needs two views of an image"),
    ],
)
def test_options_for_other_samples(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    write(tmp_path / "a.csv", "age,label", *(f"{i % 9},{i % 2}" for i in range(90)))
    start = ["train", "--method", "fedavg", "--dataset", str(tmp_path / "a.csv"), "--partition", "iid", "--clients", "3"]
    result = CliRunner().invoke(main, [*start, "--runs-dir", str(tmp_path), *options])
    assert result.exit_code == 2 and why in result.stderr and "Traceback" not in result.output


def test_the_hash_of_rows_does_not_depend_on_how_they_are_partitioned(tmp_path: Path) -> None:
    """Levels that few rows of each client have, and so the encoded rows, do."""
    towns = np.random.default_rng(0).choice(list("aaaabbbbcccxyz"), 90)
    rows = [f"{i % 7}.5,{town},{i % 2}" for i, town in enumerate(towns)]
    data = write(tmp_path / "a.csv", "age,town,label", *rows)
    settings = {"method.name": "fedavg", "data.name": data.name, "data.clients": 3, "data.partition.name": "iid"}
    federations = [build(load_config(None, {**settings, "seed": seed})) for seed in (0, 1)]
    vectors = [federation.dataset.vectors for federation in federations]
    assert vectors[0] is not None and vectors[1] is not None and not torch.equal(vectors[0][0], vectors[1][0])
    assert federations[0].dataset.hash == federations[1].dataset.hash == load_data(data).hash
    other = write(tmp_path / "b.csv", "age,town,label", *rows[:-1], rows[-1].replace(".5", ".6"))
    assert load_data(other).hash != load_data(data).hash
