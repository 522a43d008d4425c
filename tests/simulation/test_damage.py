"""A damaged checkpoint is noticed, named and replaced by the one before; what cannot be resumed says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from tests.simulation.small import computed, damage, facts

Fedpriv = Callable[..., Result]


def newest(folder: Path, what: str) -> Path:
    """The newest server, round or client file."""
    return max(folder.glob(f"c*/{what}-*"), key=lambda path: path.stem.rpartition("-")[2])


@pytest.mark.parametrize(
    ("what", "how"),
    [(what, how) for what in ("server", "round", "client") for how in ("torn", "flipped", "removed", "empty")]
)  # fmt: skip
def test_the_checkpoint_before_a_damaged_one_is_used(halfway: Path, whole: Path, fedpriv: Fedpriv, what: str, how: str) -> None:
    broken = newest(halfway, what)
    assert broken.stem.endswith("000003")
    damage(broken, how)
    result = fedpriv("resume", halfway)
    assert result.exit_code == 0, result.output
    if (what, how) != ("round", "removed"):  # a round file that is not there is a round that was not committed
        assert broken.name in result.stderr
        assert "damaged" in result.stderr and "round 2" in result.stderr
    assert computed(halfway) == computed(whole)


def test_a_damaged_older_checkpoint_is_named_and_not_needed(halfway: Path, whole: Path, fedpriv: Fedpriv) -> None:
    damage(halfway / "checkpoints" / "server-000002.safetensors", "torn")
    result = fedpriv("resume", halfway)
    assert result.exit_code == 0
    assert "server-000002.safetensors" in result.stderr and "checkpoint of round 3" in result.stderr
    assert computed(halfway) == computed(whole)


def test_all_checkpoints_damaged_is_an_error_that_names_them(halfway: Path, fedpriv: Fedpriv) -> None:
    for path in (halfway / "checkpoints").glob("round-*.json"):
        damage(path, "flipped")
    before = {path: path.read_bytes() for path in halfway.rglob("*") if path.is_file()}
    result = fedpriv("resume", halfway)
    assert result.exit_code == 1
    assert "round-000002.json" in result.stderr and "round-000003.json" in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2
    assert {path: path.read_bytes() for path in halfway.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("train", "lr", 0.02), ("method", "mu", 1.0), (None, "seed", 1), ("data", "clients", 20), (None, "threads", 2)]
)  # fmt: skip
def test_a_changed_config_is_refused(halfway: Path, fedpriv: Fedpriv, section: str | None, key: str, value: object) -> None:
    path = halfway / "config.yaml"
    config = yaml.safe_load(path.read_text())
    (config[section] if section else config)[key] = value
    path.write_text(yaml.safe_dump(config))
    status = facts(halfway)["status"]
    result = fedpriv("resume", halfway)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert "config" in result.stderr or "partition" in result.stderr
    assert facts(halfway)["status"] == status


def test_where_it_is_stored_and_tracked_is_no_part_of_the_config(halfway: Path, whole: Path, fedpriv: Fedpriv) -> None:
    moved = halfway.rename(halfway.with_name("moved"))
    config = yaml.safe_load((moved / "config.yaml").read_text())
    config["tracking"]["experiment"] = "other"
    (moved / "config.yaml").write_text(yaml.safe_dump(config))
    assert fedpriv("resume", moved).exit_code == 0
    assert computed(moved) == computed(whole)


@pytest.mark.parametrize("content", ["- a list", "train: {roundz: 3}", "a: [1", "\x00"])
def test_a_broken_config_is_refused(halfway: Path, fedpriv: Fedpriv, content: str) -> None:
    (halfway / "config.yaml").write_text(content)
    result = fedpriv("resume", halfway)
    assert result.exit_code == 2
    assert "config.yaml" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_a_broken_run_json_is_named(halfway: Path, fedpriv: Fedpriv) -> None:
    (halfway / "run.json").write_text("{")
    result = fedpriv("resume", halfway)
    assert result.exit_code == 2
    assert "run.json" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_a_finished_run_is_not_resumed(whole: Path, fedpriv: Fedpriv) -> None:
    before = computed(whole)
    result = fedpriv("resume", whole)
    assert result.exit_code == 2
    assert "finished" in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert computed(whole) == before


def test_nothing_is_not_resumed(tmp_path: Path, fedpriv: Fedpriv) -> None:
    (tmp_path / "empty").mkdir()
    for nothing in ("no-such-run", tmp_path / "empty", tmp_path / "nowhere"):
        result = fedpriv("resume", nothing, "--runs-dir", tmp_path)
        assert result.exit_code == 2, result.output
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_torn_last_line_of_metrics_is_no_record(halfway: Path, whole: Path, fedpriv: Fedpriv) -> None:
    metrics = halfway / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-9])
    assert fedpriv("resume", halfway).exit_code == 0
    assert computed(halfway) == computed(whole)
    assert [json.loads(line)["round"] for line in metrics.read_text().splitlines()] == [0, 1, 2, 3, 4, 5]
