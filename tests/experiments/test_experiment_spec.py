"""The YAML of an experiment: deep merging, the folders' layout, and errors of one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_results import BASE, write_yaml

from fedpriv.errors import UsageError
from fedpriv.experiments import read
from fedpriv.experiments.spec import merge


def test_runs_are_laid_over_the_base_mapping_by_mapping(tmp_path: Path) -> None:
    path = write_yaml(
        tmp_path, runs={"a": {"method": {"name": "fedrep"}, "train": {"rounds": 3}}, "b": {"method": "fedavg"}}, seeds=[4, 2]
    )
    experiment = read(path)
    config = experiment.config("a", 4)
    assert (config.method.name, config.train.rounds, config.train.participation, config.seed) == ("fedrep", 3, 0.5, 4)
    assert experiment.config("b", 2).train.rounds == 20
    assert experiment.select() == [("a", 4), ("b", 4), ("a", 2), ("b", 2)]
    assert experiment.select(["b"], [2]) == [("b", 2)]
    assert experiment.select(["b", "a", "b"], [2, 4, 2]) == [("a", 2), ("b", 2), ("a", 4), ("b", 4)], "each once"


def test_merging_changes_neither_side() -> None:
    base, over = {"x": {"y": 1, "z": 2}, "k": 3}, {"x": {"y": 5}}
    assert merge(base, over) == {"x": {"y": 5, "z": 2}, "k": 3}
    assert base == {"x": {"y": 1, "z": 2}, "k": 3} and over == {"x": {"y": 5}}


def test_layout(tmp_path: Path) -> None:
    experiment = read(write_yaml(tmp_path / "paper", "table1", runs={"a": {"method": "fedavg"}}))
    assert experiment.run_dir(Path("runs"), "a", 0) == Path("runs/experiments/paper/table1/a-s0")
    assert experiment.result_file("a", 0) == tmp_path / "paper/results/table1/a-s0.json"


FEDAVG = {"fedavg": {"method": {"name": "fedavg"}}}
CLAIM = {"id": "C3", "statement": "s"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no 'runs'"),
        ({"runs": {}}, "runs"),
        (
            {"runs": {"fast": {"method": "fedavg", "train": {"round": 3}}}},
            "run fast of .* 'train.round'; did you mean 'train.rounds'",
        ),
        ({"runs": {"slow": {"method": {"name": "fedrep", "epochs": 3}}}}, "run slow of .* method fedrep"),
        ({"runs": {"odd": {"method": "fedarg"}}}, "run odd of .* did you mean 'fedavg'"),
        ({"runs": {"fixed": {"method": "fedavg", "seed": 3}}}, "run fixed of .* seed is set by seeds"),
        ({"runs": {"a/b": {"method": "fedavg"}}}, "'a/b' names files"),
        ({"runs": {"a": "fedavg"}}, r"runs\.a = 'fedavg'"),
        ({"runs": FEDAVG, "seeds": []}, "seeds"),
        ({"runs": FEDAVG, "seeds": [1, 1]}, "twice"),
        ({"runs": FEDAVG, "target": "fedavgg"}, "did you mean 'fedavg'"),
        ({"runs": FEDAVG, "claim": []}, "did you mean 'claims'"),
        ({"runs": FEDAVG, "claims": [{"id": "C3"}]}, "claim C3 of .* no 'statement'"),
        ({"runs": FEDAVG, "claims": [CLAIM]}, "claim C3 of .* either compare"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["fedavg", "fedrep"]}]}, "unknown run in claim C3 of .* 'fedrep'"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["best_baseline"] * 2}]}, "second side of a comparison"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["best_baseline", "fedavg"]}]}, "second side of a comparison"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "of": "best_baseline", "above": 0.5}]}, "second side of a comparison"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "of": "fedavg"}]}, "needs one of above, below, equals"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "of": "fedavg", "equals": 0.8}]}, "equals is for upload_bytes"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["fedavg"] * 2, "above": 0.8}]}, "takes a margin, not above"),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["fedavg"] * 2, "metric": "clients_better"}]}, "above: or below:"),
        (
            {"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["fedavg"] * 2, "metric": "speed_up", "above": 3, "margin": 0.1}]},
            "above: or below: a value, no margin",
        ),
        (
            {"runs": FEDAVG, "claims": [{**CLAIM, "of": "fedavg", "metric": "speed_up", "above": 3}]},
            "metric speed_up needs compare",
        ),
        ({"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["fedavg"] * 2, "margn": 1}]}, "did you mean 'margin'"),
        (
            {"runs": FEDAVG, "claims": [{**CLAIM, "compare": ["fedavg", "best_baseline"]}]},
            "needs a run of another method than fedavg",
        ),
        (
            {
                "runs": {**FEDAVG, "many": {"method": "local", "data": {"clients": 8}}},
                "claims": [{**CLAIM, "compare": ["fedavg", "many"], "metric": "clients_better", "above": 0.5}],
            },
            "claim C3 of .* the same clients, not 4 of fedavg, 8 of many",
        ),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    path = write_yaml(tmp_path, base=BASE, **values)
    with pytest.raises(UsageError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(("labels", "seeds"), [(["fedrepp"], []), ([], [7])])
def test_selecting_what_is_not_there(tmp_path: Path, labels: list[str], seeds: list[int]) -> None:
    experiment = read(write_yaml(tmp_path, runs=FEDAVG))
    with pytest.raises(UsageError, match=r"fedrepp|seed 7"):
        experiment.select(labels, seeds)
