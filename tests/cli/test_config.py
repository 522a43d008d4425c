"""``fedpriv config`` and ``fedpriv init``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fedpriv.api.request import check_names
from fedpriv.cli.config_keys import as_yaml, keys, sections
from fedpriv.config import RunConfig, load_config, lookup
from fedpriv.config.model import PAIR_MODEL, TEXT_MODEL
from fedpriv.errors import UnknownName
from fedpriv.untrusted import plain_yaml
from tests.cli.test_attack import Fedpriv, last_line


def test_every_key_is_explained_and_its_default_is_the_configs() -> None:
    every = {key.name: key for key in keys()}
    assert {"train.lr", "data.partition.alpha", "method", "privacy.level"} <= every.keys() and len(every) > 80
    usual = RunConfig()
    for name, key in every.items():
        assert key.description and key.values, name
        if name != "method":
            assert plain_yaml.load(key.default) == usual.model_dump(mode="json")[name] if "." not in name else True
        assert load_config(None, {name: plain_yaml.load(key.default)}) == usual, name


@pytest.mark.parametrize(
    ("name", "values", "default"),
    [
        ("train.lr", "a number above 0", "0.01"),
        ("train.participation", "a number above 0 and at most 1, or null", "null"),
        ("train.optimizer", "sgd, adam, adamw, adamax", "sgd"),
        ("data.augment", "none, crop_flip", "null"),
        ("wire.secure_aggregation", "true or false", "false"),
        ("eval.probe_fractions", "a list, each a number above 0 and at most 1", "[1.0]"),
        ("executor.workers", "a whole number at least 1, or auto or ray", "auto"),
        ("method", "a name, or a mapping of a name and options", "mpfedcon"),
    ],
)
def test_a_key_in_words(fedpriv: Fedpriv, name: str, values: str, default: str) -> None:
    result = fedpriv("config", name, "--json")
    (key,) = last_line(result)["keys"]
    assert (key["name"], key["default"]) == (name, default) and key["values"].startswith(values.removesuffix(", or null"))
    assert f"{name} = {default}" in result.stderr


@pytest.mark.slow
def test_a_section_and_all_of_it(fedpriv: Fedpriv) -> None:
    names = [key["name"] for key in last_line(fedpriv("config", "data", "--json"))["keys"]]
    assert "data.clients" in names and "data.partition.alpha" in names and all(name.startswith("data.") for name in names)
    assert len(last_line(fedpriv("config", "--json"))["keys"]) == len(keys())
    assert set(sections()) == {"", *(key.name.rpartition(".")[0] for key in keys())}


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("train.learning_rate", "did you mean 'train.lr'"),
        ("train.lrr", "did you mean 'train.lr'"),
        ("nothing", "unknown key"),
        ("method.mu", "`fedpriv methods` lists the options"),
    ],
)
def test_a_key_that_there_is_not(fedpriv: Fedpriv, key: str, words: str) -> None:
    result = fedpriv("config", key)
    assert result.exit_code == 2 and words in result.output


@pytest.mark.slow
def test_a_file_is_written_that_means_the_defaults(fedpriv: Fedpriv, empty_folder: Path) -> None:
    assert fedpriv("init").exit_code == 0
    text = (empty_folder / "run.yaml").read_text()
    assert load_config(empty_folder / "run.yaml") == RunConfig()
    (empty_folder / "whole.yaml").write_text(re.sub(r"(?m)^#(?! )|^#(?=  +\w+:)", "", text))
    assert load_config(empty_folder / "whole.yaml") == RunConfig(), "each # before a key can be taken away"
    for key in keys():
        assert re.search(rf"(?m)^#?\s*{key.name.rpartition('.')[2]}: ", text), key.name


def test_what_is_given_is_set(fedpriv: Fedpriv, empty_folder: Path) -> None:
    given = ("--method", "moon", "--set", "method.mu=5", "--dp", "client", "--noise", "1", "--defense", "gaussian:variance=1e-4")
    assert fedpriv("init", "own.yaml", *given).exit_code == 0
    made = load_config(empty_folder / "own.yaml")
    assert made.method.params == {"mu": 5} and made.privacy.noise == 1.0
    assert made.wire.transforms == ({"name": "gaussian", "variance": 1e-4},)
    assert lookup(made, "train.lr") == 0.01 and as_yaml(made.method) == '{"name": "moon", "mu": 5}'


def test_a_key_with_the_value_of_its_default_is_set_and_what_is_left_open_is_not(fedpriv: Fedpriv, empty_folder: Path) -> None:
    given = ("--dataset", "disaster_synthetic", "--lr", "0.01", "--method", "fedavg")
    assert fedpriv("init", "own.yaml", *given).exit_code == 0
    (empty_folder / "dumped.yaml").write_text(fedpriv("train", *given, "--dump-config").stdout)
    for file in ("own.yaml", "dumped.yaml"):
        made = load_config(empty_folder / file)
        assert "lr" in made.train.model_fields_set
        assert "partition" not in made.data.model_fields_set and "clients" not in made.data.model_fields_set


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--method", "no-such"), "no-such"), (("--set", "train.lr=0"), "greater than 0"), (("no/such/folder.yaml",), "no folder")],
)
def test_nothing_is_written_of_what_cannot_be(
    fedpriv: Fedpriv, empty_folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = fedpriv("init", *arguments)
    assert result.exit_code == 2 and words in result.output and not list(empty_folder.iterdir())


def test_the_nets_of_texts_and_pairs_are_known_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's config names them, so that ``--config`` takes it again."""
    monkeypatch.delitem(sys.modules, "torch")  # names are checked without it
    for net in (TEXT_MODEL, PAIR_MODEL):
        check_names(RunConfig.model_validate({"model": {"name": net}}))
    with pytest.raises(UnknownName, match="unknown model 'transforme'"):
        check_names(RunConfig.model_validate({"model": {"name": "transforme"}}))


def test_a_file_that_is_there_stays(fedpriv: Fedpriv, empty_folder: Path) -> None:
    (empty_folder / "run.yaml").write_text("mine")
    result = fedpriv("init")
    assert result.exit_code == 2 and "is there already" in result.output
    assert (empty_folder / "run.yaml").read_text() == "mine"
