"""Canaries: what a run adds to measure its epsilon changes nothing else, and shows noise that is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from scipy.stats import norm
from torch import Tensor

from fedpriv.audit.membership.canaries import measured
from fedpriv.cli import main
from fedpriv.config import load_config
from fedpriv.deploy.serving import _check_possible
from fedpriv.errors import UsageError
from fedpriv.files import Damaged, load_tensors
from fedpriv.methods.base import ServerState
from fedpriv.privacy.canaries import log_ratio
from fedpriv.privacy.client_level import NoisyMean
from fedpriv.simulation.simulation import Simulation
from tests.simulation.conftest import Stopped
from tests.simulation.small import SILENT, config, flags, play, resume

pytestmark = pytest.mark.usefixtures("quick_plots")
Simulate = Callable[..., Simulation]
SMALL: dict[str, Any] = {"data.limit": 100, "model.name": "lenet_sigmoid", "model.projection": "none"}
CLIENT = {"privacy.level": "client", "privacy.noise": 3.0, "privacy.clip": 0.5, "privacy.canaries": 100, **SMALL}
ALL = {"train.participation": 1.0, "eval.every": 100}


def whole(row: Tensor) -> ServerState:
    return ServerState(row.clone())


def test_directions_are_orthonormal_and_lie_in_what_is_sent(simulate: Simulate) -> None:
    run = simulate("fedper", play=False, **CLIENT)
    assert run.canaries is not None
    canaries = run.canaries.canaries
    assert set(canaries.space.names) == set(run.agreement.sent_names) < set(run.agreement.space.names)
    rows = torch.stack([canaries.direction(i) for i in range(100)])
    torch.testing.assert_close(rows @ rows.T, torch.eye(100, dtype=torch.float64))
    row = torch.randn(canaries.space.size, dtype=torch.float64)
    torch.testing.assert_close(canaries.products(row), rows @ row)
    assert 30 < int(canaries.used.sum()) < 70


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_the_score_is_the_log_likelihood_ratio(rate: float) -> None:
    seen = torch.linspace(-3, 4, 15, dtype=torch.float64)
    drawn, blank = norm.pdf(seen, 1, 0.7), norm.pdf(seen, 0, 0.7)
    expected = torch.log(torch.from_numpy((rate * drawn + (1 - rate) * blank) / blank))
    torch.testing.assert_close(log_ratio(seen, 0.7, rate), expected)


def test_the_server_clips_a_canary_and_the_model_shows_it(simulate: Simulate) -> None:
    run = simulate("fedavg", play=False, **CLIENT)
    planted, row = run.canaries, run.federation.initial
    assert planted is not None
    mean = NoisyMean(run.agreement.space, run.agreement.sent_names, 0.5, 0.0, planted.expected)
    changes = list(planted.changes(1))
    new = mean(whole(row), [], {}, torch.Generator(), changes)
    shown = planted.canaries.products(planted._sent(new.row) - planted._sent(row)) * planted.expected / 0.5
    assert 0 < len(changes) < int(planted.canaries.used.sum()), "a share is drawn"
    assert not shown[~planted.canaries.used].round(decimals=4).any()
    assert shown.round(decimals=3).sum() == len(changes) and shown.max() == pytest.approx(1, abs=1e-3)


def test_canaries_are_drawn_as_clients_and_the_clients_as_without(simulate: Simulate) -> None:
    run, without = (simulate("fedavg", play=False, **{**CLIENT, "privacy.canaries": n}) for n in (100, 0))
    assert run.canaries is not None and without.canaries is None
    counts = [len(list(run.canaries.changes(round))) for round in range(1, 101)]
    expected = 0.3 * int(run.canaries.canaries.used.sum())
    assert abs(sum(counts) / 100 - expected) < 4 * math.sqrt(expected * 0.7 / 100)
    for round in range(1, 30):
        assert run.participants(round) == without.participants(round)
    assert run.statement() == without.statement()


def test_scores_are_those_of_the_released_models_and_survive_a_kill(tmp_path: Path) -> None:
    outcome = play(tmp_path / "whole", "fedavg", **CLIENT)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Stopped

    from fedpriv.simulation import run

    halfway = config("fedavg", **CLIENT, run_dir=str(tmp_path / "halfway"))
    with pytest.raises(Stopped):
        run.start(halfway, tmp_path, SILENT[0], stop, SILENT[2])
    again = resume(tmp_path / "halfway")
    found, resumed = (load_tensors(one.folder.canaries_file) for one in (outcome, again))
    assert torch.equal(found["scores"], resumed["scores"]) and torch.equal(found["used"], resumed["used"])
    assert found["scores"].std() > 0
    (tmp_path / "halfway" / "canaries.safetensors").write_bytes(b"")
    with pytest.raises(Damaged):
        measured(again.folder, {"epsilon": 1.0, "delta": 1e-5})


def tenth_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def quieter(self: NoisyMean, *arguments: Any) -> ServerState:
        return merge(NoisyMean(self.space, self.names, self.clip, self.noise / 10, self.expected), *arguments)

    merge = NoisyMean.__call__
    monkeypatch.setattr(NoisyMean, "__call__", quieter)


@pytest.mark.parametrize("participation", [1.0, pytest.param(0.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_tenth_of_the_noise_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, participation: float, seed: int) -> None:
    """The positive control of the ledger, and beside it the run whose noise is as it says."""
    setting = {**CLIENT, **ALL, "train.participation": participation, "seed": seed}
    honest = play(tmp_path / "honest", "fedavg", **setting)
    tenth_of_the_noise(monkeypatch)
    broken = play(tmp_path / "broken", "fedavg", **setting)
    assert honest.summary is not None and broken.summary is not None
    claim = honest.summary["privacy"]
    assert broken.summary["privacy"] == claim, "the ledger cannot know"
    fine, caught = measured(honest.folder, claim), measured(broken.folder, claim)
    assert fine is not None and caught is not None
    assert fine["lower"] <= claim["epsilon"] and len(fine["sentences"]) == 1
    assert caught["lower"] > claim["epsilon"] and "not what the ledger says" in caught["sentences"][1]
    by_name = {bound["name"]: bound["epsilon"] for bound in caught["bounds"]}
    assert min(by_name["one run"], by_name["f-DP, one run"]) > claim["epsilon"] or participation < 1


def test_train_prints_what_is_measured(tmp_path: Path) -> None:
    given = flags("fedavg", **CLIENT, **ALL)
    done = CliRunner().invoke(main, ["train", "--json", *given, "--run-dir", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["canaries"]["claim"] == found["privacy"]["epsilon"]
    names = [bound["name"] for bound in found["canaries"]["bounds"]]
    assert names == ["one run", "Clopper-Pearson", "f-DP, one run", "Gaussian fit"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy.level": "none", "privacy.noise": None}, "canaries measure an epsilon, so they need a level"),
        ({"privacy.canaries": 20_000}, "privacy.canaries 20000: at most 8,026, the number of parameters"),
        ({"privacy.canaries": -1}, "privacy.canaries = -1"),
        ({"privacy.delta": 0.01}, "for 110 clients"),
    ],
)
def test_what_cannot_be_measured_is_refused(simulate: Simulate, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate("fedavg", play=False, **{**CLIENT, **changes})


def test_a_deployment_has_no_canaries() -> None:
    private = load_config(None, {"privacy.level": "sample", "privacy.noise": 1.0, "privacy.canaries": 10})
    with pytest.raises(UsageError, match="planted in simulations"):
        _check_possible(private)
