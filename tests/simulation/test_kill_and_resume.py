"""A run that is killed, wherever, goes on bit for bit as if it had not been."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.marks import slow_but
from tests.simulation.processes import Process, Sabotage, die_at, die_at_record, die_within
from tests.simulation.small import FEW_STEPS, computed, facts, flags, rounds_recorded


def play_with_deaths(tmp_path: Path, sabotages: Iterator[Sabotage], method: str, **overrides: Any) -> tuple[Path, int]:
    """Start a run and resume it, each time with the next sabotage, until it finishes; its folder and how often it died."""
    folder = tmp_path / "run"
    for deaths in count():
        exists = (folder / "config.yaml").exists()
        command = ["resume", folder] if exists else ["train", *flags(method, **overrides), "--run-dir", folder]
        ended = Process(tmp_path, *command, sabotage=next(sabotages)).wait()
        if ended.code == 0 or (exists and facts(folder).get("status") == "finished"):  # it can die after that, too
            return folder, deaths
        assert ended.code in (-signal.SIGKILL, -signal.SIGALRM), ended.err
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("mpfedcon", {}),
        ("mpfedcon", {"method.negative": "R2", "method.center_ema": 0.5}),
        ("fedavg", {"data.augment": "crop_flip"}),
        ("local", {}),
    ],
    ids=["mpfedcon", "mpfedcon-R2", "fedavg", "local"],
)
def test_killed_at_random_moments(tmp_path: Path, reference: Callable[..., Path], method: str, overrides: dict[str, Any]) -> None:
    overrides = {"train.rounds": 6, **overrides}
    draw = random.Random(f"{method} {overrides}")
    # A process plays one round at least, and a first round takes longer than those after it.
    sabotages = (partial(die_within, draw.uniform(0, 0.4)) for _ in count())
    folder, deaths = play_with_deaths(tmp_path, sabotages, method, **overrides)
    assert deaths >= 2
    assert computed(folder) == computed(reference(method, **overrides))
    assert facts(folder)["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_each_file_that_appears(tmp_path: Path, reference: Callable[..., Path], after: bool) -> None:
    """Process n dies at its n-th file.

    Config, partition, run.json, broadcast, server, round; then run.json, payloads and clients, server, round.
    """
    sabotages = (partial(die_at, "replace", number, after) for number in count(1))
    overrides = {"train.rounds": 4, **FEW_STEPS}
    folder, deaths = play_with_deaths(tmp_path, sabotages, "mpfedcon", **overrides)
    assert deaths >= 10
    assert len(list(folder.glob("payloads/*/*.safetensors"))) == 1 + 3 * (1 + 2 * 3)
    assert computed(folder) == computed(reference("mpfedcon", **overrides))


@pytest.mark.slow
def test_killed_at_each_old_file_that_goes(tmp_path: Path, reference: Callable[..., Path]) -> None:
    sabotages = (partial(die_at, "unlink", number, bool(number % 2)) for number in count(1))
    overrides = {"train.rounds": 6, **FEW_STEPS}
    folder, deaths = play_with_deaths(tmp_path, sabotages, "mpfedcon", **overrides)
    assert deaths >= 3
    assert computed(folder) == computed(reference("mpfedcon", **overrides))


@pytest.mark.slow
def test_killed_while_a_line_of_metrics_is_written(tmp_path: Path, reference: Callable[..., Path]) -> None:
    shares = iter([0, 0.5, 0.999, 1, 0.5])
    sabotages = (partial(die_at_record, 3, next(shares, 1)) for _ in count())
    overrides = {"train.rounds": 8, **FEW_STEPS}
    folder, deaths = play_with_deaths(tmp_path, sabotages, "fedavg", **overrides)
    assert deaths >= 3
    assert computed(folder) == computed(reference("fedavg", **overrides))


def test_killed_before_round_0_was_committed_starts_from_scratch(tmp_path: Path, reference: Callable[..., Path]) -> None:
    moments = [(False, "round-000000"), (True, "server-000000"), (True, "no such file")]
    sabotages = (partial(die_at, "replace", 1, after, path) for after, path in moments)
    folder, deaths = play_with_deaths(tmp_path, sabotages, "mpfedcon", **FEW_STEPS)
    assert deaths == 2
    assert rounds_recorded(folder) == [0, 1, 2, 3]
    assert computed(folder) == computed(reference("mpfedcon", **FEW_STEPS))


@pytest.mark.parametrize("file", slow_but([True], ["weights/server", "summary.json", "run.json"]))
@pytest.mark.parametrize("after", slow_but(["summary.json"], [False, True]), ids=["before", "after"])
def test_killed_while_the_results_are_written(
    tmp_path: Path, halfway: Path, whole: Path, fedpriv: Callable[..., Result], file: str, after: bool
) -> None:
    number = 2 if file == "run.json" else 1  # the first says that the run goes on
    ended = Process(tmp_path, "resume", halfway, sabotage=partial(die_at, "replace", number, after, file)).wait()
    assert ended.code == -signal.SIGKILL
    resumed = fedpriv("resume", halfway)
    assert resumed.exit_code == (2 if file == "run.json" and after else 0), resumed.output
    assert facts(halfway)["status"] == "finished"
    assert computed(halfway) == computed(whole)
