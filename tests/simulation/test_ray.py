"""``--workers ray``: two nodes end where one process ends, whatever dies on the way. Needs the extra ``cluster``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fedpriv.cli import main
from fedpriv.client.store import ClientStore
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.methods import methods
from fedpriv.simulation.choice import workers as choice_of_workers
from fedpriv.simulation.executors.ray import RayWorkers, check_answers
from fedpriv.simulation.setup import build
from tests.marks import slow_but
from tests.simulation.small import config

HAS_RAY = find_spec("ray") is not None
needs_ray = pytest.mark.extra("cluster")
ALONE = ["unshare", "--net", "--map-root-user", sys.executable, "-c"]
"""Ray listens on all interfaces; in a network namespace of its own there is only loopback."""
START = "import subprocess, sys; subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True); "
START += "from fedpriv.processes import die_with_parent; import os; die_with_parent(os.getppid()); "
START += "import runpy; runpy.run_module('tests.simulation.ray_cluster', run_name='__main__', alter_sys=True)"


@pytest.fixture(scope="module")
def on_a_cluster(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("no network namespaces here (unshare, ip)")

    def play(*cases: str, under_uv: bool = False) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("cluster")
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        command, root = [*ALONE, START, str(folder), *cases], Path(__file__).parents[2]
        here: dict[str, Any] = {"cwd": root}
        if under_uv:  # Ray looks for a process of that name and first argument; uv itself need not be installed
            (folder / "run").write_text('cd "$1"; shift; "$@"; exit $?\n')
            command, here = ["uv", "run", str(root), *command], {"cwd": folder, "executable": "/bin/sh"}
        done = subprocess.run(command, **here, env=environment, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        results = dict(json.loads(done.stdout.splitlines()[-1]))
        assert results.pop("uv run") or not under_uv  # which may also have started the tests
        assert results.pop("runtime_env") == {}  # no folder is copied, and workers have this Python
        return results

    return play


@needs_ray
@pytest.mark.slow
def test_all_methods_end_where_one_process_ends(on_a_cluster: Callable[..., dict[str, Any]]) -> None:
    results = on_a_cluster(*sorted(methods()))
    assert [method for method, result in results.items() if not result["equal"]] == []


@needs_ray
@pytest.mark.parametrize("case", slow_but(["killed"], ["killed", "removed"]))
def test_a_worker_and_a_node_may_die(on_a_cluster: Callable[..., dict[str, Any]], case: str) -> None:
    result = on_a_cluster(case, under_uv=case == "killed")[case]
    assert result["equal"]
    ends = ("they run again", "while it started; another one starts")  # a node may be removed before its worker is there
    assert [text for text in result["said"] if "Ray" in text and text.endswith(ends)], result["said"]


@pytest.mark.parametrize(
    ("runtime_env", "message"),
    [
        ({}, "the Ray cluster has 4 cores; `ray status`"),
        ({"py_executable": "uv run python"}, "Ray starts them by 'uv run python'"),
    ],
)
def test_what_keeps_workers_from_starting_is_named(runtime_env: dict[str, str], message: str) -> None:
    """The second where the user's own process has called ``ray.init`` under uv."""
    context = SimpleNamespace(runtime_env=runtime_env)
    ray = SimpleNamespace(get_runtime_context=lambda: context, cluster_resources=lambda: {"CPU": 4.0})
    workers: Any = SimpleNamespace(_ray=ray)
    assert RayWorkers._why_none(workers).startswith(message)


def test_states_travel_between_stores(tmp_path: Path) -> None:
    import torch

    store, other = ClientStore(tmp_path / "one"), ClientStore(tmp_path / "other")
    store.keep(3, 1, {"a": torch.ones(2)})
    store.book(3, 1, [(0.5, 4)])
    assert store.export(5, 1) == {}
    other.take(store.export(3, 1))
    assert torch.equal(other.load(3, 1)["a"], torch.ones(2)) and other.spent(3) == {1: [(0.5, 4)]}
    store.keep(3, 1, {"a": torch.zeros(2)})
    other.take(store.export(3, 1))
    assert torch.equal(other.load(3, 1)["a"], torch.zeros(2))  # no old copy in memory
    other.clear()
    assert not list((tmp_path / "other").iterdir())


def test_an_audit_needs_no_cluster() -> None:
    spread = load_config(
        None, {"executor.workers": "ray", "executor.ray_address": "host:6379", "executor.ray_workers": 9}
    ).executor
    assert spread.spread and not spread.here().spread and spread.here().ray_address is None
    assert load_config(None, {"executor.workers": 3}).executor.here().workers == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor.ray_address": "host:6379"}, "ray_address is for workers: ray"),
        ({"executor.workers": 2, "executor.ray_workers": 2}, "ray_workers is for workers: ray"),
        ({"executor.workers": "raj"}, "executor.workers"),
        ({"executor.workers": 0}, "executor.workers"),
    ],
)
def test_settings_that_cannot_be_right(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config("fedavg", **options)


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5", "Ray"])
def test_a_number_of_processes_or_ray(given: str) -> None:
    done = CliRunner().invoke(main, ["train", f"--workers={given}"])
    assert done.exit_code == 2 and "neither a number of processes (1 or more) nor auto or ray" in done.stderr


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_the_line_that_installs_it(tmp_path: Path) -> None:
    words = ["train", "--clients", "2", "--rounds", "1", "--workers", "ray", "--tracking-uri", "none"]
    done = CliRunner().invoke(main, [*words, "--run-dir", str(tmp_path / "run")])
    assert done.exit_code == 2 and "pip install '.[cluster]'" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "nowhere.invalid:6379", "127.0.0.1:99999"])
def test_an_address_at_which_nothing_answers(address: str) -> None:
    """Ray itself would try for minutes."""
    with pytest.raises(UsageError, match="no Ray cluster answers at "):
        check_answers(address)


def test_another_version_of_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice_of_workers, "version", lambda name: "3.1.0")
    with pytest.raises(UsageError, match=r"Ray 3.1.0 is installed, and 2.60 is tested"):
        build(config("fedavg", **{"executor.workers": "ray"}))
