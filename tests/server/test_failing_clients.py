"""Clients that fail, or answer after the deadline: the run is the one of those who answered, and what crossed is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedpriv
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.files import load_tensors
from fedpriv.server.answers.failing import failures
from fedpriv.server.sampling import participants
from fedpriv.simulation import run
from fedpriv.simulation.run_setup import plans
from fedpriv.simulation.setup import build
from tests.marks import federated, slow_but
from tests.simulation.small import FEW_STEPS, SILENT, computed, config, play, resume

SETTING: dict[str, Any] = {
    **FEW_STEPS, "train.participation": 1.0, "train.rounds": 3, "wire.keep_payloads": "all", "eval.last": 3,
}  # fmt: skip
FAILING: dict[str, Any] = {"train.dropout": 0.2, "train.late": 0.25}


def who(method: str, **overrides: Any) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Of each round, who answered in time, who dropped out, and who was late."""
    agreement = build(config(method, **overrides)).agreement
    answered, dropped, late = [], [], []
    for round in range(1, agreement.config.train.rounds + 1):
        everyone = participants(agreement, round)
        failing = failures(agreement.config, round, everyone)
        dropped.append(list(failing.dropped))
        late.append(list(failing.late))
        answered.append([client for client in everyone if client not in {*failing.dropped, *failing.late}])
    return answered, dropped, late


def states(folder: Path) -> dict[str, str]:
    """Checksums of all that server and clients have at the end."""
    return {
        name: digest
        for name, digest in computed(folder).items()
        if name.startswith(("checkpoints/server", "clients/client", "weights/"))
    }


