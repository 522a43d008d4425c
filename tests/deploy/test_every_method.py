"""Every method gives the same bits with remote clients as in a simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.source import Source
from fedpriv.errors import UsageError
from fedpriv.storage.run_folder import RunFolder
from tests.data.image_files import pixels, write_folder
from tests.deploy.apart import ALL_KEPT, agree, at_the_clients, play_apart
from tests.deploy.loopback import Loopback
from tests.marks import FEW, federated, slow_but
from tests.simulation.small import play
from tests.simulation.texts_and_pairs import narrow_fusion, pairs, pairs_folder, texts, write_texts

TINY = {
    "data.clients": 4,
    "data.limit": 100,
    "train.rounds": 2,
    "train.participation": 0.5,
    "model.projection": 8,
    "executor.name": "sequential",
    **ALL_KEPT,
}


@pytest.mark.parametrize("method", slow_but(FEW, federated()))
def test_every_method_equals_its_simulation(tmp_path: Path, reference: Callable[..., Path], method: str) -> None:
    agree(play_apart(tmp_path / "apart", method, **TINY), reference(method, **TINY))


OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("cast", "fedavg", {"wire.transforms": [{"name": "cast"}]}),
    ("masked", "fedavg", {"wire.transforms": [{"name": "mask", "last": 1}]}),
    ("validation", "fedrep", {"data.validation_fraction": 0.2, "eval.split": "validation"}),
    ("patience", "fedper", {"data.validation_fraction": 0.2, "eval.split": "validation", "train.patience": 1, "train.lr": 1e-9}),
    ("self-supervised", "fedavg", {"objective.name": "simclr", "data.augment": "simclr", "model.name": "mlp2"}),
]


@pytest.mark.parametrize(("method", "options"), slow_but([], [case[1:] for case in OPTIONS]), ids=[case[0] for case in OPTIONS])
def test_with_options(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    play(tmp_path / "whole", method, **TINY, **options)
    agree(play_apart(tmp_path / "apart", method, **TINY, **options), tmp_path / "whole")


TUNE: list[tuple[str, dict[str, Any]]] = [("full", {}), ("lora", {"model.tune": "lora"}), ("head", {"model.tune": "head"})]


@pytest.mark.parametrize(("how", "options"), slow_but([], TUNE), ids=[how for how, _ in TUNE])
def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, options: dict[str, Any]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = texts(write_texts(tmp_path / "intents.csv"), **options, **ALL_KEPT, **{"executor.name": "sequential"})
    play(tmp_path / "whole", "mpfedcon", **settings)
    agree(play_apart(tmp_path / "apart", "mpfedcon", **settings), tmp_path / "whole")


@pytest.mark.slow
def test_pairs_of_which_clients_lack_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = pairs(pairs_folder(tmp_path / "pairs"), **ALL_KEPT, **{"executor.name": "sequential"})
    with narrow_fusion():
        play(tmp_path / "whole", "simprox", **settings)
        agree(play_apart(tmp_path / "apart", "simprox", **settings), tmp_path / "whole")


def test_the_run_folder_says_what_it_is(tmp_path: Path) -> None:
    folder = play_apart(tmp_path / "run", "mpfedcon", **TINY)
    facts, summary = RunFolder.open(folder).facts, RunFolder.open(folder).summary()
    assert facts["status"] == "finished" and facts["deployed"]["own_data"] is False
    assert summary is not None and summary["accuracy"] > 0 and len(summary["accuracy_per_client"]) == 4
    assert at_the_clients(tmp_path / "run-clients") and not (folder / "clients").exists()


@pytest.mark.slow
def test_clients_with_data_of_their_own(tmp_path: Path, fedpriv: Callable[..., Any]) -> None:
    """Each has a folder that no other has; the server has none, and says so where it would need one."""
    own = [tmp_path / f"own-{client}" for client in range(2)]
    for client, where in enumerate(own):
        count = 24 + 12 * client
        write_folder(where, list(pixels(count, 16, 16, 3, seed=client)), [place % 3 for place in range(count)])
    grid = Loopback({n: ClientNode(n, Source(str(where)), tmp_path / f"client-{n}") for n, where in enumerate(own)})
    settings = {"data.limit": None, "data.pixels": "unit", "data.clients": 2}
    settings |= {"train.rounds": 2, "train.participation": 1.0, "model.name": "mlp2"}
    folder = play_apart(tmp_path / "run", "fedper", grid=grid, **settings)
    kept = RunFolder.open(folder)
    assert kept.facts["deployed"]["own_data"] is True and kept.summary() is not None
    declared = json.loads((folder / "declared.json").read_text())["clients"]
    assert [client["train"] + client["test"] for client in declared] == [24, 36]
    for command in (["attack", "analytic", "--run", folder], ["audit", folder], ["probe", folder]):
        ended = fedpriv(*command)
        assert ended.exit_code == 2 and "not scored: its clients' data are on their own machines" in ended.output, ended.output
    ended = fedpriv("resume", folder)
    assert ended.exit_code == 2


def test_clients_whose_tokenizers_differ_are_refused(tmp_path: Path) -> None:
    """The tiny encoder's words are those of the texts: the same number would stand for another word."""
    own = [write_texts(tmp_path / f"own-{client}.csv", 60, seed=client) for client in range(2)]
    grid = Loopback({n: ClientNode(n, Source(str(file)), tmp_path / f"client-{n}") for n, file in enumerate(own)})
    settings = texts(Path("elsewhere.csv"), **{"data.clients": 2, "train.participation": 1.0})
    with pytest.raises(UsageError, match=r"client 1 has samples of texts of \d+ words"):
        play_apart(tmp_path / "run", "fedavg", grid=grid, **settings)
