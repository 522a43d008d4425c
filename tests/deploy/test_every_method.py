"""Every method ends with the same bits where its clients are apart as in a simulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.methods import methods
from fedpriv.simulation.run import RunFolder
from tests.deploy.apart import ALL_KEPT, agree, at_the_clients, play_apart
from tests.marks import FEW, slow_but
from tests.simulation.small import play
from tests.simulation.texts_and_pairs import pairs, pairs_folder, texts, write_texts

TINY = {
    "data.clients": 4,
    "data.limit": 200,
    "train.rounds": 2,
    "train.participation": 0.5,
    "model.projection": 8,
    "executor.name": "sequential",
    **ALL_KEPT,
}


@pytest.mark.parametrize("method", slow_but(FEW, sorted(methods())))
def test_apart_it_ends_where_a_simulation_does(tmp_path: Path, reference: Callable[..., Path], method: str) -> None:
    agree(play_apart(tmp_path / "apart", method, **TINY), reference(method, **TINY))


OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("cast", "fedavg", {"wire.transforms": [{"name": "cast"}]}),
    ("masked", "fedavg", {"wire.transforms": [{"name": "mask", "last": 1}]}),
    ("validation", "fedrep", {"data.validation_fraction": 0.2, "eval.split": "validation"}),
    ("self-supervised", "fedavg", {"objective.name": "simclr", "data.augment": "simclr", "model.name": "mlp2"}),
]


@pytest.mark.parametrize(("method", "options"), slow_but([], [case[1:] for case in OPTIONS]), ids=[case[0] for case in OPTIONS])
def test_with_options(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    play(tmp_path / "whole", method, **TINY, **options)
    agree(play_apart(tmp_path / "apart", method, **TINY, **options), tmp_path / "whole")


TUNE: list[tuple[str, dict[str, Any]]] = [("full", {}), ("lora", {"model.tune": "lora"}), ("head", {"model.tune": "head"})]


@pytest.mark.parametrize(("how", "options"), slow_but(["full"], TUNE), ids=[how for how, _ in TUNE])
def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, options: dict[str, Any]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = texts(write_texts(tmp_path / "intents.csv"), **options, **ALL_KEPT, **{"executor.name": "sequential"})
    play(tmp_path / "whole", "mpfedcon", **settings)
    agree(play_apart(tmp_path / "apart", "mpfedcon", **settings), tmp_path / "whole")


@pytest.mark.slow
def test_pairs_of_which_clients_lack_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = pairs(pairs_folder(tmp_path / "pairs"), **ALL_KEPT, **{"executor.name": "sequential"})
    play(tmp_path / "whole", "simprox", **settings)
    agree(play_apart(tmp_path / "apart", "simprox", **settings), tmp_path / "whole")


def test_the_run_folder_says_what_it_is(tmp_path: Path) -> None:
    folder = play_apart(tmp_path / "run", "mpfedcon", **TINY)
    facts, summary = RunFolder.open(folder).facts, RunFolder.open(folder).summary()
    assert facts["status"] == "finished" and facts["deployed"]["own_data"] is False
    assert summary is not None and summary["accuracy"] > 0 and len(summary["accuracy_per_client"]) == 4
    assert at_the_clients(tmp_path / "run-clients") and not (folder / "clients").exists()
