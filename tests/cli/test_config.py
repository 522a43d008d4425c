"""A config that went out as YAML comes back as the same run, and what is stronger wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from tests.simulation.small import computed, facts, flags

Fedpriv = Callable[..., Result]


def dumped(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return dict(yaml.safe_load(result.stdout))


@pytest.mark.slow
def test_a_dumped_config_is_the_same_run(empty_folder: Path, fedpriv: Fedpriv) -> None:
    arguments = flags("mpfedcon", **{"train.rounds": 1, "method.mu": 5, "wire.transforms": [{"name": "cast"}], "seed": 3})
    text = fedpriv("train", *arguments, "--dump-config").stdout
    assert list(empty_folder.iterdir()) == []
    Path("dumped.yaml").write_text(text)
    assert fedpriv("train", "--config", "dumped.yaml", "--dump-config").stdout == text
    for name, given in (("a", arguments), ("b", ["--config", "dumped.yaml"])):
        assert fedpriv("train", *given, "--run-dir", name).exit_code == 0
    assert facts(Path("a"))["config_fingerprint"] == facts(Path("b"))["config_fingerprint"]
    assert computed(Path("a")) == computed(Path("b"))


@pytest.mark.slow
@pytest.mark.parametrize("place", [["--run-dir", "other"], []], ids=["elsewhere", "default place"])
def test_the_config_of_a_finished_run_gives_the_run_again(empty_folder: Path, fedpriv: Fedpriv, place: list[str]) -> None:
    """Also where the run had a place of its own: the stored file does not name it."""
    assert fedpriv("train", *flags("mpfedcon", **{"train.rounds": 2}), "--run-dir", "first").exit_code == 0
    stored = yaml.safe_load(Path("first/config.yaml").read_text())
    assert stored["run_dir"] is None
    assert (stored["model"]["name"], stored["data"]["partition"]["seed"], stored["method"]["tau"]) == ("mlp_lineage", 0, 0.5)
    result = fedpriv("train", "--config", "first/config.yaml", *place, "--json")
    assert result.exit_code == 0, result.output
    again = Path(json.loads(result.stdout.splitlines()[-1])["run_dir"])
    assert again == (empty_folder / "other" if place else again)
    assert again != empty_folder / "first"
    assert computed(again) == computed(Path("first"))
    assert (again / "config.yaml").read_text() == Path("first/config.yaml").read_text()


@pytest.mark.slow
def test_another_seed_on_a_stored_config_keeps_its_partition(empty_folder: Path, fedpriv: Fedpriv) -> None:
    assert fedpriv("train", *flags("fedavg", **{"train.rounds": 1}), "--run-dir", "one").exit_code == 0
    assert fedpriv("train", "--config", "one/config.yaml", "--seed", "1", "--run-dir", "two").exit_code == 0
    assert facts(Path("one"))["partition_hash"] == facts(Path("two"))["partition_hash"]
    assert computed(Path("one"))["weights/server.safetensors"] != computed(Path("two"))["weights/server.safetensors"]


def test_file_then_flags_then_set(fedpriv: Fedpriv) -> None:
    Path("run.yaml").write_text("train: {rounds: 1, lr: 0.1, batch_size: 7}\nmethod: {name: fedrep, head_epochs: 4}\nseed: 9\n")
    given = ["--config", "run.yaml", "--rounds", "2", "--lr", "0.2", "--set", "train.rounds=3"]
    found = dumped(fedpriv("train", *given, "--dump-config"))
    assert found["train"] | {"rounds": 3, "lr": 0.2, "batch_size": 7, "momentum": 0.5} == found["train"]
    assert (found["method"]["name"], found["method"]["head_epochs"]) == ("fedrep", 4)
    assert found["seed"] == 9
    order = dumped(fedpriv("train", "--set", "train.rounds=3", "--rounds", "2", "--dump-config"))
    assert order["train"]["rounds"] == 3  # wherever it stands
    last = dumped(fedpriv("train", "--set", "seed=3", "--set", "seed=4", "--dump-config"))
    assert last["seed"] == 4


def test_a_method_by_name_alone_can_be_given_options(fedpriv: Fedpriv) -> None:
    Path("run.yaml").write_text("method: mpfedcon\n")
    found = dumped(fedpriv("train", "--config", "run.yaml", "--set", "method.mu=5", "--dump-config"))
    assert (found["method"]["name"], found["method"]["mu"], found["method"]["tau"]) == ("mpfedcon", 5, 0.5)


def test_halves_alone_are_put_into_fedavg_and_another_method_leaves_them_behind(empty_folder: Path, fedpriv: Fedpriv) -> None:
    halves = ["--objective", "cross-entropy", "--aggregation", "mean", "--set", "aggregation.weights=uniform"]
    dumped = fedpriv("train", *halves, "--dump-config").stdout
    config = yaml.safe_load(dumped)
    assert config["method"] == {"name": "fedavg"}
    assert config["objective"] == {"name": "cross-entropy"} and config["aggregation"] == {"name": "mean", "weights": "uniform"}
    (empty_folder / "run.yaml").write_text(dumped)
    other = yaml.safe_load(fedpriv("train", "--config", "run.yaml", "--method", "fedrep", "--dump-config").stdout)
    assert other["method"]["name"] == "fedrep" and other["objective"] is None and other["aggregation"] is None
    kept = yaml.safe_load(fedpriv("train", "--config", "run.yaml", "--method", "fedrep", *halves[:2], "--dump-config").stdout)
    assert kept["objective"] == {"name": "cross-entropy"} and kept["aggregation"] is None


def test_a_name_in_other_words_is_stored_as_the_name(fedpriv: Fedpriv) -> None:
    assert dumped(fedpriv("train", "--aggregation", "fedavg", "--dump-config"))["aggregation"]["name"] == "mean"


def test_an_empty_file_is_the_defaults(fedpriv: Fedpriv) -> None:
    Path("run.yaml").write_text("# nothing yet\n")
    assert dumped(fedpriv("train", "--config", "run.yaml", "--dump-config")) == dumped(fedpriv("train", "--dump-config"))


def test_dumped_as_json_too(fedpriv: Fedpriv) -> None:
    result = fedpriv("train", "--dump-config", "--json")
    text, last = result.stdout.rstrip("\n").rsplit("\n", 1)
    assert yaml.safe_load(text) == json.loads(last)
