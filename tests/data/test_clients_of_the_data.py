"""Clients that come with the data: a folder each, or the values of a column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from image_files import pixels, write_folder

from fedpriv.cli import main
from fedpriv.config import DataConfig, RunConfig
from fedpriv.data.sources import load_data, open_data
from fedpriv.data.user_data.clients import client_folders
from fedpriv.errors import UsageError
from fedpriv.simulation.inputs.loading import load, partition_dataset


def data(path: Path, **keys: Any) -> DataConfig:
    return DataConfig(name=str(path), **keys)


def run_of(path: Path, **keys: Any) -> RunConfig:
    return RunConfig(data=data(path, **keys))


def shown(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, ["data", "show", *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result


def hospitals(folder: Path) -> Path:
    """Two hospitals with image folders; the second has no owl."""
    write_folder(folder / "clients" / "north", pixels(30, 8, 8), [0, 1, 2] * 10)
    write_folder(folder / "clients" / "south", pixels(10, 8, 8, seed=1), [0, 1] * 5)
    return folder / "clients"


def patients(file: Path, rows: int = 60) -> Path:
    sites = ["north", "south", "east"]
    lines = [f"{20 + i % 50},{'f' if i % 2 else 'm'},{sites[i % 3]},{i % 2}" for i in range(rows)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["age,sex,site,label", *lines]) + "\n")
    return file


def test_image_folders_of_clients(tmp_path: Path) -> None:
    loaded = load(run_of(hospitals(tmp_path)))
    assert loaded.config.data.clients == 2 and loaded.config.data.partition.name == "given"
    assert loaded.dataset.owners is not None and loaded.dataset.owners.names == ("north", "south")
    assert loaded.dataset.classes == ("cat", "dog", "owl")
    partition = partition_dataset(loaded.dataset, loaded.config)
    assert [len(held) for held in partition.train] == [24, 8] and [len(held) for held in partition.test] == [6, 2]
    south = {image.numpy().tobytes() for image in loaded.dataset.train_images[partition.train[1]]}
    assert south <= {image.tobytes() for image in pixels(10, 8, 8, seed=1)} and len(south) == 8
    assert 2 not in loaded.dataset.train_labels[partition.train[1]].tolist()
    assert partition.hash() == partition_dataset(loaded.dataset, loaded.config).hash()


def test_tables_of_clients_with_their_own_test_rows(tmp_path: Path) -> None:
    for name, rows in (("a", 20), ("b", 31)):
        patients(tmp_path / "anything" / name / "train.csv", rows)
        patients(tmp_path / "anything" / name / "test.csv", 6)
    loaded = load(run_of(tmp_path / "anything"))
    partition = partition_dataset(loaded.dataset, loaded.config)
    assert [len(held) for held in partition.train] == [20, 31] and [len(held) for held in partition.test] == [6, 6]
    (tmp_path / "anything" / "b" / "test.csv").unlink()
    loaded = load(run_of(tmp_path / "anything"))  # a fifth of b's 31 rows is held out, of those of a none
    partition = partition_dataset(loaded.dataset, loaded.config)
    assert [len(held) for held in partition.train] == [20, 25] and [len(held) for held in partition.test] == [6, 6]
    said = "these clients have no test split, and a fixed fifth of their samples is held out: b"
    assert said in loaded.dataset.notes and not any("there is no test split" in line for line in loaded.dataset.notes)


def test_a_client_without_test_images_is_tested_by_a_held_out_part(tmp_path: Path) -> None:
    north, south, other = pixels(20, 8, 8), pixels(10, 8, 8, seed=1), pixels(4, 8, 8, seed=2)
    write_folder(tmp_path / "clients" / "north", north, [0, 1] * 10)
    write_folder(tmp_path / "clients" / "south" / "train", south, [0, 1] * 5)
    write_folder(tmp_path / "clients" / "south" / "test", other, [0, 1] * 2)
    loaded = load(run_of(tmp_path / "clients"))
    partition = partition_dataset(loaded.dataset, loaded.config)
    train, test = (
        [{one.numpy().tobytes() for one in images[rows]} for rows in held]
        for images, held in ((loaded.dataset.train_images, partition.train), (loaded.dataset.test_images, partition.test))
    )
    assert train[1] == {one.tobytes() for one in south} and test[1] == {one.tobytes() for one in other}
    assert len(train[0]) == 16 and not train[0] & test[0] and train[0] | test[0] == {one.tobytes() for one in north}


def test_a_row_of_a_held_out_part_is_named_by_its_line(tmp_path: Path) -> None:
    """And its label is read as it is written."""
    for name, rows in (("a", 20), ("b", 40)):
        file = tmp_path / "clients" / name / "train.csv"
        file.parent.mkdir(parents=True)
        file.write_text("x,label\n" + "".join(f"{i % 7}.5,0{1 + i % 2}\n" for i in range(rows)))
    (tmp_path / "clients" / "a" / "test.csv").write_text("x,label\n1.5,01\n")
    assert load_data(data(tmp_path / "clients")).classes == ("01", "02")
    with file.open("a") as opened:
        opened.write("inf,01\n")
    with pytest.raises(UsageError, match=r"/b/train\.csv, line 42: column 'x' is inf"):
        load_data(data(tmp_path / "clients"))


def test_which_folders_are_of_clients(tmp_path: Path) -> None:
    clients = hospitals(tmp_path)
    assert [one.name for one in client_folders(clients)] == ["north", "south"]
    assert client_folders(tmp_path) == client_folders(clients)
    assert not client_folders(clients / "north")  # its folders are classes
    other = clients.rename(tmp_path / "sites")
    assert not client_folders(other) and len(client_folders(other, asked=True)) == 2
    opened = open_data(data(other))
    assert opened.classes == ("north", "south") and "add --partition given" in opened.notes[-1]
    asked = open_data(data(other, partition={"name": "given"}))
    assert asked.owners is not None and asked.owners.names == ("north", "south")
    patients(tmp_path / "splits" / "train" / "a.csv")
    patients(tmp_path / "splits" / "test" / "a.csv")
    assert not client_folders(tmp_path / "splits")


def test_clients_that_are_read_as_classes_are_named_where_they_cannot_be_dealt(tmp_path: Path) -> None:
    folder, hint = hospitals(tmp_path), "north, south are read as classes; if they are clients and cat, dog their classes"
    assert hint not in shown("--dataset", str(folder), "--partition", "one_class", "--clients", "100", code=2).stderr
    said = shown("--dataset", str(folder.rename(tmp_path / "sites")), "--clients", "30", code=2).stderr
    assert "class 'north' has 24 training samples for 30 shards" in said and f"{hint}, add --partition given" in said


def test_pairs_of_clients_are_refused(tmp_path: Path) -> None:
    """Their images would be read without the texts."""
    for client in ("north", "south"):
        write_folder(tmp_path / "clients" / client / "cat", pixels(4, 8, 8), [0] * 4, ["images"])
        (tmp_path / "clients" / client / "cat" / "text").mkdir()
    with pytest.raises(UsageError, match="clients/north holds image-text pairs, which cannot come by client"):
        load_data(data(tmp_path / "clients"))


def test_a_row_of_clients_tables_is_named_by_its_own_table(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        patients(tmp_path / "clients" / name / "a.csv")
    with (tmp_path / "clients" / "b" / "a.csv").open("a") as file:
        file.write("inf,f,north,1\n")
    with pytest.raises(UsageError, match=r"/b/a\.csv, line 62: column 'age' is inf"):
        load_data(data(tmp_path / "clients"))


def test_clients_that_differ_are_named(tmp_path: Path) -> None:
    patients(tmp_path / "clients" / "a" / "a.csv")
    (tmp_path / "clients" / "b").mkdir()
    (tmp_path / "clients" / "b" / "b.csv").write_text("age,label\n1,0\n2,1\n")
    with pytest.raises(UsageError, match=r"client b lacks the column 'sex' of client a; its columns are: age, label"):
        open_data(data(tmp_path / "clients"))


def test_by_column(tmp_path: Path) -> None:
    partition = {"name": "by_column", "column": "site"}
    loaded = load(run_of(patients(tmp_path / "all.csv"), partition=partition))
    assert loaded.config.data.clients == 3
    assert loaded.dataset.owners is not None and loaded.dataset.owners.names == ("east", "north", "south")
    found = partition_dataset(loaded.dataset, loaded.config)
    whole = open_data(data(tmp_path / "all.csv"))
    assert whole.column is not None
    sites, tested = whole.column("site")
    assert tested is not None
    for client, name in enumerate(loaded.dataset.owners.names):
        assert np.array_equal(found.train[client], np.flatnonzero(sites == name))
        assert np.array_equal(found.test[client], np.flatnonzero(tested == name))
    assert loaded.dataset.input_shape == (4,)  # age, two sexes and other; the site is no feature
    assert open_data(data(tmp_path / "all.csv", limit=20, test_limit=6, partition=partition)).owners.test.shape == (6,)  # type: ignore[union-attr]


def test_a_test_table_without_the_column_is_shared(tmp_path: Path) -> None:
    patients(tmp_path / "d" / "train.csv")
    (tmp_path / "d" / "test.csv").write_text("age,sex,label\n" + "30,f,0\n40,m,1\n" * 40)
    loaded = load(run_of(tmp_path / "d", partition={"name": "by_column", "column": "site"}))
    held = partition_dataset(loaded.dataset, loaded.config).test
    assert sum(map(len, held)) == 80 and min(map(len, held)) >= 26


@pytest.mark.parametrize(("train", "test"), [("1 2 10", "1 2 X"), ("1 2 X", "1 2 10"), ("001 002 010", "001 002 X"),
                                             ("true false", "true X")])  # fmt: skip
def test_a_column_of_numbers_in_one_table_and_texts_in_the_other(train: str, test: str, tmp_path: Path) -> None:
    for split, sites in (("train", train), ("test", test)):
        lines = [f"{i % 7},{site},{i % 2}" for i in range(10) for site in sites.split()]
        (tmp_path / f"{split}.csv").write_text("\n".join(["age,site,label", *lines]) + "\n")
    owners = load_data(data(tmp_path, partition={"name": "by_column", "column": "site"})).owners
    assert owners is not None and owners.test is not None
    known = len(test.split()) - 1  # the last is a client of the test rows alone
    assert owners.test[: known + 1].tolist() == [*owners.train[:known].tolist(), -1]
    assert len(set(owners.train.tolist())) == len(train.split())


def numbered_by_client(folder: Path, kept: int, rows: int = 60) -> tuple[Path, Path]:
    """Samples that are sorted by class and numbered within each client, of which so many are left: folders, and one table."""
    draw, whole = np.random.default_rng(0), []
    for site in ("north", "south"):
        left = sorted(draw.permutation(rows)[:kept])
        lines = [f"{i},{draw.integers(5)},{site},{int(i >= rows // 2)}" for i in left]
        (folder / "clients" / site).mkdir(parents=True)
        (folder / "clients" / site / "train.csv").write_text("\n".join(["id,level,site,label", *lines]) + "\n")
        whole += lines
    (folder / "all.csv").write_text("\n".join(["id,level,site,label", *whole]) + "\n")
    return folder / "clients", folder / "all.csv"


@pytest.mark.parametrize("kept", [60, 40])
def test_row_numbers_of_each_client_are_no_feature(kept: int, tmp_path: Path) -> None:
    """Of sorted samples, they give the label away; over all clients, they are not distinct."""
    folders, table = numbered_by_client(tmp_path, kept)
    by_site = load_data(data(table, partition={"name": "by_column", "column": "site"}))
    for found, width in ((load_data(data(folders)), 1 + 3), (by_site, 1)):
        assert any(line.startswith("columns that are no features: id (row numbers);") for line in found.notes)
        assert found.input_shape == (width,)


def test_measurements_of_clients_with_few_rows_are_features(tmp_path: Path) -> None:
    lines = [f"{i % 2},{i},{i % 3}" for i in range(40)] + ["0,40,0", "1,40,1"]  # 40 clients of one row, one of two
    (tmp_path / "a.csv").write_text("\n".join(["sex,person,label", *lines]) + "\n")
    assert load_data(data(tmp_path / "a.csv", partition={"name": "by_column", "column": "person"})).input_shape == (1,)


def test_show_names_clients_and_classes(tmp_path: Path) -> None:
    folder = str(hospitals(tmp_path))
    text = " ".join(shown("--dataset", folder).output.split())
    assert "north" in text and "given, 2 clients, 3 classes" in text and "owl" in text and "a folder each" in text
    told = json.loads(shown("--dataset", folder, "--json").stdout.splitlines()[-1])
    assert told["client_names"] == ["north", "south"] and told["counts"] == [[8, 8, 8], [4, 4, 0]]
    table = str(patients(tmp_path / "all.csv"))
    by_site = shown("--dataset", table, "--partition", "by_column", "--column", "site").output
    assert "east" in by_site and "the values of column site" in by_site and "the client's own" in by_site
    assert "the clients are the labels" not in by_site


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--partition", "given"), "no folder for each client"),
        (("--partition", "by_column"), "which column? --set data.partition.column=NAME"),
        (("--partition", "by_column", "--column", "ward"), "no column 'ward'; its columns are: age, sex, site, label"),
        (("--partition", "by_column", "--column", "site", "--clients", "7"), "finds 3 clients in the data; leave it out"),
        (("--column", "site"), "column has no effect on the partition 'classes'"),
    ],
)
def test_contradictions(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    result = shown("--dataset", str(patients(tmp_path / "all.csv")), *options, code=2)
    assert why in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_rows_without_their_client(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,site,label\n" + "1,a,0\n5,b,1\n" * 20 + "7,,1\n" * 4)
    with pytest.raises(UsageError, match=r"a\.csv, line 4[2-5]: column 'site' is empty, so its client is not known"):
        load_data(data(tmp_path / "a.csv", partition={"name": "by_column", "column": "site"}))
    (tmp_path / "b.csv").write_text("age,site,label\n" + "1,1.5,0\n5,2.5,1\n" * 20)
    with pytest.raises(UsageError, match="holds float; clients are told apart by whole numbers or texts"):
        load_data(data(tmp_path / "b.csv", partition={"name": "by_column", "column": "site"}))
