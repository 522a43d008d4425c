"""Run folders from elsewhere: of another form, with links that lead out, with strange names. Refused before anything is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.testing import Result

from fedpriv.config import load_config
from fedpriv.simulation import run
from tests.marks import quick_first
from tests.simulation.small import renew_checksums

Fedpriv = Callable[..., Result]
Damage = Callable[[Path], None]
TINY = {
    "method.name": "fedavg",
    "data.clients": 4,
    "train.participation": 0.5,
    "train.rounds": 1,
    "train.local_epochs": 1,
    "train.local_steps": 2,
    "tracking.uri": "none",
}
AUDIT = ("audit", "--messages", 1, "--label-shadows", 0, "--membership-shadows", 0, "--singles", 1)
COMMANDS: dict[str, tuple[Any, ...]] = {
    "compare": ("compare",),
    "audit": AUDIT,
    "resume": ("resume",),
    "attack": ("attack", "analytic", "--run"),
    "probe": ("probe", "--fraction", 0.01),
    "sync": ("sync", "--tracking-uri", "none"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "good"
    config = load_config(None, {**TINY, "run_dir": str(folder)})
    run.start(config, folder.parent, lambda *_: None, lambda _: None, lambda _: None)
    return folder


@pytest.fixture
def folder(finished: Path, empty_folder: Path) -> Path:
    """A copy of a finished run, which tests may damage."""
    shutil.copytree(finished, empty_folder / "runs" / "good")
    return empty_folder / "runs" / "good"


def written(file: str, data: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(data)

    return damage


def changed(file: str, **values: Any) -> Damage:
    """``...`` takes a key away."""

    def damage(folder: Path) -> None:
        new = json.loads((folder / file).read_text()) | {"sha256": ...} | values
        (folder / file).write_text(json.dumps({key: value for key, value in new.items() if value is not ...}))

    return damage


def upload_of(folder: Path) -> Path:
    return sorted(folder.glob("payloads/round-0001/client-*.safetensors"))[0]


def resealed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Damage:
    def damage(folder: Path) -> None:
        path = upload_of(folder)
        with safetensors.safe_open(str(path), "pt") as opened:
            facts, tensors = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        path.write_bytes(safetensors.torch.save(change(tensors), facts))

    return damage


def recorded(**values: Any) -> Damage:
    record = {"round": 1, "time_ms": 1, "metrics": {"accuracy": 0.5}} | values
    return written("metrics.jsonl", json.dumps(record).encode() + b"\n")


DEEP = b"[" * 100_000
FORMS = {
    "run.json is a list": (written("run.json", b"[]"), "run.json is damaged: not a JSON mapping"),
    "run.json is a number": (written("run.json", b"3"), "run.json is damaged: not a JSON mapping"),
    "run.json is empty": (written("run.json", b"{}"), "run_id: field required"),
    "run.json is latin": (written("run.json", b'{"run_id": "\xe9"}'), "run.json is damaged"),
    "run.json is deep": (written("run.json", DEEP), "run.json is damaged"),
    "run_id is a list": (changed("run.json", run_id=[1]), "run_id: input should be a valid string"),
    "no run_id": (changed("run.json", run_id=...), "run_id: field required"),
    "tracking is a list": (changed("run.json", tracking=[1]), "tracking: input should be"),
    "status is a number": (changed("run.json", status=5), "status: input should be 'running'"),
    "status is unknown": (changed("run.json", status="[/red]"), "status: input should be 'running'"),
    "seed is a mapping": (changed("run.json", seed={}), "seed: input should be a valid integer"),
    "method is a list": (changed("run.json", method=[1]), "method: input should be a valid string"),
    "hash is a number": (changed("run.json", partition_hash=3), "partition_hash: input should be a valid string"),
    "created_ms is a text": (changed("run.json", created_ms="x"), "created_ms: input should be a valid integer"),
    "versions is a number": (changed("run.json", versions=3), "versions: input should be a valid dictionary"),
    "summary is a list": (written("summary.json", b"[]"), "summary.json is damaged: not a JSON mapping"),
    "summary is null": (written("summary.json", b"null"), "summary.json is damaged: not a JSON mapping"),
    "summary is empty": (written("summary.json", b"{}"), "rounds: field required"),
    "summary is no text": (written("summary.json", b"\xff\xfe"), "summary.json is damaged"),
    "summary is deep": (written("summary.json", DEEP), "summary.json is damaged"),
    "accuracy is a text": (changed("summary.json", accuracy="x"), "accuracy: input should be a valid number"),
    "accuracies are a number": (changed("summary.json", accuracy_per_client=3), "accuracy_per_client: input should be"),
    "an accuracy is a text": (changed("summary.json", accuracy_per_client=["x"]), "accuracy_per_client.0: input should be"),
    "protocols are a list": (changed("summary.json", protocols=[]), "protocols: input should be a valid dictionary"),
    "bytes are a text": (changed("summary.json", bytes_up="x"), "bytes_up: input should be a valid number"),
    "rounds are null": (changed("summary.json", rounds=None), "rounds: input should be a valid integer"),
    "seconds are a mapping": (changed("summary.json", seconds={}), "seconds: input should be a valid number"),
    "probes are a list": (changed("summary.json", probe=[1]), "probe: input should be a valid dictionary"),
    "privacy is a list": (changed("summary.json", privacy=[1]), "privacy: input should be a valid dictionary"),
    "a round is a list": (written("metrics.jsonl", b"[]\n"), "metrics.jsonl, line 1"),
    "a round is named": (recorded(round="x"), "round: input should be"),
    "a round's metrics": (recorded(metrics=3), "line 1 is not what"),
    "a round's accuracy": (recorded(metrics={"accuracy": "x"}), "metrics.accuracy: input should be"),
    "a round is deep": (written("metrics.jsonl", DEEP + b"\n"), "metrics.jsonl, line 1"),
    "tracking.json is a list": (written("tracking.json", b"[]"), "tracking.json is damaged: not a JSON mapping"),
    "a store is a number": (written("tracking.json", b'{"uri": 3, "experiment": "x"}'), "uri: input should be a valid string"),
    "a probe is a list": (written("probe/a.json", b"[]"), "a.json is damaged: not a JSON mapping"),
    "a probe is empty": (written("probe/a.json", b"{}"), "run_id: field required"),
}


def assert_refused(result: Result, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit) and "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and len(result.stderr) < 800, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def entries(folder: Path) -> dict[str, float]:
    return {str(path.relative_to(folder)): path.lstat().st_mtime for path in folder.rglob("*")}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_another_form_is_refused(folder: Path, fedpriv: Fedpriv, form: str) -> None:
    damage, said = FORMS[form]
    damage(folder)
    before = entries(folder.parent)
    assert_refused(fedpriv("compare", folder), said, code=1)
    assert entries(folder.parent) == before and not Path("compare.png").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_that_door(folder: Path, fedpriv: Fedpriv, command: str) -> None:
    changed("run.json", status="interrupted", tracking=[1])(folder)
    before = entries(folder.parent)
    assert_refused(fedpriv(*COMMANDS[command], folder), "run.json is not what fedpriv writes: tracking", code=1)
    assert entries(folder.parent) == before


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["summary.json", "weights", "checkpoints/.new", "tracking.json.new"])
def test_a_link_that_leads_out_is_not_followed(folder: Path, fedpriv: Fedpriv, command: str, name: str) -> None:
    secret = folder.parents[1] / "secret"
    secret.write_text("{}")
    shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    assert_refused(fedpriv(*COMMANDS[command], folder), f"{name} is a symbolic link out of the run folder")
    assert secret.read_text() == "{}"


def test_links_within_the_folder_and_to_it_are_fine(folder: Path, fedpriv: Fedpriv) -> None:
    (folder / "again.json").symlink_to(folder / "run.json")
    (folder.parent / "other").symlink_to(folder)
    result = fedpriv("compare", folder.parent / "other")
    assert result.exit_code == 0, result.output


PAYLOADS = {
    "cut": (lambda folder: upload_of(folder).write_bytes(upload_of(folder).read_bytes()[:100]), 1, "safetensors"),
    "a text": (lambda folder: upload_of(folder).write_text("hello"), 1, "safetensors"),
    "without facts": (
        lambda folder: upload_of(folder).write_bytes(safetensors.torch.save({"a": torch.zeros(3)})), 1, "facts",
    ),
    "a folder": (lambda folder: (upload_of(folder).unlink(), (folder / "payloads/round-0001/client-0000.safetensors").mkdir()),
                 1, "client-000"),
    "other shapes": (resealed(lambda tensors: {name: one.reshape(-1)[:1].clone() for name, one in tensors.items()}),
                     1, "does not fit the run"),
    "other names": (resealed(lambda tensors: {f"x.{name}": one for name, one in tensors.items()}),
                    1, "is nothing that"),
    "whole numbers": (resealed(lambda tensors: {name: one.long() for name, one in tensors.items()}), 1, "int64"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["audit", "attack"])
@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_payload_of_another_form_is_refused_before_any_control(
    folder: Path, fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch, command: str, kind: str
) -> None:
    """Even if its checksum matches."""
    damage, code, said = PAYLOADS[kind]
    damage(folder)
    renew_checksums(folder)
    for control in ("fedpriv.audit.report._text_controls", "fedpriv.attacks.lab.attempts.run_controls"):
        monkeypatch.setattr(control, lambda *_, **__: pytest.fail("a control was played"))
    assert_refused(fedpriv(*COMMANDS[command], folder), said, code=code)
    assert not (folder / "audit").exists()


@pytest.mark.parametrize("name", quick_first(["a[/]b", "[bold]x", "it's", 'a"b', "a b;c", "-x", "<b>", "é"], 2))
def test_a_folder_with_a_strange_name_is_a_folder(folder: Path, fedpriv: Fedpriv, name: str) -> None:
    (folder.parent / name).parent.mkdir(exist_ok=True)
    folder.rename(folder.parent / name)
    changed("run.json", run_id=name, dataset=name)(folder.parent / name)
    result = fedpriv("compare", "--output", f"{name}.png", "--", f"runs/{name}")
    assert result.exit_code == 0, result.output
    assert Path(name).name in result.stdout and f"plot: {name}.png" in result.stdout


@pytest.mark.slow
def test_an_escape_sequence_in_a_name_is_shown_and_not_sent(folder: Path, fedpriv: Fedpriv) -> None:
    name = "\x1b]0;owned\x07\x1b[2J"
    folder.rename(folder.with_name(name))
    changed("run.json", method="[/red]\x1b[31m", dataset="/x/\x9b2J")(folder.with_name(name))
    found = fedpriv("compare", f"runs/{name}", "--json")
    assert found.exit_code == 0 and json.loads(found.stdout.splitlines()[-1])["runs"][0]["run"] == name
    shown = fedpriv("compare", f"runs/{name}")
    assert r"\x1b]0;owned\x07" in shown.stdout and r"[/red]\x1b[31m" in shown.stdout
    assert not {"\x1b", "\x07", "\x9b"} & set(shown.output + found.output)


def test_the_plot_of_compare_gets_its_folder(folder: Path, fedpriv: Fedpriv) -> None:
    assert fedpriv("compare", folder, "--output", "not/there/x.png").exit_code == 0
    assert Path("not/there/x.png").is_file()
    refused = fedpriv("compare", folder, "--output", folder / "run.json" / "x.png")
    assert refused.exit_code == 2 and "cannot write" in refused.stderr and "--output" in refused.stderr
