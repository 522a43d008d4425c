from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from click.testing import CliRunner
from image_files import load_labels

from fedpriv.cli import main
from fedpriv.config import DataConfig
from fedpriv.data.partition_rules import partitions
from fedpriv.data.partitions.partition import make_partition


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, ["data", *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result


def test_list() -> None:
    text = run("list").output
    listed = json.loads(run("list", "--json").stdout.splitlines()[-1])
    assert {row["name"] for row in listed["partitions"]} == set(partitions())
    assert "digits" in {row["name"] for row in listed["datasets"]}
    assert all(row["name"] in text and row["about"] for part in listed.values() for row in part)


def test_show_is_the_partition_of_a_run() -> None:
    shown = json.loads(run("show", "--seed", "3", "--clients", "10", "--json").stdout.splitlines()[-1])
    digits = load_labels("digits")
    partition = make_partition(digits.train_labels, digits.test_labels, 10, DataConfig(clients=10), 3)
    assert shown["hash"] == partition.hash() and shown["dataset"] == "digits" and shown["partition"] == "classes"
    assert np.array_equal(shown["counts"], partition.counts(digits.train_labels, 10))
    assert np.array_equal(shown["test_counts"], partition.counts(digits.test_labels, 10, "test"))


def test_show_for_people() -> None:
    text = run("show", "--clients", "40", "--partition", "iid").output
    assert "40 clients, 10 classes" in text and "and 10 more clients" in text and "…" not in text
    assert run("show", "--clients", "5").exit_code == 0  # a number at which a run's default participation selects no client


def test_samples_that_several_clients_hold_are_counted_once() -> None:
    digits, dealt = load_labels("digits"), {"name": "class_dir_min1", "alpha": 0.1}
    partition = make_partition(digits.train_labels, digits.test_labels, 10, DataConfig(partition=dealt), 0)
    held = np.unique(np.concatenate(partition.train), return_counts=True)[1]
    text = run("show", "--partition", "class_dir_min1", "--alpha", "0.1").output
    assert (held > 1).any() and f"{len(held):,} of 1,438 are assigned, {(held > 1).sum()} of them more than once" in text
    assert "more than once" not in run("show", "--partition", "iid").output


def test_show_many_classes(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels = [f"word {i % 12}" for i in range(240)]
    pq.write_table(pa.table({"image": [b"never decoded"] * 240, "label": labels}), tmp_path / "words.parquet")
    text = run("show", "--dataset", str(tmp_path / "words.parquet"), "--clients", "6", "--classes-per-client", "4").output
    assert "largest" in text and "word 11" in text


@pytest.mark.slow
def test_picture(tmp_path: Path) -> None:
    file = tmp_path / "new" / "dealt.png"
    run("show", "--partition", "lognormal", "--output", str(file))
    with PIL.Image.open(file) as picture:
        assert picture.size[0] == 1500 and len(set(picture.convert("RGB").resize((150, 80)).get_flattened_data())) > 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--partition", "iidd"), "did you mean 'iid'"),
        (("--clients", "1000"), "fewer clients would do"),
        (("--dataset", "cifar10"), "--data-dir"),
        (("--dataset", "./nowhere"), "nowhere"),
        (("--set", "data.partition.alfa=1"), "alpha"),
        (("--output", "/proc/no/dealt.png"), "cannot write"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], says: str) -> None:
    result = run("show", *arguments, code=2)
    assert says in result.stderr and "Traceback" not in result.output and len(result.stderr.strip().splitlines()) == 1


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['fedpriv', 'data', 'show', '--help']\n"
        "from fedpriv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'datasets', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert "Example: fedpriv data show" in shown
