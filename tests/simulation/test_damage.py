"""A damaged checkpoint is noticed, named and replaced by the one before; what cannot be resumed says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
import yaml
from click.testing import Result

from fedpriv.data.dataset import Dataset
from fedpriv.storage.run_folder import RunFolder
from tests.marks import slow_but
from tests.simulation.small import computed, damage, facts, play

Fedpriv = Callable[..., Result]


def newest(folder: Path, what: str) -> Path:
    """The newest server, round or client file."""
    return max(folder.glob(f"c*/{what}-*"), key=lambda path: path.stem.rpartition("-")[2])


@pytest.mark.parametrize(
    ("what", "how"),
    slow_but(
        ["client"], [(what, how) for what in ("server", "round", "client") for how in ("torn", "flipped", "removed", "empty")]
    ),
)
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


@pytest.mark.parametrize("progress", [[], {"round": "3"}, {"total_bytes_up": "much"}, {"another": 1}, {"privacy": {"0": 1}}])
def test_a_checkpoint_of_something_else_is_not_used(halfway: Path, whole: Path, fedpriv: Fedpriv, progress: Any) -> None:
    """Without a checksum, as somebody changed it."""
    path = newest(halfway, "round")
    stored = json.loads(path.read_text())
    changed = {**stored["progress"], **progress} if progress else progress
    path.write_text(json.dumps({"config": stored["config"], "progress": changed}))
    result = fedpriv("resume", halfway)
    assert result.exit_code == 0 and f"{path.name} is damaged: not a checkpoint" in " ".join(result.stderr.split()), result.output
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


@pytest.mark.parametrize("what", ["the folder", "all files"])
def test_a_run_whose_checkpoints_are_gone_does_not_start_over(halfway: Path, fedpriv: Fedpriv, what: str) -> None:
    shutil.rmtree(halfway / "checkpoints")
    if what == "all files":
        (halfway / "checkpoints").mkdir()
    before = {path: path.read_bytes() for path in halfway.rglob("*") if path.is_file()}
    result = fedpriv("resume", halfway)
    assert result.exit_code == 1
    assert "checkpoints holds no checkpoint, though the run has done 3 rounds" in result.stderr
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
    assert result.exit_code == 1
    assert "run.json is damaged" in result.stderr and len(result.stderr.strip().splitlines()) == 1


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


@pytest.mark.parametrize("how", ["torn", "flipped", "removed", "empty"])
def test_a_damaged_partition_is_written_again(halfway: Path, whole: Path, fedpriv: Fedpriv, how: str) -> None:
    """The config says what it was, and `run.json` that this is it."""
    damage(halfway / "partition.safetensors", how)
    result = fedpriv("resume", halfway)
    assert result.exit_code == 0, result.output
    assert "partition.safetensors" in result.stderr and "it is written again" in result.stderr
    assert computed(halfway) == computed(whole)


def test_so_it_is_in_a_run_that_is_finished(whole: Path, tmp_path: Path, fedpriv: Fedpriv) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    damage(folder / "partition.safetensors", "removed")
    result = fedpriv("resume", folder)
    assert result.exit_code == 0 and "it is written again" in result.stderr, result.output
    assert computed(folder) == computed(whole)
    again = fedpriv("resume", folder)
    assert again.exit_code == 2 and "nothing to resume" in again.stderr


@pytest.mark.parametrize("how", ["torn", "flipped", "removed", "empty"])
@pytest.mark.parametrize("what", ["client", "report", "download", "SHA256SUMS"])
def test_a_damaged_message_is_named(halfway: Path, fedpriv: Fedpriv, what: str, how: str) -> None:
    broken = sorted(halfway.glob(f"payloads/round-0001/{what}*"))[0]
    damage(broken, how)
    result = fedpriv("resume", halfway)
    assert result.exit_code == 1, result.output
    assert broken.name in result.stderr and len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("file", ["partition.safetensors", "payloads/round-0001/client-*", "run.json", "config.yaml"])
@pytest.mark.parametrize("command", ["attack", "audit"])
def test_nothing_is_attacked_in_a_damaged_folder(
    whole: Path, tmp_path: Path, fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch, command: str, file: str
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    (broken,) = sorted(folder.glob(file))[:1]
    if broken.name == "config.yaml":
        broken.write_text(broken.read_text().replace("lr: 0.05", "lr: 0.04"))
    else:
        damage(broken, "flipped")
    for control in ("fedpriv.audit.report._text_controls", "fedpriv.attacks.lab.attempts.run_controls"):
        monkeypatch.setattr(control, lambda *_, **__: pytest.fail("a control was played"))
    result = fedpriv(*{"attack": ("attack", "analytic", "--run"), "audit": ("audit",)}[command], folder)
    assert result.exit_code in (1, 2), result.output
    assert broken.name in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_the_run_json_of_a_run_that_has_begun_must_be_there(halfway: Path, fedpriv: Fedpriv) -> None:
    """It says which data the run began with."""
    (halfway / "run.json").unlink()
    result = fedpriv("resume", halfway)
    assert result.exit_code == 1
    assert "run.json is missing" in result.stderr


def test_the_state_of_another_round_is_not_taken_for_this_ones(halfway: Path, whole: Path, fedpriv: Fedpriv) -> None:
    (older, newer) = sorted(halfway.glob("checkpoints/server-*"))
    newer.write_bytes(older.read_bytes())
    result = fedpriv("resume", halfway)
    assert result.exit_code == 0 and newer.name in result.stderr
    assert computed(halfway) == computed(whole)


def test_a_finished_run_has_a_summary(whole: Path, tmp_path: Path, fedpriv: Fedpriv) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    for how in ("flipped", "removed"):
        damage(folder / "summary.json", how)
        result = fedpriv("compare", folder)
        assert result.exit_code == 1 and "summary.json" in result.stderr, result.output


def test_what_a_client_spent_is_known_when_it_goes_on(tmp_path: Path, fedpriv: Fedpriv) -> None:
    private = {"privacy.level": "sample", "privacy.noise": 4.0, "privacy.clip": 1.0, "train.rounds": 1, "data.limit": 100}
    play(tmp_path / "run", "fedavg", **private)
    RunFolder(tmp_path / "run").update_facts(status="interrupted")
    (broken, *_) = sorted(tmp_path.glob("run/clients/spent-*"))
    damage(broken, "removed")
    result = fedpriv("resume", tmp_path / "run")
    assert result.exit_code == 1 and f"{broken.name} is missing" in result.stderr, result.output


def test_other_data_of_the_same_size_are_refused(tmp_path: Path, fedpriv: Fedpriv) -> None:
    """The same labels, hence the same partition; one pixel of one image is another."""
    for number in range(24):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.new("L", (8, 8), number * 9).save(path)
    data = {"data.name": str(tmp_path / "photos"), "data.clients": 2, "data.partition.name": "iid", "train.participation": 0.5}
    play(tmp_path / "run", "fedavg", **data, **{"train.rounds": 1})
    RunFolder(tmp_path / "run").update_facts(status="interrupted")
    image = PIL.Image.open(path)
    image.putpixel((3, 3), 1)
    image.save(path)
    for command in (("resume",), ("attack", "analytic", "--run")):
        result = fedpriv(*command, tmp_path / "run")
        assert result.exit_code == 2, result.output
        assert (
            "the data are not those the run began with (data " in result.stderr and len(result.stderr.strip().splitlines()) == 1
        )


def test_the_digest_of_samples_covers_labels_images_texts_and_classes() -> None:
    images, labels = (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.ones(2, 1, 2, 2, dtype=torch.uint8)), torch.arange(3)
    base = Dataset("a", labels, labels[:2], ("x", "y", "z"), "mlp", images, (("a", "b", "c"), ("d", "e")))
    others = [
        replace(base, train_labels=labels.flip(0)),
        replace(base, test_labels=labels[1:]),
        replace(base, classes=("x", "y", "w")),
        replace(base, images=(images[0] + 1, images[1])),
        replace(base, images=(images[0], images[1] * 2)),
        replace(base, images=(images[0].view(3, 1, 4, 1), images[1])),
        replace(base, images=None),
        replace(base, texts=(("a", "b", "c"), ("d", "f"))),
        replace(base, texts=(("a", "bc"), ("d", "e"))),
    ]
    assert len({dataset.hash for dataset in (base, *others)}) == 1 + len(others)
    assert replace(base, name="b", mean=(0.5,)).hash == base.hash
