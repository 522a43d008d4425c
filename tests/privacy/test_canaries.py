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
from scipy.stats import binom, norm
from torch import Tensor

from fedpriv.audit.membership.epsilon import measured
from fedpriv.audit.sentences.epsilon import canaries as sentences_of
from fedpriv.cli import main
from fedpriv.client.local_update import ModelLocalUpdate
from fedpriv.config import load_config
from fedpriv.deploy.deployable import deployable
from fedpriv.errors import UsageError
from fedpriv.files import Damaged, load_tensors
from fedpriv.methods.base import ServerState
from fedpriv.parameters import ParameterSpace
from fedpriv.privacy.canaries import log_ratio
from fedpriv.privacy.client_level import NoisyMean
from fedpriv.server.canaries import ClientCanaries, SampleCanaries, mean_gain
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Direction, Sealed, Tap
from tests.marks import quick_first
from tests.simulation.conftest import Stopped
from tests.simulation.small import SILENT, config, flags, play, resume

Simulate = Callable[..., Simulation]
SMALL: dict[str, Any] = {"data.limit": 100, "model.name": "lenet_sigmoid", "model.projection": "none"}
CLIENT = {"privacy.level": "client", "privacy.noise": 3.0, "privacy.clip": 0.5, "privacy.canaries": 100, **SMALL}
SAMPLE = {
    "privacy.level": "sample",
    "privacy.noise": 4.0,
    "privacy.canaries": 100,
    "data.clients": 2,
    "train.participation": 0.5,
    **SMALL,
}
ALL = {"train.participation": 1.0, "eval.every": 100}


LEVELS = pytest.mark.parametrize("setting", quick_first([CLIENT, SAMPLE]))


def whole(row: Tensor) -> ServerState:
    return ServerState(row.clone())


def test_directions_are_orthonormal_and_lie_in_what_is_sent(simulate: Simulate) -> None:
    run = simulate("fedper", play=False, **CLIENT)
    assert run.canaries is not None
    canaries = run.canaries.canaries
    assert set(canaries.space.names) == set(run.agreement.sent_names) < set(run.agreement.space.names)
    rows = torch.stack([canaries.sum_of(torch.tensor([i])) for i in range(100)])
    assert torch.equal(canaries.sum_of(torch.tensor([3, 8])), rows[3] + rows[8])
    torch.testing.assert_close(rows @ rows.T, torch.eye(100, dtype=torch.float64))
    row = torch.randn(canaries.space.size, dtype=torch.float64)
    torch.testing.assert_close(canaries.products(row), rows @ row)
    assert 30 < int(canaries.used.sum()) < 70


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_the_score_is_the_log_likelihood_ratio(rate: float, steps: int) -> None:
    seen, spread = torch.linspace(-3, 4, 15, dtype=torch.float64), 0.7 * math.sqrt(steps)
    used = sum(binom.pmf(j, steps, rate) * norm.pdf(seen, j, spread) for j in range(steps + 1))
    expected = torch.from_numpy(used / norm.pdf(seen, 0, spread)).log()
    torch.testing.assert_close(log_ratio(seen, 0.7, rate, steps), expected)


@pytest.mark.parametrize("rates", [(1.0, 1.0, 1.0, 1.0), (0.0, 0.5, 1.0, 0.1)])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_how_far_a_gradient_moves_a_model(momentum: float, rates: tuple[float, ...]) -> None:
    moved = 0.0
    for step in range(4):  # the gradient is one in this step, zero in the others
        velocity = 0.0
        for now in range(4):
            velocity = momentum * velocity + (now == step)
            moved += rates[now] * velocity
    assert mean_gain(rates, momentum) == pytest.approx(moved / 4)


