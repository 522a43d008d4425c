"""What a client's own file requires of every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.flower.paths import make, read_client
from fedpriv.errors import FedprivError, UsageError
from fedpriv.storage.run_folder import RunFolder
from tests.deploy.apart import client_nodes, play_apart
from tests.deploy.loopback import Loopback
from tests.simulation.small import config

PRIVATE = {"privacy.level": "sample", "privacy.target_epsilon": 8.0}
VALIDATION = {"eval.split": "validation", "data.validation_fraction": 0.2}


@pytest.mark.parametrize(
    ("requires", "method", "settings", "lacking"),
    [
        ({}, "fedavg", {}, ""),
        ({"epsilon": 8}, "fedavg", {}, "a privacy.target_epsilon of at most 8 at a privacy.delta of at most 1e-05"),
        ({"epsilon": 8}, "fedavg", {"privacy.level": "client", "privacy.target_epsilon": 1.0}, "privacy.level sample"),
        ({"epsilon": 8}, "fedavg", {"privacy.level": "sample", "privacy.noise": 5.0}, "privacy.target_epsilon of at most 8"),
        ({"epsilon": 7.9}, "fedavg", PRIVATE, "at most 7.9"),
        ({"epsilon": 8}, "fedavg", {**PRIVATE, "privacy.delta": 1e-3}, "privacy.delta of at most 1e-05"),
        ({"epsilon": 8, "delta": 1e-3}, "fedavg", {**PRIVATE, "privacy.delta": 1e-3}, ""),
        ({"epsilon": 8}, "fedavg", PRIVATE, ""),
        ({"epsilon": 8}, "fedavg", {**PRIVATE, "privacy.clipping": "ghost"}, "privacy.clipping per_sample"),
        ({}, "fedavg", {**PRIVATE, "privacy.clipping": "ghost"}, ""),
        ({"epsilon": 8}, "fedavg", {**PRIVATE, "data.validation_fraction": 0.2}, ""),
        ({"epsilon": 8}, "fedavg", {**PRIVATE, **VALIDATION}, "eval.split test"),
        ({}, "fedavg", VALIDATION, ""),
        ({"secure_aggregation": True}, "fedavg", {}, "wire.secure_aggregation"),
        ({"secure_aggregation": True}, "fedavg", {"wire.secure_aggregation": True}, ""),
        ({"secure_aggregation": True}, "fedavg", {"wire.secure_aggregation": True, **VALIDATION}, "no secure aggregation covers"),
        ({"secure_aggregation": True, "tests": False}, "fedavg", {"wire.secure_aggregation": True, **VALIDATION}, ""),
        ({"methods": ["fedavg", "fedrep"]}, "mpfedcon", {}, "one of these methods: fedavg, fedrep"),
        ({"methods": ["fedavg", "fedrep"]}, "fedrep", {}, ""),
        (
            {"methods": ["fedavg"]},
            "fedavg",
            {"objective": "scaffold", "aggregation": "scaffold"},
            "its own objective and aggregation",
        ),
        ({"methods": ["fedrep"]}, "fedrep", {"aggregation": "l-dawa"}, "its own objective and aggregation"),
    ],
)
def test_what_a_run_lacks(requires: dict[str, Any], method: str, settings: dict[str, Any], lacking: str) -> None:
    try:
        Requires(**requires).check(config(method, **settings))
        message = ""
    except UsageError as error:
        message = str(error)
    assert bool(message) == bool(lacking) and lacking in message
    assert not message or message.startswith("this client's own file requires ")


def test_an_unknown_requirement_is_refused() -> None:
    with pytest.raises(ValidationError):
        Requires(level="sample")  # type: ignore[call-arg]


def test_requirements_are_checked_before_data_are_loaded(tmp_path: Path) -> None:
    strict = client_nodes(tmp_path / "clients", config("fedavg"))
    strict[1].setups.requires = Requires(methods=("fedrep",))
    with pytest.raises(FedprivError, match=r"client 1 cannot take part: this client's own file requires one of .* fedrep"):
        play_apart(tmp_path / "run", "fedavg", grid=Loopback(strict))
    assert strict[1].data.loaded is None


def test_new_requirements_hold_for_runs_that_were_agreed_on(tmp_path: Path) -> None:
    """The client is started again, with another file."""
    play_apart(tmp_path / "run", "fedavg", **{"train.rounds": 1})
    again = client_nodes(tmp_path / "run-clients", config("fedavg"))[1]
    assert again._run("run").name == "run"
    strict = client_nodes(tmp_path / "run-clients", config("fedavg"))[1]
    strict.setups.requires = Requires(secure_aggregation=True)
    with pytest.raises(UsageError, match=r"requires wire\.secure_aggregation"):
        strict._run("run")


@pytest.mark.parametrize(
    ("required", "settings", "covers"),
    [
        (Requires(epsilon=8), PRIVATE, "no epsilon covers"),
        (Requires(secure_aggregation=True), {"wire.secure_aggregation": True}, "no secure aggregation covers"),
    ],
)
def test_accuracies_after_fine_tuning_are_not_covered(
    tmp_path: Path, required: Requires, settings: dict[str, Any], covers: str
) -> None:
    strict = client_nodes(tmp_path / "clients", config("fedavg-ft", **settings))
    strict[1].setups.requires = required
    with pytest.raises(FedprivError, match=rf"file of client 1 requires .* {covers} fine-tuning before tests"):
        play_apart(tmp_path / "run", "fedavg-ft", grid=Loopback(strict), **settings)


def test_a_clip_so_small_that_norms_round_to_zero_is_refused() -> None:
    with pytest.raises(UsageError, match=r"privacy\.clip"):
        config("fedavg", **PRIVATE, **{"privacy.clip": 1e-30})


def test_requirements_are_read_from_the_clients_file(tmp_path: Path) -> None:
    paths = make(tmp_path / "d", 1, "server.example.org")
    file = paths.client_file(0)
    assert read_client(file).requires == Requires()
    file.write_text(file.read_text().replace("epsilon: null", "epsilon: 4").replace("methods: null", "methods: [fedavg]"))
    assert read_client(file).requires == Requires(epsilon=4, methods=("fedavg",))


# --- tests, by whose accuracies a server that lies reads samples ---------------------------------------------------------


def test_requires_tests_false_prevents_tests(tmp_path: Path) -> None:
    of = client_nodes(tmp_path / "clients", config("fedavg"))
    of[1].setups.requires = Requires(tests=False)
    warnings: list[str] = []
    folder = RunFolder.open(play_apart(tmp_path / "run", "fedavg", warnings, Loopback(of), **{"train.rounds": 2}))
    why = "its own file allows no tests (requires.tests)"
    for record in folder.records()[1:]:
        assert record["untested"] == [{"client": 1, "reason": why}] and "missing" not in record
        assert [accuracy is None for accuracy in record["per_client"]["accuracy"]] == [client == 1 for client in of]
    assert warnings == [f"round 1: client 1 is not tested: {why}"]


def test_a_run_without_any_tests_continues(tmp_path: Path) -> None:
    of = client_nodes(tmp_path / "clients", config("fedavg"))
    for node in of.values():
        node.setups.requires = Requires(tests=False)
    folder = RunFolder.open(play_apart(tmp_path / "run", "fedavg", grid=Loopback(of), **{"train.rounds": 2}))
    summary = folder.summary()
    assert summary is not None and summary["rounds"] == 2 and summary["accuracy"] is None


@pytest.mark.parametrize("limit", [9, 10])
def test_few_own_samples_are_not_tested(tmp_path: Path, limit: int) -> None:
    asked = config("fedavg", **{"data.test_limit": limit}).data
    own, public = Source(str(tmp_path)), Source("digits")
    assert public.of_run(asked).test_limit == limit
    if limit == 10:
        assert own.of_run(asked).test_limit == limit
        return
    with pytest.raises(UsageError, match=r"data\.test_limit 9: .* at least 10"):
        own.of_run(asked)
