"""``fedpriv attack --run`` and ``--images``: what else than crops of photographs can be attacked, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from PIL import Image

from fedpriv.audit.record.run import RunRecord
from tests.simulation.small import play

Fedpriv = Callable[..., Result]
SHORT = ("--set", "steps=1", "--set", "restarts=0")
HIDDEN = (*SHORT, *(word for one in ("adam_steps=2", "adam=2", "lbfgs=1", "iterations=1") for word in ("--set", one)))


@pytest.fixture(autouse=True)
def no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: ())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mp"
    play(folder, "mpfedcon")
    return folder


def found(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.slow
def test_a_message_of_a_run(run: Path, fedpriv: Fedpriv) -> None:
    kept = RunRecord(run).messages()
    round, client = kept[-1]
    said = found(fedpriv("attack", "analytic", "--run", run, "--round", round, "--client", client, "--json"))
    (attacker,) = said["attackers"]
    n = len(RunRecord(run).truth(client).labels)
    assert said["images"] == attacker["success"]["0.01"]["n"] == n and f"round {round}, client {client}" in said["target"]
    assert attacker["success"]["0.01"]["successes"] > said["baselines"]["grey image"]["success"]["0.01"]["successes"] == 0
    assert {"mean image", "class mean", "nearest public"} <= said["baselines"].keys()
    first = found(fedpriv("attack", "analytic", "--run", run, "--json"))
    assert "round {}, client {}".format(*kept[0]) in first["target"]


@pytest.mark.slow
def test_hidden_layers_of_a_run_call_for_every_attacker(run: Path, fedpriv: Fedpriv) -> None:
    said = found(fedpriv("attack", "dlg", "--run", run, *HIDDEN, "--json"))
    assert said["mask_layers"] == 3  # the projector's two layers and the head
    tried = {one["attacker"]: one["threat"]["top"] for one in said["attackers"]}
    assert tried.keys() >= {"random-head", "known-head", "joint-head", "head-free", "analytic", "analytic-features"}
    assert [name for name, top in tried.items() if top == "initial"] == ["known-head", "learned-inversion"]


@pytest.mark.slow
def test_a_folder_of_images(tmp_path: Path, fedpriv: Fedpriv) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, size in enumerate([(40, 60), (90, 33), (32, 32)]):
        Image.effect_noise(size, 40 + 10 * i).convert("RGB").save(folder / f"{i}.png")
    said = found(fedpriv("attack", "idlg", "--images", folder, *SHORT, "--json"))
    assert said["images"] == 3
    assert found(fedpriv("attack", "idlg", "--images", folder, "--n", 2, *SHORT, "--json"))["images"] == 2


def test_images_that_are_none(tmp_path: Path, fedpriv: Fedpriv) -> None:
    refused(fedpriv("attack", "idlg", "--images", tmp_path / "nowhere"), "no such folder")
    refused(fedpriv("attack", "idlg", "--images", tmp_path), "holds no images")
    (tmp_path / "broken.png").write_text("not an image")
    refused(fedpriv("attack", "idlg", "--images", tmp_path), "broken.png", "not an image that can be read")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--round", 99), ("no payload of round 99", "--keep-payloads")),
        (("--client", 99), ("no payload of client 99", "there are those of")),
        (("--n", 3), ("--n is for single steps",)),
        (("--mask-layers", 1), ("a run", "--mask-layers")),
        (("--images", "."), ("--run and --images", "only one")),
        (("--dataset", "digits"), ("--run and --dataset", "only one")),
    ],
)
def test_what_means_nothing_to_a_run(run: Path, fedpriv: Fedpriv, arguments: tuple[Any, ...], words: tuple[str, ...]) -> None:
    refused(fedpriv("attack", "analytic", "--run", run, *arguments), *words)


def test_rounds_are_of_runs_and_runs_need_payloads(tmp_path: Path, fedpriv: Fedpriv) -> None:
    refused(fedpriv("attack", "dlg", "--round", 3), "name the run with --run")
    play(tmp_path / "none", "fedavg", **{"wire.keep_payloads": "none", "train.rounds": 1})
    refused(fedpriv("attack", "dlg", "--run", tmp_path / "none"), "kept no payloads", "--keep-payloads")
    refused(fedpriv("attack", "dlg", "--run", tmp_path / "nowhere"), "no run")