def test_the_server_clips_a_canary_and_the_model_shows_it(simulate: Simulate) -> None:
    run = simulate("fedavg", play=False, **CLIENT)
    planted, row = run.canaries, run.federation.initial
    assert isinstance(planted, ClientCanaries)
    mean = NoisyMean(run.agreement.space, run.agreement.sent_names, 0.5, 0.0, planted.expected)
    changes = list(planted.changes(1))
    new = mean(whole(row), [], {}, torch.Generator(), changes)
    shown = planted.products(run.agreement.space.unpack(new.row - row)) * planted.expected / 0.5
    assert 0 < len(changes) < int(planted.canaries.used.sum()), "a share is drawn"
    assert not shown[~planted.canaries.used].round(decimals=4).any()
    assert shown.round(decimals=3).sum() == len(changes) and shown.max() == pytest.approx(1, abs=1e-3)


def test_canaries_do_not_change_the_sampling_of_clients(simulate: Simulate) -> None:
    run, without = (simulate("fedavg", play=False, **{**CLIENT, "privacy.canaries": n}) for n in (100, 0))
    assert isinstance(run.canaries, ClientCanaries) and without.canaries is None
    counts = [len(list(run.canaries.changes(round))) for round in range(1, 41)]
    expected = 0.3 * int(run.canaries.canaries.used.sum())
    assert abs(sum(counts) / 40 - expected) < 4 * math.sqrt(expected * 0.7 / 40)
    for round in range(1, 30):
        assert run.participants(round) == without.participants(round)
    assert run.statement() == without.statement()


def note(changes: dict[int, Tensor], space: ParameterSpace, sent: Tensor) -> Tap:
    """A tap that notes how an upload changes a model ``(p,)``, by client."""

    def tap(direction: Direction, sealed: Sealed) -> None:
        if direction == "up" and sealed.client is not None:
            changes[sealed.client] = space.pack(sealed.tensors(), torch.empty_like(sent)) - sent

    return tap


def test_canaries_are_part_of_their_clients_clipped_sums(simulate: Simulate) -> None:
    """In one step on all samples the upload differs from that without canaries by the mean of those that are used."""
    one_step = {**SAMPLE, **ALL, "train.batch_size": 1000, "train.rounds": 1, "train.weight_decay": 0.0}
    seen: dict[int, dict[int, Tensor]] = {}
    for number in (0, 100):
        run = simulate("fedavg", play=False, **{**one_step, "privacy.canaries": number})
        sent, space = run.state.row.clone(), run.agreement.space
        run.taps.append(note(seen.setdefault(number, {}), space, sent))
        run.run_round()
    assert isinstance(run.canaries, SampleCanaries) and run.statement()["epsilon"] > 0
    for client in (0, 1):
        held = run.canaries.canaries.held_by(client, run.agreement.trainable)
        used = held[run.canaries.canaries.used[held]]
        n, lr = run.federation.data.size(client), run.config.train.lr
        expected = -lr / n * run.canaries.canaries.sum_of(used)
        torch.testing.assert_close(seen[100][client].double() - seen[0][client].double(), expected, rtol=0, atol=1e-7)
    assert sorted(torch.cat([run.canaries.canaries.held_by(client, (0, 1)) for client in (0, 1)]).tolist()) == list(range(100))
    assert not len(run.canaries.canaries.held_by(7, (0, 1))), "an audit simulates clients that hold none"


@LEVELS
def test_scores_survive_a_kill(tmp_path: Path, setting: dict[str, Any]) -> None:
    outcome = play(tmp_path / "whole", "fedavg", **setting)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Stopped

    from fedpriv.simulation import run

    halfway = config("fedavg", **setting, run_dir=str(tmp_path / "halfway"))
    with pytest.raises(Stopped):
        run.start(halfway, tmp_path, SILENT[0], stop, SILENT[2])
    again = resume(tmp_path / "halfway")
    scores, resumed = (load_tensors(run.folder.canaries_file) for run in (outcome, again))
    assert torch.equal(scores["scores"], resumed["scores"]) and torch.equal(scores["used"], resumed["used"])
    assert scores["scores"].std() > 0
    (tmp_path / "halfway" / "canaries.safetensors").write_bytes(b"")
    with pytest.raises(Damaged):
        measured(again.folder, {"epsilon": 1.0, "delta": 1e-5})


def tenth_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def quieter(self: NoisyMean, *arguments: Any) -> ServerState:
        return merge(NoisyMean(self.space, self.names, self.clip, self.noise / 10, self.expected), *arguments)

    merge = NoisyMean.__call__
    monkeypatch.setattr(NoisyMean, "__call__", quieter)


