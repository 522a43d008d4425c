"""Where a round's time went: every second has a category, the trace can be opened, and the run is none the worse for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedpriv.files import load_json
from fedpriv.simulation import run, scoring
from fedpriv.simulation.profile import Profile
from fedpriv.spans import CATEGORIES, END, OTHER, UNTIMED
from tests.simulation.small import SILENT, computed, config, flags

Fedpriv = Callable[..., Result]
LITTLE = {"train.rounds": 2}


class Clock:
    """Time that passes when it is told to; in whole seconds, so that sums are exact."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: int) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def profile(clock: Clock) -> Profile:
    return Profile(clock=clock)


def charged(stretch: dict[str, Any]) -> dict[str, float]:
    """The categories that took any time."""
    return {name: seconds for name, seconds in stretch["categories"].items() if seconds}


def test_nested_spans_count_to_the_innermost(profile: Profile, clock: Clock) -> None:
    profile.begin(1)
    clock.pass_by(1)
    with profile("training"):
        clock.pass_by(2)
        with profile("data"):
            clock.pass_by(4)
        clock.pass_by(8)
        with profile("serialisation"):
            clock.pass_by(16)
            with profile("defences"):
                clock.pass_by(32)
    clock.pass_by(64)
    profile.begin(2)
    with profile("data"):
        clock.pass_by(128)
    profile.begin(END)
    clock.pass_by(256)
    report = profile.report(2)
    first, second = report["rounds"]
    assert (first["round"], first["seconds"], second["round"], second["seconds"]) == (1, 127, 2, 128)
    assert charged(first) == {"training": 10, "data": 4, "serialisation": 16, "defences": 32, "other": 65}
    assert charged(second) == {"data": 128}
    assert list(first["categories"]) == [*CATEGORIES, OTHER]
    total = report["total"]
    assert (total["rounds"], total["seconds"], sum(total["categories"].values())) == (2, 255, 255)
    assert total["categories"]["data"] == 132
    assert (report["start"]["seconds"], report["end"]["seconds"]) == (0, 256)
    assert "unfinished" not in report


def test_what_is_made_one_by_one_is_charged_while_it_is_made(profile: Profile, clock: Clock) -> None:
    def make() -> Iterator[int]:
        for number in range(3):
            clock.pass_by(10)
            yield number

    profile.begin(1)
    for _ in profile.each("training", make()):
        clock.pass_by(1)
    shout = profile.timed("defences", lambda text, times: (clock.pass_by(100), text * times)[1])
    assert shout("a", times=2) == "aa"
    assert charged(profile.report(1)["rounds"][0]) == {"training": 30, "defences": 100, "other": 3}


def test_a_span_that_raises_and_a_round_that_is_stopped(profile: Profile, clock: Clock) -> None:
    profile.begin(1)
    clock.pass_by(1)
    profile.begin(2)

    def fail() -> None:
        with profile("training"):
            clock.pass_by(2)
            with profile("data"):
                clock.pass_by(4)
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    profile.begin(END)
    clock.pass_by(8)
    report = profile.report(1)
    assert [period["round"] for period in report["rounds"]] == [1] and report["total"]["seconds"] == 1
    assert report["unfinished"]["round"] == 2 and charged(report["unfinished"]) == {"training": 2, "data": 4}
    assert charged(report["end"]) == {"other": 8}


def test_what_runs_beside_is_no_part_of_a_round(profile: Profile, clock: Clock) -> None:
    profile.begin(1)
    with profile("aggregation"):
        beside = profile.beside("tracking")
        with beside:
            clock.pass_by(5)
        clock.pass_by(1)
    report = profile.report(1)
    assert charged(report["rounds"][0]) == {"aggregation": 6} and report["beside"] == {"tracking": 5}


def test_a_category_that_there_is_not(profile: Profile) -> None:
    with pytest.raises(KeyError, match="trainning"), profile("trainning"):
        pass


def test_it_begins_where_the_data_began_to_be_loaded(clock: Clock) -> None:
    began = clock()
    clock.pass_by(5)
    profile = Profile(clock=clock, began=began)
    clock.pass_by(2)
    profile.begin(1)
    assert profile.report(1)["start"]["seconds"] == 7


def test_without_profiling_nothing_is_timed() -> None:
    def function() -> None:
        pass

    items = [1]
    assert UNTIMED.timed("data", function) is function and UNTIMED.each("data", items) is items
    assert UNTIMED("data") is UNTIMED("training")


def test_the_device_is_waited_for_at_both_ends_of_a_span(clock: Clock) -> None:
    profile = Profile(synchronise=lambda: clock.pass_by(1), clock=clock)
    profile.begin(1)
    with profile("training"):
        pass
    assert charged(profile.report(1)["rounds"][0]) == {"training": 1, "other": 2}


