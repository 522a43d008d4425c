"""What the attack commands load and say while they compute, and with how many threads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import Result

from fedpriv.attacks.core.doing import doing, now
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.image.dlg import Dlg
from fedpriv.attacks.lab.image_controls import controls, negative_control
from fedpriv.attacks.lab.setting import Setting
from fedpriv.cli.controls import progress

QUICK_START = """
import re, sys
class FirstRound:
    def __init__(self, stream): self.stream, self.shown = stream, ""
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        self.shown += text
        if re.search("round 1/2 .*accuracy", self.shown):
            print("loaded:", sorted({"torch._dynamo", "torch._inductor", "mlflow", "sklearn"} & set(sys.modules)))
            sys.stdout.flush()
            __import__("os")._exit(0)
        return len(text)
sys.stderr = FirstRound(sys.stderr)
from fedpriv.cli import main
main(["train", "--rounds", "2", "--set", "tracking.uri=none", "--runs-dir", sys.argv[1]])
"""


def test_the_first_round_of_the_quick_start_loads_no_compiler(tmp_path: Path) -> None:
    """Torch's compiler takes longer to import than torch itself."""
    done = subprocess.run([sys.executable, "-c", QUICK_START, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["loaded: []"], done.stderr


def test_what_is_done_is_told_from_the_whole_to_its_part() -> None:
    assert now() == ""
    with doing("a control") as tell, doing() as of_part:
        of_part("step 1")
        assert now() == "a control, step 1"
        tell("another")
        of_part("step 2")
        assert now() == "another, step 2"
    with pytest.raises(ValueError, match="stops"), doing("what fails"):
        raise ValueError("stops")
    assert now() == "", "also after an error"


@pytest.mark.usefixtures("slow_attack")
def test_a_long_step_says_how_far_it_is(fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.cli.controls.PULSE_IN_A_FILE", 0.01)
    result = fedpriv("attack", "dlg", "--n", 1)
    assert result.exit_code == 0, result.output
    assert "s: positive and negative control of dlg, waiting" in result.stderr
    after = result.stderr.rpartition("control of dlg, waiting")[2]
    assert "s: waiting" in after, "also the attack itself, after its controls"


def test_a_file_gets_a_line_a_minute_and_no_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pace of an attack in closed form says nothing about one that optimises after it."""
    pauses = list[float]()
    monkeypatch.setattr("fedpriv.cli.controls._every", lambda seconds, beat: nullcontext(pauses.append(seconds)))
    with click.Context(click.Command("attack")), progress(3) as begin:
        begin("in closed form")
        begin("optimised")
    assert capsys.readouterr().err.splitlines() == ["1 of 3: in closed form", "2 of 3: optimised"]
    assert pauses and min(pauses) >= 60


@pytest.mark.usefixtures("slow_attack")
def test_images_are_attacked_with_one_thread(fedpriv: Callable[..., Result], threads: list[int]) -> None:
    assert fedpriv("attack", "dlg", "--n", 1).exit_code == 0
    assert threads == [1, 1] and torch.get_num_threads() == 2, "the controls and the attack; after it, as before"


def test_both_controls_are_one_batch(fedpriv: Callable[..., Result], slow_attack: list[int]) -> None:
    assert fedpriv("attack", "dlg", "--n", 1).exit_code == 0
    assert slow_attack == [4 + 2, 1], "undefended messages and random gradients; then the image"


def test_controls_of_an_attack_that_refuses_noise_run_one_after_the_other(
    slow_attack: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Dlg.run

    def refuses(attack: Dlg, observations: Any, seed: int = 0) -> Any:
        if len(observations) != 4:
            raise Inapplicable("noise")
        return run(attack, observations, seed)

    monkeypatch.setattr(Dlg, "run", refuses)
    positive, negative = controls(Dlg(), Setting(), 0)
    assert slow_attack == [4] and negative.passed and negative.sentence == "dlg refused random gradients (noise)"
    assert positive.name == "positive" and "of 4 undefended images" in positive.sentence


def test_texts_are_attacked_with_one_thread(
    fedpriv: Callable[..., Result], threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(*given: Any) -> None:
        threads.append(torch.get_num_threads())
        raise ZeroDivisionError("far enough")

    monkeypatch.setattr("fedpriv.attacks.text.controls.text_controls", lambda attack, seed: [])
    monkeypatch.setattr("fedpriv.audit.text.attempts.TextTarget.run", noted)
    fedpriv("attack", "tokens", "--n", 1)
    assert threads == [1] and torch.get_num_threads() == 2


def test_controls_take_one_thread_whoever_asks(threads: list[int], slow_attack: list[int]) -> None:
    negative_control(Dlg(), Setting(images=1, side=8))
    assert threads == [1] and torch.get_num_threads() == 2


@pytest.fixture
def threads() -> Iterator[list[int]]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    SEEN.clear()
    yield SEEN
    torch.set_num_threads(before)


SEEN = list[int]()


@pytest.fixture
def slow_attack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """An attack that only waits, and recovers all but noise; how many messages each call got."""
    from fedpriv.attacks.core.reconstruction import Reconstruction
    from fedpriv.attacks.lab.images import default_images

    calls = list[int]()

    def run(attack: Dlg, observations: Any, seed: int = 0) -> Reconstruction:
        SEEN.append(torch.get_num_threads())
        calls.append(len(observations))
        with doing("waiting"):
            time.sleep(0.1)
        n, shape = len(observations), observations[0].input_shape
        found = default_images(n, seed)[0] if len(calls) > 1 else torch.zeros(n, *shape)
        if n > 2 and len(calls) == 1:
            found[:-2] = default_images(n - 2, seed)[0]
        zeros = torch.zeros(n)
        return Reconstruction(found, zeros.long(), zeros, zeros[None], zeros.long(), zeros.long())

    monkeypatch.setattr(Dlg, "run", run)
    monkeypatch.setenv("FEDPRIV_CONTROLS", str(tmp_path / "controls"))
    controls.cache_clear()
    yield calls
    controls.cache_clear()
