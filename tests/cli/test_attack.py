"""``fedpriv attack`` and ``fedpriv attacks`` on the reference victim: what they say as JSON, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.image.dlg import Dlg

Fedpriv = Callable[..., Result]
FIGURES = {
    "success",
    "label_accuracy",
    "mse_median",
    "mse_best",
    "psnr_median_db",
    "ssim_median",
    "lpips_median",
    "lpips_missing",
    "feature_distance_median",
    "feature_distance_missing",
    "cpu_seconds",
    "images_per_cpu_second",
}
FEW = ("--n", 2, "--set", "steps=1", "--set", "adam_steps=2", "--set", "restarts=0")
"""For where it does not matter what is found."""


@pytest.fixture
def no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """For attacks that are cut short and would fail them."""
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: ())


def last_line(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    return json.loads(result.stdout)


def refused(result: Result, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 4
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.usefixtures("no_controls")
def test_json_of_an_attack(fedpriv: Fedpriv) -> None:
    found = last_line(fedpriv("attack", "idlg", "--n", 2, "--set", "steps=1", "--set", "restarts=0", "--seed", 3, "--json"))
    assert (found["attack"], found["images"], found["mask_layers"], found["seed"]) == ("idlg", 2, 0, 3)
    (attacker,) = found["attackers"]
    assert attacker.keys() >= FIGURES and attacker["attacker"] == "idlg"
    assert attacker["threat"] == {
        "top": "unknown",
        "labels": False,
        "num_examples": True,
        "schedule": True,
        "download": "honest",
        "public": False,
    }
    assert attacker["success"].keys() == {"0.01", "0.001", "0.0001"}
    rate = attacker["success"]["0.01"]
    assert rate["n"] == 2 and rate["share"] == rate["successes"] / 2 and rate["low"] <= rate["share"] <= rate["high"]
    assert attacker["label_accuracy"] == 1.0, "the sign rule needs no optimisation"
    assert (attacker["lpips_median"] is None) == bool(attacker["lpips_missing"]), "null has its reason"
    assert attacker["images_per_cpu_second"] == pytest.approx(2 / attacker["cpu_seconds"])
    assert found["baselines"]["grey image"]["mse_median"] > 0


@pytest.mark.usefixtures("no_controls")
@pytest.mark.slow
def test_the_feature_distance_is_shown_where_it_is_measured(fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.attacks.scoring.scores.feature_distance", lambda made, true: torch.full((len(true),), 0.125))
    result = fedpriv("attack", "dlg", "--n", 2, "--set", "steps=1", "--set", "restarts=0")
    assert "EfficientNet-Lite0" in result.stdout and "0.125" in result.stdout


@pytest.mark.slow
def test_controls_are_reported(fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ones, at which an attack with one step must fail; the whole of a sound attack is in tests/attacks."""
    result = fedpriv("attack", "dlg", "--n", 1, "--set", "steps=1", "--set", "restarts=0", "--json")
    assert result.exit_code == 1
    assert "control failed" in json.loads(result.stdout)["error"]
    assert "control (positive): dlg recovered 0 of 4" in result.stderr
    assert "control (negative): dlg recovered 0 of 2 images from random gradients" in result.stderr