def as_if_scheduled(folder: Path, method: str, **overrides: Any) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Play a run with failing clients, and one of those who answered; assert that they end with the same bits."""
    answered, dropped, late = who(method, **overrides, **FAILING)
    assert all(answered) and any(dropped) and any(late), "choose another seed"
    play(folder / "failing", method, **overrides, **FAILING)
    schedule = {"train.selection": "schedule", "train.schedule": answered}
    play(folder / "scheduled", method, **{**overrides, **schedule})
    assert states(folder / "failing") == states(folder / "scheduled")
    assert len(states(folder / "failing")) > 2
    return answered, dropped, late


def test_the_draws_have_their_rates_and_depend_on_nothing_else() -> None:
    settings = load_config(None, {"train.dropout": 0.3, "train.late": 0.5})
    everyone = range(4000)
    drawn = failures(settings, 1, everyone)
    dropped, late = set(drawn.dropped), set(drawn.late)
    assert not dropped & late
    assert len(dropped) / 4000 == pytest.approx(0.3, abs=0.03)  # four standard deviations
    assert len(late) / (4000 - len(dropped)) == pytest.approx(0.5, abs=0.04)
    assert set(failures(settings, 1, range(100)).dropped) == {client for client in dropped if client < 100}
    assert set(failures(settings, 2, everyone).dropped) != dropped
    only_late = failures(load_config(None, {"train.late": 0.5}), 1, everyone)
    assert late == set(only_late.late) - dropped
    assert failures(load_config(None, {}), 1, everyone).reasons == {}


@pytest.mark.parametrize("method", slow_but(["fedavg", "mpfedcon"], federated()))
def test_a_run_is_that_of_the_clients_who_answered(tmp_path: Path, method: str) -> None:
    as_if_scheduled(tmp_path, method, **SETTING)


@pytest.mark.parametrize(
    "executor",
    [{"executor.name": "vectorized", "executor.group_size": 2}, {"executor.workers": 2}],
    ids=["vectorized", "workers"],
)
@pytest.mark.slow
def test_in_groups_and_processes(tmp_path: Path, executor: dict[str, Any]) -> None:
    as_if_scheduled(tmp_path, "scaffold", **{**SETTING, **executor})
    if "executor.workers" in executor:
        play(tmp_path / "sequential", "scaffold", **SETTING, **FAILING)
        assert states(tmp_path / "sequential") == states(tmp_path / "failing")


def test_what_crossed_is_counted_kept_and_recorded(tmp_path: Path) -> None:
    answered, dropped, late = as_if_scheduled(tmp_path, "fedper", **SETTING)
    failing, scheduled = fedpriv.load(tmp_path / "failing"), fedpriv.load(tmp_path / "scheduled")
    for round, record in enumerate(failing.records[1:], 1):
        absent, other = {*dropped[round - 1], *late[round - 1]}, scheduled.records[round]["metrics"]
        metrics, clients = record["metrics"], sorted({*answered[round - 1], *late[round - 1]})
        assert [client for kept, client in failing.payloads if kept == round] == clients
        files = (tmp_path / f"failing/payloads/round-{round:04d}").glob("client-*")
        assert sum(file.stat().st_size for file in files) <= metrics["bytes_up"]
        down = failing.download(round)
        assert down is not None
        assert metrics["bytes_down"] == 6 * down.nbytes == other["bytes_down"] // len(answered[round - 1]) * 6
        each = other["bytes_up"] / len(answered[round - 1])  # all uploads and reports are equally long but for some digits
        assert metrics["bytes_up"] == pytest.approx(each * len(clients), rel=0.001)
        assert metrics["participants"] == 6
        assert metrics.get("missing", 0) == len(absent)
        assert metrics["accuracy"] == other["accuracy"] and metrics["train_loss"] == other["train_loss"]
        assert record.get("without_effect", []) == sorted(absent)
        told = {entry["client"]: entry["reason"] for entry in record.get("missing", ())}
        assert told == {
            **dict.fromkeys(dropped[round - 1], "it does not answer (train.dropout)"),
            **dict.fromkeys(late[round - 1], "its answer came after the deadline (train.late)"),
        }
    assert failing.summary is not None
    assert failing.summary["answers_missing"] == sum(map(len, dropped)) + sum(map(len, late))


@pytest.mark.slow
def test_a_late_upload_is_what_the_client_would_have_sent_in_time(tmp_path: Path) -> None:
    _, _, late = who("fedavg", **SETTING, **{"train.late": 0.3})
    round = next(round for round, clients in enumerate(late, 1) if clients)
    assert round == 1, "choose another seed"
    play(tmp_path / "late", "fedavg", **SETTING, **{"train.late": 0.3})
    play(tmp_path / "all", "fedavg", **SETTING)
    for client in late[0]:
        sent, expected = (fedpriv.load(tmp_path / name).payload(1, client) for name in ("late", "all"))
        assert sent.data == expected.data


@pytest.mark.slow
def test_a_run_with_failing_clients_resumes_to_the_bit(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Killed

    settings = {**SETTING, **FAILING}
    play(tmp_path / "whole", "mpfedcon", **settings)
    with pytest.raises(Killed):
        run.start(config("mpfedcon", **settings, run_dir=str(tmp_path / "cut")), tmp_path, SILENT[0], kill, SILENT[2])
    resume(tmp_path / "cut")
    assert computed(tmp_path / "cut") == computed(tmp_path / "whole")


def test_with_too_few_answers_the_model_stays(tmp_path: Path) -> None:
    play(tmp_path / "run", "fedavg", **SETTING, **{"train.late": 0.5, "train.min_uploads": 6})
    records = fedpriv.load(tmp_path / "run").records
    assert [record["metrics"].get("too_few_uploads") for record in records] == [None, 1, 1, 1]
    first, last = (load_tensors(path) for path in sorted((tmp_path / "run/checkpoints").glob("server-*")))
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize(
    "executor",
    [{"executor.name": "sequential"}, {"executor.name": "vectorized"}, {"executor.workers": 2}],
    ids=["sequential", "vectorized", "workers"],
)
def test_where_all_clients_drop_out_the_model_stays(tmp_path: Path, executor: dict[str, Any]) -> None:
    play(tmp_path / "run", "fedavg", **{**SETTING, **executor, "train.rounds": 2, "train.dropout": 1 - 1e-9})
    run = fedpriv.load(tmp_path / "run")
    assert run.status == "finished"
    assert [len(record.get("missing", ())) for record in run.records] == [0, 6, 6]
    first, last = (load_tensors(path) for path in sorted((tmp_path / "run/checkpoints").glob("server-*"))[-2:])
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.slow
def test_a_secure_sum_is_of_those_who_answered(tmp_path: Path) -> None:
    masked = {**SETTING, "wire.secure_aggregation": True}
    answered, *_ = who("fedavg", **masked, **FAILING)
    assert min(map(len, answered)) >= 3, "choose another seed"
    as_if_scheduled(tmp_path, "fedavg", **masked)
    for round, record in enumerate(fedpriv.load(tmp_path / "failing").records[1:], 1):
        assert record["summed"] == answered[round - 1]
        hidden = (tmp_path / f"failing/payloads/round-{round:04d}").glob("hidden-*")
        assert sorted(int(file.stem.removeprefix("hidden-")) for file in hidden) == answered[round - 1]


@pytest.mark.slow
def test_sample_level_privacy_charges_late_clients_and_no_dropped_ones(tmp_path: Path) -> None:
    private = {**SETTING, "privacy.level": "sample", "privacy.noise": 1.0, "train.momentum": 0.0}
    answered, _, late = as_if_scheduled(tmp_path, "fedavg", **private)
    spent = json.loads(max((tmp_path / "failing/checkpoints").glob("round-*.json")).read_text(encoding="utf-8"))
    accounts = spent["progress"]["privacy"]
    trained = [{*now, *too_late} for now, too_late in zip(answered, late, strict=True)]
    steps = {client: accounts.get(str(client), [[0, 0, 0]])[0][2] for client in range(6)}
    federation = build(config("fedavg", **private, **FAILING))
    parts = federation.agreement, federation.data.sizes, federation.data.partition, range(1, 4)
    for client in range(6):
        (planned,) = plans(*parts, [client], spent=True)
        assert sum(number for _, number in planned) == steps[client]
        rounds = sum(client in clients for clients in trained)
        assert steps[client] == rounds * (steps[client] // max(1, rounds))
        booked = tmp_path / f"failing/clients/spent-{client:06d}.json"
        own = json.loads(booked.read_text(encoding="utf-8")) if booked.exists() else {}
        assert {int(round) for round in own if round.isdigit()} == {r for r, now in enumerate(trained, 1) if client in now}
        assert sum(int(charge[1]) for key, charges in own.items() if key.isdigit() for charge in charges) == steps[client]


@pytest.mark.slow
def test_client_level_privacy_counts_on_no_failure(tmp_path: Path) -> None:
    """Who fails is not the mechanism's draw, so the sampling rate stays the participation, and epsilon what it is without."""
    private = {**SETTING, "train.participation": 0.5, "privacy.level": "client", "privacy.noise": 1.0}
    epsilons = []
    for name, more in (("none", {}), ("failing", FAILING)):
        summary = play(tmp_path / name, "fedavg", **private, **more).summary
        assert summary is not None
        epsilons.append(summary["privacy"]["epsilon"])
    assert epsilons[0] == epsilons[1] > 0


@pytest.mark.parametrize("key", ["train.dropout", "train.late"])
def test_where_no_client_can_fail_it_is_an_error(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match="trains in one place, and no client can fail"):
        play(tmp_path / "run", "pooled", **{**SETTING, key: 0.5})
    from tests.deploy.apart import play_apart

    with pytest.raises(UsageError, match="failing clients are simulated"):
        play_apart(tmp_path / "apart", "fedavg", **FEW_STEPS, **{key: 0.5})
    with pytest.raises(UsageError, match=rf"{key} = 1\.0: input should be less than 1"):
        load_config(None, {key: 1.0})
