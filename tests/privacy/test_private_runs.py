"""Whole private runs: the epsilon is the one the oracle gets from who took part, and survives a kill."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opacus.accountants import RDPAccountant

from fedpriv.cli import main
from fedpriv.config import load_config
from fedpriv.config.wire import PrivacyConfig
from fedpriv.errors import UsageError
from fedpriv.privacy.ledger import Ledger
from fedpriv.simulation import run
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.wire import Sealed
from tests.marks import slow_but
from tests.simulation.conftest import Stopped
from tests.simulation.small import SILENT, computed, config, flags, play, resume, settings, simulation

NOISE = 3.0  # the less, the longer RDP takes
CLIENT = {"privacy.level": "client", "privacy.noise": NOISE, "privacy.clip": 0.5}
SAMPLE = {"privacy.level": "sample", "privacy.noise": NOISE, "data.clients": 5, "train.participation": 0.4}


def oracle(*histories: tuple[float, float, int]) -> float:
    engine = RDPAccountant()
    for noise, rate, steps in histories:
        for _ in range(steps):
            engine.step(noise_multiplier=noise, sample_rate=rate)
    return float(engine.get_epsilon(1e-5))


def test_client_level_spends_a_round_for_everybody(tmp_path: Path) -> None:
    outcome = play(tmp_path / "run", "fedavg", **CLIENT)
    records = outcome.folder.records()[1:]
    assert [r["metrics"]["epsilon"] for r in records] == pytest.approx([oracle((NOISE, 0.3, t)) for t in (1, 2, 3)])
    assert outcome.summary is not None
    statement = outcome.summary["privacy"]
    assert statement["epsilon"] == records[-1]["metrics"]["epsilon"]
    assert statement["epsilon_per_client"] == [statement["epsilon"]] * 10
    assert "trusted" in statement["holds_if"] and statement["epsilon_prv"] <= statement["epsilon"]


@pytest.mark.slow
def test_sample_level_spends_what_each_client_trained(tmp_path: Path) -> None:
    """fedrep has two phases a local update: both look at the data, so both count, on the accounts of the participants."""
    played, uploads = played_with_uploads(tmp_path / "run", "fedrep", **SAMPLE)
    updates, statement = Counter(upload.client for upload in uploads), played.statement()
    for client in range(5):
        n = played.federation.data.size(client)
        steps = updates[client] * 2 * math.ceil(n / 20)
        expected = oracle((NOISE, min(1.0, 20 / n), steps)) if steps else 0.0
        assert statement["epsilon_per_client"][client] == pytest.approx(expected)
    assert statement["epsilon"] == max(statement["epsilon_per_client"]) > 0


def played_with_uploads(folder: Path, method: str, **overrides: Any) -> tuple[Simulation, list[Sealed]]:
    played, uploads = simulation(folder, method, **overrides), list[Sealed]()
    played.taps.append(lambda way, sealed: uploads.append(sealed) if way == "up" else None)
    played.start()
    list(played.rounds())
    return played, uploads


@pytest.mark.parametrize(
    ("method", "private"), slow_but(["fedavg"], [("fedavg", CLIENT), ("fedrep", SAMPLE)]), ids=["client", "sample"]
)
def test_the_ledger_survives_a_kill_to_the_bit(tmp_path: Path, method: str, private: dict[str, Any]) -> None:
    play(tmp_path / "whole", method, **private)

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Stopped

    halfway = tmp_path / "halfway"
    with pytest.raises(Stopped):
        run.start(config(method, **private, run_dir=str(halfway)), tmp_path, SILENT[0], stop, SILENT[2])
    resume(halfway)
    whole, again = computed(tmp_path / "whole"), computed(halfway)
    assert whole["progress"]["privacy"] and again == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "private"),
    slow_but(["fedavg"], [("fedavg", {"privacy.level": "client"}), ("fedper", {"privacy.level": "sample"})]),
    ids=["client", "sample"],
)
def test_a_target_is_reached_and_not_passed(tmp_path: Path, method: str, private: dict[str, Any]) -> None:
    outcome = play(tmp_path / "run", method, **private, **{"privacy.target_epsilon": 0.5, "privacy.clip": 0.05})
    assert outcome.summary is not None
    statement = outcome.summary["privacy"]
    assert 0.488 < statement["epsilon"] <= 0.5
    stored = load_config(outcome.folder.config_file).privacy
    assert (stored.noise, stored.target_epsilon) == (statement["noise"], 0.5)
    build(load_config(outcome.folder.config_file))  # as a resumed run does


def test_client_level_uploads_are_clipped_and_unweighted(tmp_path: Path) -> None:
    _, seen = played_with_uploads(tmp_path / "run", "fedavg", **CLIENT, **{"wire.transforms": [{"name": "quantise"}]})
    assert seen and all(message.transforms == ("clip(0.5)", "quantise(8)") for message in seen)
    assert all(message.num_examples is None for message in seen)


def test_mpfedcon_with_fixed_anchors_and_no_centres_sent(tmp_path: Path) -> None:
    mask = {"wire.transforms": [{"name": "mask", "names": ["statistic.*"]}], "method.center_init": "random_unit"}
    outcome = play(tmp_path / "run", "mpfedcon", **SAMPLE, **mask, **{"train.rounds": 1})
    assert outcome.summary is not None and outcome.summary["privacy"]["epsilon"] > 0


@pytest.mark.parametrize(
    ("method", "overrides", "error"),
    [
        ("mpfedcon", SAMPLE, "class centres"),
        ("mpfedcon", CLIENT, "method mpfedcon has its own; use fedavg"),
        ("fedavg", {**CLIENT, "aggregation.name": "fedopt"}, "aggregation fedopt has its own; use mean"),
        ("local", SAMPLE, "sends nothing"),
        ("fedavg", {**SAMPLE, "model.name": "resnet18"}, "BatchNorm.*GroupNorm"),
        ("fedavg", {**CLIENT, "privacy.delta": 0.1}, "below 0.1"),
        ("fedavg", {"privacy.level": "client"}, "--noise"),
        ("fedavg", {"privacy.noise": 1.0}, "--dp client"),
        ("fedavg", {**CLIENT, "privacy.noise": 0}, "privacy.noise"),
        ("fedavg", {**CLIENT, "privacy.clip": -1}, "privacy.clip"),
        ("fedavg", {**CLIENT, "privacy.target_epsilon": 0.1}, "leave the noise out"),
        ("fedavg", {**SAMPLE, "privacy.delta": 1e-3, "data.limit": None}, "1438 training samples.*below 0.000695"),
        ("fedavg", {**SAMPLE, "train.min_batch": 2}, "leave train.min_batch out"),
        ("fedavg", {"privacy.level": "server", "privacy.noise": 1}, "privacy.level"),
    ],
)
def test_what_would_have_a_wrong_epsilon_is_refused(method: str, overrides: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        build(load_config(None, settings(method, **overrides)))


def test_on_the_command_line(tmp_path: Path) -> None:
    arguments = ["train", *flags("fedavg", **{"train.rounds": 1}), "--dp", "client", "--noise", "1.0", "--clip", "1.0"]
    result = CliRunner().invoke(main, [*arguments, "--delta", "1e-5", "--runs-dir", str(tmp_path / "runs")])
    assert result.exit_code == 0, result.output
    assert "epsilon" in result.stderr
    for part in ("client-level DP", "at delta 1e-05", "neighbours", "holds if", "not covered"):
        assert part in result.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["privacy"]["noise"] == 1.0


@pytest.mark.parametrize(("clipping", "named"), [("per_sample", False), ("ghost", True)])
def test_statement_has_the_condition_of_ghost_clipping(clipping: str, named: bool) -> None:
    privacy = PrivacyConfig(level="sample", noise=1.0, clipping=clipping)  # type: ignore[arg-type]
    condition = Ledger(privacy, {}, [(0,), (1,)]).statement(2, 1.0)["holds_if"]
    assert ("malicious server" in condition) == named