def tenth_of_the_noise_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def quieter(self: ModelLocalUpdate, *arguments: Any) -> None:
        begin(self, *arguments)
        privacy = self.config.privacy.model_copy(update={"noise": (self.config.privacy.noise or 0.0) / 10})
        self.config = self.config.model_copy(update={"privacy": privacy})

    begin = ModelLocalUpdate.__init__
    monkeypatch.setattr(ModelLocalUpdate, "__init__", quieter)


def with_and_without(
    fault: Callable[[pytest.MonkeyPatch], None], folder: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any]
) -> tuple[dict[str, Any], Any, Any]:
    """What a run claims, and what is measured of the run as it is and of one with the fault."""
    honest = play(folder / "honest", "fedavg", **setting)
    fault(monkeypatch)
    broken = play(folder / "broken", "fedavg", **setting)
    assert honest.summary is not None and broken.summary is not None
    claim = honest.summary["privacy"]
    assert broken.summary["privacy"] == claim, "the ledger cannot know"
    fine, caught = measured(honest.folder, claim), measured(broken.folder, claim)
    assert fine is not None and caught is not None
    return claim, fine, caught


@pytest.mark.parametrize("participation", [1.0, pytest.param(0.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_tenth_of_the_noise_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, participation: float, seed: int) -> None:
    """The positive control of the ledger, and beside it the run whose noise is as it says."""
    setting = {**CLIENT, **ALL, "train.participation": participation, "seed": seed}
    claim, fine, caught = with_and_without(tenth_of_the_noise, tmp_path, monkeypatch, setting)
    assert fine.best.epsilon <= claim["epsilon"] and len(sentences_of(fine)) == 1
    assert caught.best.epsilon > claim["epsilon"] and "is not what the accountant assumes" in sentences_of(caught)[1]
    by_name = {bound.name: bound.epsilon for bound in caught.bounds}
    assert min(by_name["one run"], by_name["f-DP, one run"]) > claim["epsilon"] or participation < 1


@pytest.mark.parametrize("batch_size", [1000, pytest.param(20, marks=pytest.mark.slow)])
def test_a_tenth_of_the_noise_of_samples_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    setting = {**SAMPLE, **ALL, "train.batch_size": batch_size, "model.name": "mlp_lineage"}
    claim, fine, caught = with_and_without(tenth_of_the_noise_of_samples, tmp_path, monkeypatch, setting)
    assert fine.best.epsilon <= claim["epsilon"] < caught.best.epsilon


def test_train_prints_what_is_measured(tmp_path: Path) -> None:
    given = flags("fedavg", **CLIENT, **ALL)
    done = CliRunner().invoke(main, ["train", "--json", *given, "--run-dir", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["canaries"]["claim"] == answer["privacy"]["epsilon"]
    names = [bound["name"] for bound in answer["canaries"]["bounds"]]
    assert names == ["one run", "Clopper-Pearson", "f-DP, one run", "Gaussian fit"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy.level": "none", "privacy.noise": None}, "canaries measure an epsilon, so they need a level"),
        ({"privacy.canaries": 20_000}, "privacy.canaries 20000: at most 8,026, the number of parameters"),
        ({"privacy.canaries": -1}, "privacy.canaries = -1"),
        ({"privacy.delta": 0.01}, "for 110 clients"),
        ({"privacy.level": "sample", "privacy.delta": 0.005}, "for 200 training samples"),
        ({"privacy.level": "sample", "train.optimizer": "adam"}, "optimizer sgd"),
        ({"privacy.level": "sample", "wire.secure_aggregation": True}, "leave secure_aggregation out"),
    ],
)
def test_what_cannot_be_measured_is_refused(simulate: Simulate, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate("fedavg", play=False, **{**CLIENT, **changes})


def test_a_deployment_has_no_canaries() -> None:
    private = load_config(None, {"privacy.level": "sample", "privacy.noise": 1.0, "privacy.canaries": 10})
    with pytest.raises(UsageError, match="planted in simulations"):
        deployable(private)