def test_the_trace(profile: Profile, clock: Clock) -> None:
    clock.pass_by(1)
    profile.begin(1)
    with profile("training"):
        clock.pass_by(2)
        with profile("data", client=7):
            clock.pass_by(3)
    with profile.beside("tracking"):
        clock.pass_by(4)
    profile.begin(END)
    trace = json.loads(json.dumps(profile.trace()))
    events = trace["traceEvents"]
    assert all({"name", "cat", "ph", "ts", "pid", "tid", "args"} <= event.keys() for event in events)
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"run", "beside the run"}
    complete = {event["name"]: event for event in events if event["ph"] == "X"}
    assert len(complete) + 2 == len(events)
    second = 1_000_000  # in microseconds
    assert {name: (event["ts"] / second, event["dur"] / second) for name, event in complete.items()} == {
        "start": (0, 1), "round 1": (1, 9), "end": (10, 0), "training": (1, 5), "data": (3, 3), "tracking": (6, 4),
    }  # fmt: skip
    assert complete["data"]["args"] == {"client": 7}
    assert complete["tracking"]["tid"] != complete["training"]["tid"] == complete["round 1"]["tid"]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a second after the last."""
    clock = Clock()

    def tick() -> float:
        clock.pass_by(1)
        return clock.now

    monkeypatch.setattr(run, "_profile", lambda federation, began: Profile(clock=tick))


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("mpfedcon", {}),
        (
            "fedavg",
            {
                "executor.name": "vectorized",
                "executor.group_size": 2,
                "wire.transforms": [{"name": "gaussian", "variance": 1e-6}],
            },
        ),
        ("local", {}),
    ],
)
def test_a_run_is_the_same_with_it(
    tmp_path: Path, reference: Callable[..., Path], ticking: None, method: str, overrides: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    outcome = run.start(config(method, **LITTLE, **overrides, run_dir=str(folder)), tmp_path, *SILENT, profiled=True)
    assert computed(folder) == computed(reference(method, **LITTLE, **overrides))
    report = load_json(folder / "profile" / "profile.json")
    assert report == outcome.profile
    assert [period["round"] for period in report["rounds"]] == [1, 2]
    for stretch in (report["start"], *report["rounds"], report["end"], report["total"]):
        assert sum(stretch["categories"].values()) == stretch["seconds"]
    took = {name for name, seconds in report["total"]["categories"].items() if seconds}
    missing = set() if overrides else {"defences"}
    assert took == {*CATEGORIES, OTHER} - missing
    trace = json.loads((folder / "profile" / "trace.json").read_text())["traceEvents"]
    trained = sorted(event["args"]["client"] for event in trace if event["name"] == "data")
    assert len(trained) == 2 * 3  # participants of two rounds, an event each
    rounds = {event["name"]: event for event in trace if event["cat"] == "round"}
    assert sum(rounds[f"round {number}"]["dur"] for number in (1, 2)) == report["total"]["seconds"] * 1e6
    for event in trace:
        if event["cat"] == "span":  # each lies within a round, the start or the end
            around = [r for r in rounds.values() if r["ts"] <= event["ts"] and event["ts"] + event["dur"] <= r["ts"] + r["dur"]]
            assert around


def test_augmentation_is_data(tmp_path: Path, ticking: None) -> None:
    overrides = {"data.augment": "simclr", "train.rounds": 1, "train.participation": 0.1}
    outcome = run.start(config("fedavg", **overrides, run_dir=str(tmp_path / "run")), tmp_path, *SILENT, profiled=True)
    assert outcome.profile is not None
    trace = json.loads((tmp_path / "run" / "profile" / "trace.json").read_text())["traceEvents"]
    spans = [event for event in trace if event["name"] == "data"]
    assert len(spans) > 1 == sum("client" in event["args"] for event in spans)


def test_a_run_that_fails_writes_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticking: None, fedpriv: Fedpriv
) -> None:
    scored = scoring.AllClientsScorer.score

    def fail(self: Any, server: Any, private: Any, round: int, *uploads: Any) -> Any:
        if round == 2:
            raise RuntimeError("no more")
        return scored(self, server, private, round, *uploads)

    folder = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(scoring.AllClientsScorer, "score", fail)
        ended = fedpriv("train", *flags("fedavg", **LITTLE), "--run-dir", folder, "--profile")
    assert ended.exit_code == 1 and "no more" in ended.stderr
    report = load_json(folder / "profile" / "profile.json")
    assert [period["round"] for period in report["rounds"]] == [1]
    assert report["unfinished"]["round"] == 2 and report["unfinished"]["categories"]["evaluation"] > 0
    assert json.loads((folder / "profile" / "trace.json").read_text())["traceEvents"]
    ended = fedpriv("resume", folder, "--profile")
    assert ended.exit_code == 0 and "Time of 1 round by part" in ended.stdout
    report = load_json(folder / "profile" / "profile.json")
    assert [period["round"] for period in report["rounds"]] == [2] and "unfinished" not in report


def test_the_table(tmp_path: Path, fedpriv: Fedpriv) -> None:
    folder = tmp_path / "run"
    ended = fedpriv("train", *flags("fedavg", **LITTLE), "--run-dir", folder, "--profile")
    assert ended.exit_code == 0, ended.output
    assert re.search(r"imports \d+\.\d\d s; data and net \d+\.\d\d s( \(.*\))?; after the last round \d+\.\d\d s", ended.output)
    head, *lines = ended.stdout.splitlines()
    assert head.strip() == "Time of 2 rounds by part"
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:11]}
    assert list(rows) == [*CATEGORIES, OTHER, "all"]
    report = load_json(folder / "profile" / "profile.json")
    for name, seconds in {**report["total"]["categories"], "all": report["total"]["seconds"]}.items():
        share = seconds / report["total"]["seconds"]
        assert rows[name] == [f"{seconds:.3f}", f"{100 * share:.1f}%", f"{500 * seconds:.1f}"]
    assert "trace.json" in ended.stdout and "accuracy per client" in ended.stdout


def test_the_table_leaves_json_alone(tmp_path: Path, fedpriv: Fedpriv) -> None:
    ended = fedpriv("train", *flags("fedavg", **LITTLE), "--run-dir", tmp_path / "run", "--profile", "--json")
    assert ended.exit_code == 0, ended.output
    (line,) = ended.stdout.splitlines()
    assert json.loads(line)["rounds"] == 2
    assert "Time of 2 rounds by part" in ended.stderr


def test_without_it_nothing_is_written(reference: Callable[..., Path]) -> None:
    assert not (reference("mpfedcon", **LITTLE) / "profile").exists()