class Leaking:
    """An attack that cheats with the truth: it finds it in noise, too."""

    def __init__(self, real: Callable[..., Reconstruction], truth: torch.Tensor) -> None:
        self.real, self.truth = real, truth

    def __call__(self, attack: Dlg, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        found = self.real(replace(attack, steps=1, restarts=0), observations, seed)
        return replace(found, raw=self.truth[: len(observations)])


@pytest.mark.slow
def test_an_attack_that_finds_something_in_noise_is_named(fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.attacks.lab.images import default_images

    leaking = Leaking(Dlg.run, default_images(4)[0])
    monkeypatch.setattr(Dlg, "run", lambda *arguments: leaking(*arguments))
    result = fedpriv("attack", "dlg", "--n", 1)
    assert result.exit_code == 1
    assert "a control failed, so there can be no result: dlg recovered 2 of 2 images from random gradients" in result.stderr
    assert "MSE <" not in result.stdout, "no result may be shown"


@pytest.mark.usefixtures("no_controls")
@pytest.mark.slow
def test_with_a_mask_every_attacker_is_listed(fedpriv: Fedpriv) -> None:
    found = last_line(fedpriv("attack", "dlg", "--mask-layers", 2, *FEW, "--json"))
    said = {one["attacker"]: one for one in found["attackers"]}
    mounted = {"random-head", "known-head", "joint-head", "head-free"}
    assert said.keys() == mounted | {"analytic", "analytic-features", "learned-inversion", "spear", "unrolled"}
    assert all((one.keys() >= FIGURES) == (name in mounted) for name, one in said.items())
    assert "no linear layer with a bias was shared" in said["analytic-features"]["inapplicable"]
    assert {name for name, one in said.items() if one["threat"]["top"] != "unknown"} == {"known-head", "learned-inversion"}
    assert found["mask_layers"] == 2
    assert not any(one["is_evidence"] for one in said.values()), "no control was run"


@pytest.mark.usefixtures("no_controls")
@pytest.mark.slow
def test_what_attackers_know_is_said_once_and_the_work_announced(fedpriv: Fedpriv) -> None:
    result = fedpriv("attack", "dlg", "--mask-layers", 1, *FEW)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("sees the payload") == 1 and "every attacker: sees the payload" in result.stdout
    assert result.stdout.count("means and standard deviations") == 1
    assert "known-head: knows the initial weights" in result.stdout and "analytic cannot be mounted: no linear" in result.stdout
    assert "a failure of joint-head is no evidence" in result.stdout
    begun = result.stderr.splitlines()
    assert (
        begun[0].startswith("1 of 9: 2 crops of two photographs, one step each: analytic")
        and "s left" in begun[-1]
        and 8 <= len(begun) <= 9
    )
    assert "of 9" not in fedpriv("attack", "dlg", "--mask-layers", 1, *FEW, "--json").stderr


def test_an_attack_that_does_not_apply_says_why(fedpriv: Fedpriv) -> None:
    """The net begins with convolutions, so that no linear layer is fed the image."""
    result = fedpriv("attack", "analytic", "--n", 1, "--json")
    (only,) = last_line(result)["attackers"]
    assert "is features, not the image" in only["inapplicable"] and "success" not in only
    assert "cannot be mounted" in result.stderr


@pytest.mark.usefixtures("no_controls")
@pytest.mark.slow
def test_output_is_a_picture_of_all(empty_folder: Path, fedpriv: Fedpriv) -> None:
    from PIL import Image

    found = fedpriv("attack", "idlg", "--n", 2, "--set", "steps=1", "--set", "restarts=0", "--output", "found.png")
    assert found.exit_code == 0, found.output
    assert Image.open(empty_folder / "found.png").size[0] > 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["idgl"], ("unknown attack 'idgl'", "did you mean 'idlg'")),
        (["zzz"], ("unknown attack 'zzz'", "head-free", "idlg")),
        (["idlg", "--set", "stepz=3"], ("idlg has no option 'stepz'", "did you mean 'steps'")),
        (["idlg", "--mask-layers", 1, "--set", "normalized=true"], ("no option 'normalized'", "did you mean 'normalised'")),
        (["idlg", "--set", "steps=many"], ("steps must be a whole number from 1 to 1000000", "'many'")),
        (["idlg", "--set", "steps=2.5"], ("steps must be a whole number", "2.5")),
        (["idlg", "--set", "restarts=-1"], ("restarts must be a whole number from 0 to 1000000", "-1")),
        (["idlg", "--set", "enough=.nan"], ("enough must be a number, at least 0", "nan")),
        (["dlg", "--set", "history=0"], ("history must be a whole number from 1 to 1000", "not 0")),
        (["dlg", "--set", "history=99999999999"], ("history must be a whole number from 1 to 1000",)),
        (["dlg", "--set", "steps=0"], ("steps must be a whole number from 1 to 1000000",)),
        (["dlg", "--set", "steps=1:30"], ("steps must be a whole number", "'1:30'")),
        (["inverting-gradients", "--set", "restarts=1e9"], ("restarts must be a whole number", "1000000000.0")),
        (["inverting-gradients", "--set", "restarts=10000000"], ("restarts must be a whole number from 0 to 1000000",)),
        (["unrolled", "--set", "iterations=0"], ("iterations must be a whole number from 1",)),
        (["tag", "--encoder", "tiny", "--n", 1, "--set", "starts=0"], ("starts must be a whole number from 1",)),
        (["idlg", "--set", "normalised=1"], ("normalised must be true or false",)),
        (["idlg", "--set", "give_up=3"], ("give_up must be 2 values such as [20, 0.01]",)),
        (["idlg", "--set", "steps"], ("key=value",)),
        (["idlg", "--n", 100000], ("--n 100000", "places for a crop")),
        (["idlg", "--n", 0], ("--n", "x>=1")),
        (["idlg", "--n", 1798, "--dataset", "digits"], ("--n 1798", "digits", "test images")),
        (["idlg", "--mask-layers", 4], ("--mask-layers", "0<=x<=3")),
        (["idlg", "--mask-layers", -1], ("--mask-layers", "0<=x<=3")),
        (["idlg", "--output", "found.jpg"], ("found.jpg", "found.png")),
        (["idlg", "--output", "/dev/null/found.png"], ("cannot write /dev/null/found.png", "/dev/null is not a folder")),
        (["idlg", "--dataset", "digitz"], ("did you mean 'digits'",)),
        (["secagg-masks", "--set", "bits=40"], ("bits must be a whole number from 8 to 28",)),
        (["secagg-masks", "--set", "bit=4"], ("secagg-masks has no option 'bit'", "did you mean 'bits'")),
        (["secagg-masks", "--n", 3, "--images", "."], ("--n, --images has no effect",)),
        ([], ("ATTACK",)),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_right_is_refused(
    empty_folder: Path, fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch, arguments: list[object], words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: pytest.fail("refused too late"))
    refused(fedpriv("attack", *arguments), *words)
    assert list(empty_folder.iterdir()) == []


def test_masks_of_a_secure_aggregation(fedpriv: Fedpriv) -> None:
    found = last_line(fedpriv("attack", "secagg-masks", "--set", "bits=12", "--json"))
    assert found["recovered"] == {"flower": True, "fedpriv": False}
    assert found["errors"]["flower"] < 5e-5 and found["errors"]["fedpriv"] is None
    assert [(control["name"], control["passed"]) for control in found["controls"]] == [("positive", True), ("negative", True)]


def test_masks_without_a_secret_fail_the_control(fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.attacks.inference.masked_sums import flower_mask

    monkeypatch.setattr("fedpriv.secure.masks.mask", flower_mask)
    result = fedpriv("attack", "secagg-masks", "--set", "bits=12")
    assert result.exit_code == 1 and "a control failed, so there can be no result: AES-CTR" in result.stderr


def test_attacks_are_listed_with_their_options(fedpriv: Fedpriv) -> None:
    found = {row["name"]: row for row in last_line(fedpriv("attacks", "--json"))["attacks"]}
    assert {"dlg", "idlg", "dlg-published", "inverting-gradients", "head-free", "known-head", "analytic"} <= found.keys()
    assert all(row["about"] for row in found.values())
    options = {option["name"]: option["default"] for option in found["idlg"]["options"]}
    assert options == vars(Dlg()) | {"give_up": list(Dlg().give_up), "stalled": list(Dlg().stalled)}
    shown = fedpriv("attacks")
    assert shown.exit_code == 0 and all(name in shown.stdout for name in found)
