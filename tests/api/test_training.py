"""Runs that are trained in Python are those of the command line, whole, in rounds, or resumed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from click.testing import CliRunner

import fedpriv
from fedpriv.api.keys import KEYS, SHORTHANDS, Keys, config_of
from fedpriv.cli import main
from fedpriv.cli.options import _DATA_FLAGS, _RUN_FLAGS
from fedpriv.config import RunConfig
from fedpriv.server.rounds import Server
from fedpriv.tracking import ForeignStore
from tests.api.conftest import SMALL


def test_importing_costs_nothing() -> None:
    code = (
        "import sys, fedpriv, fedpriv.attacks; print({'torch', 'numpy', 'pydantic', 'mlflow'} & set(sys.modules), dir(fedpriv))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("set()") and all(f"'{name}'" in said for name in fedpriv.__all__)


def test_every_public_name_is_there() -> None:
    assert all(getattr(fedpriv, name) for name in fedpriv.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        fedpriv.tarin  # noqa: B018


def test_short_names_are_the_options_of_the_command() -> None:
    assert {flag.replace("-", "_") for flag in (*_RUN_FLAGS, *_DATA_FLAGS)} == KEYS.keys() - {"roles"}


def test_every_key_has_a_type() -> None:
    """Sections that have a short name of their own (``method``) stand for both."""
    assert Keys.__annotations__.keys() == {*KEYS, *SHORTHANDS, *RunConfig.model_fields}
    hints = get_type_hints(Keys, {"Mapping": Mapping, "Sequence": Sequence, "Callable": Callable})
    for name in ("tune", "selection", "optimizer", "dp", "executor", "compile"):
        section, _, key = KEYS[name].partition(".")
        annotation = RunConfig.model_fields[section].annotation.model_fields[key].annotation  # type: ignore[union-attr]
        assert named(hints[name]) == named(annotation), name


def named(annotation: Any) -> set[Any]:
    """The names that an annotation allows, in any of its parts."""
    parts = get_args(annotation)
    return set(parts) if get_origin(annotation) is Literal else set().union(*map(named, parts))


def test_the_same_run_as_on_the_command_line(run: fedpriv.Run, here: Path) -> None:
    options = "--method fedavg --dataset digits --clients 5 --rounds 3 --local-epochs 1 --lr 0.05 --executor sequential"
    line = f"train {options} --tracking-uri none --set data.limit=300 --run-dir told"
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 0, result.output
    told = fedpriv.load("told")
    assert told.config.fingerprint() == run.config.fingerprint()
    weights, others = run.weights(), told.weights()
    assert weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


def test_rounds_until_the_caller_stops_then_resumed(run: fedpriv.Run, here: Path) -> None:
    threads = torch.get_num_threads()
    with fedpriv.rounds(method="fedavg", **SMALL) as rounds:
        with pytest.raises(fedpriv.UsageError, match="before its first round"):
            _ = rounds.run
        for record in rounds:
            assert rounds.run.status == "running"
            if record["round"] == 2:
                break
    stopped = rounds.run
    assert stopped.status == "interrupted" and stopped.rounds == 2 and stopped.summary is None
    assert stopped.accuracy == run.history.accuracy[2]
    with pytest.raises(fedpriv.UsageError, match="no final model: it is interrupted"):
        stopped.weights()
    seen = list[int]()
    resumed = fedpriv.resume(stopped, on_round=lambda record: seen.append(record["round"]))
    assert seen == [3] and resumed.status == "finished" and resumed.accuracy == run.accuracy
    assert torch.get_num_threads() == threads


def test_rounds_have_the_threads_of_the_run_whatever_the_caller_has(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()
    monkeypatch.setattr("fedpriv.server.rounds.Server.participants", _noting_threads(seen, Server.participants))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with fedpriv.rounds(method="fedavg", threads=1, **SMALL) as rounds:
            for _ in rounds:
                assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def _noting_threads(seen: list[int], participants: Callable[[Server, int], list[int]]) -> Callable[[Server, int], list[int]]:
    def noting(server: Server, round: int) -> list[int]:
        seen.append(torch.get_num_threads())
        return participants(server, round)

    return noting


def test_numbers_do_not_depend_on_what_the_caller_has_set(run: fedpriv.Run, here: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            weights = fedpriv.train(method="fedavg", **SMALL).weights()
            report = fedpriv.audit(run, label_shadows=0, membership_shadows=0, messages=1, budget=0.01)
            assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(weights[name], other) for name, other in run.weights().items())
    assert report.answer


def test_rounds_that_are_left_without_being_closed_go_on(here: Path) -> None:
    rounds = fedpriv.rounds(method="fedavg", **SMALL)
    for _ in rounds:
        break
    with pytest.raises(fedpriv.UsageError, match=r"is running the run in .*; it is this process; call `close\(\)`"):
        fedpriv.resume(rounds.run)
    assert next(rounds)["round"] == 2
    rounds.close()
    assert fedpriv.resume(rounds.run).status == "finished"


def test_the_plot_of_a_run_that_is_not_evaluated_yet_does_not_say_why(here: Path) -> None:
    with fedpriv.rounds(method="fedavg", **SMALL | {"eval": {"every": 3, "last": 1}}) as rounds:
        next(rounds)
    assert rounds.run.plot().get_title(loc="left") == "Accuracy: not measured"


def test_resume_sends_to_a_store_that_only_the_folder_names_if_the_caller_names_it(here: Path) -> None:
    with fedpriv.rounds(method="fedavg", **SMALL) as rounds:
        next(rounds)
    folder = rounds.run.folder
    folder.update_facts(tracking=folder.facts["tracking"] | {"uri": "sqlite:////nowhere/mlflow.db"})
    with pytest.raises(ForeignStore, match="neither MLFLOW_TRACKING_URI nor beside the run"):
        fedpriv.resume(rounds.run)
    assert fedpriv.resume(rounds.run, tracking_uri="none").status == "finished"
    assert folder.facts["tracking"]["uri"] == "none"


def test_an_error_of_the_callers_function_fails_the_run(here: Path) -> None:
    def stop(record: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fedpriv.train(method="fedavg", on_round=stop, run_dir="failing", **SMALL)
    assert fedpriv.load("failing").status == "failed"


def test_keys_by_short_name_by_section_and_with_dots() -> None:
    base = config_of(None, {"method": "mpfedcon", "method.mu": 5, "lr": 0.2})
    assert (base.method.name, base.method.params["mu"], base.train.lr) == ("mpfedcon", 5, 0.2)
    over = config_of(base, {"train": {"lr": 0.1}, "train.momentum": 0.9, "dataset": Path("photos")})
    assert (over.train.lr, over.train.momentum, over.data.name, over.method) == (0.1, 0.9, "photos", base.method)
    assert base.train.model_fields_set == {"lr"} and "rounds" not in over.train.model_fields_set  # open keys stay open
    cluster = config_of(None, {"workers": "ray", "ray_address": "there:6379", "ray_workers": 2})
    assert config_of(cluster, {"workers": 2}).executor.ray_address is None, "that of a run on a cluster, repeated on this machine"
    assert config_of({"train": {"rounds": 7}}, {}).train.rounds == 7
    assert config_of(base, {"aggregation": "simagg"}).aggregation is not None
    assert config_of(config_of(base, {"aggregation": "simagg"}), {"aggregation": None}).aggregation is None


def test_the_order_in_which_keys_are_given_does_not_matter() -> None:
    base = config_of(None, {"method": "mpfedcon", "method.mu": 5})
    for names in (("aggregation", "method"), ("method", "aggregation")):
        given = {"aggregation": "simprox", "method": "fedavg"}
        found = config_of(base, {name: given[name] for name in names})
        assert found.called == "fedavg-simprox" and "mu" not in found.method.params
    assert config_of(base, {"method.mu": 0.3, "method.name": "fedprox"}).method.params == {"mu": 0.3}


def test_defences_are_appended() -> None:
    base = config_of(None, {"wire.transforms": [{"name": "clip", "norm": 1.0}]})
    made = config_of(base, {"defense": "gaussian", "variance": 1e-3, "mask_layers": 1})
    assert [one["name"] for one in made.wire.transforms] == ["clip", "mask", "gaussian"]
    assert set(SHORTHANDS).isdisjoint(KEYS)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"rouns": 3}, r"unknown key in config 'rouns'; did you mean 'rounds'\?"),
        ({"train": {"rouns": 3}}, r"unknown key in config 'train.rouns'; did you mean 'train.rounds'\?"),
        ({"precision": "bfloat16"}, r"unknown key in config 'precision'; did you mean 'train.precision'\?"),
        ({"data.precision": "bfloat16"}, r"unknown key in config 'data.precision'; did you mean 'train.precision'\?"),
        ({"data": {"precision": "bfloat16"}}, r"unknown key in config 'data.precision'; did you mean 'train.precision'\?"),
        ({"rounds": 0}, r"config: train.rounds = 0: input should be greater than 0"),
        ({"method": "fedavgg"}, r"unknown method 'fedavgg'; did you mean 'fedavg'\?"),
        ({"partition": "iid", "alpha": 0.1}, "alpha has no effect on the partition 'iid'"),
        ({"config": "nowhere.yaml"}, "cannot read config nowhere.yaml"),
    ],
)
def test_what_cannot_be_right(keys: dict[str, object], why: str, here: Path) -> None:
    with pytest.raises(fedpriv.UsageError, match=why):
        fedpriv.train(**keys)  # type: ignore[arg-type]
    assert not list(here.iterdir())
