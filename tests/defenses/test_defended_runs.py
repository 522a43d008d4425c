"""Whole runs under a defence: still learning, the same bits again, and the numbers where the user sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fedpriv.cli import main
from fedpriv.server.clients import Instruction
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Payload, TransformContext
from tests.simulation.small import computed, flags, play

Simulate = Callable[..., Simulation]
ALL = [
    {"name": "mask", "last": 1},
    {"name": "clip", "norm": 0.5},
    {"name": "gaussian", "variance": 1e-6},
    {"name": "laplace", "variance": 1e-6},
    {"name": "prune", "fraction": 0.3},
    {"name": "quantise", "bits": 6},
]
LEARNS = {
    "data.limit": 800,
    "data.clients": 3,
    "model.name": "mlp2",
    "train.rounds": 6,
    "train.participation": 1.0,
    "train.batch_size": 10,
    "train.lr": 0.1,
    "data.partition.name": "iid",
    "model.projection": 16,
    "eval.every": 6,
    "eval.last": 1,
}


@pytest.mark.parametrize(
    "transforms",
    [[{"name": "mask", "last": 1}], [{"name": "gaussian", "variance": 1e-5}], [{"name": "prune", "fraction": 0.2}], ALL],
    ids=["mask", "gaussian", "prune", "all"],
)
@pytest.mark.slow
def test_a_defended_run_learns(simulate: Simulate, transforms: list[dict[str, Any]]) -> None:
    run = simulate("fedavg", **LEARNS, **{"wire.transforms": transforms})
    assert run.progress.record["metrics"]["accuracy"] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "mpfedcon"])
def test_the_same_run_again(tmp_path: Path, method: str) -> None:
    for name in ("one", "two"):
        torch.manual_seed(len(name))
        torch.rand(3)
        play(tmp_path / name, method, **{"wire.transforms": ALL})
    assert computed(tmp_path / "one") == computed(tmp_path / "two")


def test_a_client_s_noise_depends_on_seed_round_and_client_alone(simulate: Simulate) -> None:
    """Not on who else takes part; another round, client or transform draws other noise."""

    def noise(round: int, clients: list[int], seed: int = 0) -> dict[int | None, torch.Tensor]:
        run = simulate("fedavg", play=False, seed=seed)
        drawn: dict[int | None, list[torch.Tensor]] = {client: [] for client in clients}

        def draw(payload: Payload, context: TransformContext) -> Payload:
            drawn[payload.client].append(context.noise.normal((5,)))
            return payload

        run.agreement.transforms = (draw, draw)
        list(run.executor.train(Instruction(round, clients, None)))
        return {client: torch.stack(numbers) for client, numbers in drawn.items()}

    alone, together = noise(1, [4]), noise(1, [7, 4, 2])
    assert torch.equal(alone[4], together[4])
    assert not torch.equal(alone[4][0], alone[4][1])
    for other in (noise(2, [4])[4], noise(1, [4], seed=1)[4], together[7]):
        assert not torch.equal(alone[4], other)


def test_the_ratios_are_in_the_record_and_the_summary(tmp_path: Path) -> None:
    noise = [{"name": "clip"}, {"name": "gaussian", "variance": 1e-4}]
    outcome = play(tmp_path / "run", "fedrep", **{"wire.transforms": noise})
    records = outcome.folder.records()
    layers = {"encoder.fc1", "encoder.fc2"}
    assert all({f"snr_db/{layer}" for layer in layers} <= record["metrics"].keys() for record in records[1:])
    assert all(0 <= record["metrics"]["clipped"] <= 1 for record in records[1:])
    assert outcome.summary is not None and outcome.summary["snr_db"].keys() == layers
    mean = sum(record["metrics"]["snr_db/encoder.fc1"] for record in records[1:]) / 3
    assert outcome.summary["snr_db"]["encoder.fc1"] == pytest.approx(mean)


def fedpriv(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def configured(*arguments: object) -> list[dict[str, Any]]:
    result = fedpriv("train", *arguments, "--dump-config", "--json")
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout.splitlines()[-1])["wire"]["transforms"])


def test_shorthands(tmp_path: Path) -> None:
    assert configured("--defense", "gaussian", "--variance", "1e-3") == [{"name": "gaussian", "variance": 1e-3}]
    assert configured("--defense", "laplace") == [{"name": "laplace"}]
    assert configured("--defense", "clip:norm=2", "--mask-layers", 2, "--defense", "quantise:bits=4") == [
        {"name": "mask", "last": 2},
        {"name": "clip", "norm": 2},
        {"name": "quantise", "bits": 4},
    ]
    file = tmp_path / "run.yaml"
    file.write_text("wire: {transforms: [{name: clip}]}\n")
    assert configured("--config", file, "--defense", "prune") == [{"name": "clip"}, {"name": "prune"}]
    assert configured("--config", file) == [{"name": "clip"}]
    assert configured("--defense", "prune", "--set", "wire.transforms=[]") == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--defense", "gaussian", "--variance", "-1"], "variance"),
        (["--variance", "1"], "--variance needs exactly one"),
        (["--defense", "gausian"], "did you mean 'gaussian'"),
        (["--defense", "prune:fracton=1"], "did you mean 'fraction'"),
        (["--defense", "prune:0.1"], "expected key=value"),
        (["--mask-layers", "0"], "masks nothing"),
        (["--mask-layers", "-1"], "last"),
        (["--mask-layers", "99"], "the net has"),
        (["--defense", "gaussian", "--defense", "clip"], "put clip"),
    ],
)
def test_bad_input_is_a_line_and_exit_code_2(tmp_path: Path, arguments: list[str], error: str) -> None:
    result = fedpriv("train", *flags("fedavg"), *arguments, "--runs-dir", tmp_path / "runs")
    assert result.exit_code == 2 and error in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_the_list_of_defences() -> None:
    result = fedpriv("defenses", "--json")
    listed = {entry["name"]: entry for entry in json.loads(result.stdout.splitlines()[-1])["defenses"]}
    assert {"mask", "clip", "gaussian", "laplace", "prune", "quantise", "cast"} <= listed.keys()
    options = {option["name"]: option for option in listed["gaussian"]["options"]}
    assert options["variance"]["default"] == 1e-3 and options["variance"]["description"]
    assert all(entry["about"] for entry in listed.values())
