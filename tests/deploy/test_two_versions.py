"""Server and clients of several versions of fedpriv, each installed from a wheel of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.deploy.apart import hashes, same_records
from tests.simulation.small import config, play

pytestmark = [pytest.mark.slow, pytest.mark.extra("deploy")]
ROOT = Path(__file__).parents[2]
UV = os.environ.get("UV", "uv")
NEXT = {"0.1.0": None, "0.2.0": "fedpriv/cli/sweep.py", "0.3.0": "fedpriv/client/sgd.py"}
"""Version -> the file that differs in it; that of the second computes no number of a run."""
SETTINGS = {
    "data.clients": 2, "data.limit": 120, "train.rounds": 3, "train.participation": 1.0, "model.projection": 8,
    "executor.name": "sequential", "wire.keep_payloads": "all",
}  # fmt: skip
CLIENT = """
import sys
from pathlib import Path
from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.socket_server import serve
from fedpriv.deploy.client.source import Source
number = int(sys.argv[1])
serve(ClientNode(number, Source("digits", share="partition"), Path(f"client-{number}")), Path(f"sockets/{number}"))
"""
SERVER = """
import json, sys
from pathlib import Path
from fedpriv.config import RunConfig, parse
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.server_run import STOP, resume, start
from fedpriv.deploy.stream import ask
from fedpriv.errors import FedprivError
class Sockets:
    def exchange(self, frames, seconds, round):
        for client, frame in frames.items():
            yield client, Frame.of(*ask(Path(f"sockets/{client}"), frame.head_bytes, frame.parts, seconds))
run, settings = Path("runs/run"), json.loads(sys.argv[2])
def stop(record):
    if record["round"] == 1:
        (run / STOP).touch()
rest = Sockets(), 300, lambda *of: None
try:
    if sys.argv[1] == "start":
        start(parse(RunConfig, {**settings, "run_dir": str(run.absolute())}, "settings"), run.parent, *rest, stop, print)
    else:
        resume(run, *rest, lambda record: None, print)
except FedprivError as error:
    sys.exit(f"fedpriv: {error}")
"""


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FEDPRIV_", "MLFLOW_"))}


def ran(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = list(map(str, command))
    return subprocess.run(words, cwd=cwd, env=clean(), capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Version -> the Python of an environment in which its wheel is installed, beside this session's other packages."""
    place, pythons = tmp_path_factory.mktemp("versions"), dict[str, Path]()

    def done(*command: object) -> str:
        result = ran(*command, cwd=place)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    whole = place / "source"
    shutil.copytree(ROOT / "fedpriv", whole / "fedpriv", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "constraints.txt"):
        shutil.copy(ROOT / name, whole)
    for version, changed in NEXT.items():
        source, env = shutil.copytree(whole, place / f"source-{version}"), place / f"env-{version}"
        project = re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        (source / "pyproject.toml").write_text(project, encoding="utf-8")
        if changed is not None:
            with (source / changed).open("a", encoding="utf-8") as file:
                file.write("\n# Another version.\n")
        done(UV, "build", "--quiet", "--wheel", "--out-dir", source / "dist", source)
        done(UV, "venv", "--quiet", "--python", sys.executable, env)
        own = done(env / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        Path(own.strip(), "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        (wheel,) = (source / "dist").glob("*.whl")
        done(UV, "pip", "install", "--quiet", "--no-deps", "--python", env / "bin" / "python", wheel)
        pythons[version] = env / "bin" / "python"
    return pythons


@contextmanager
def clients(place: Path, pythons: Mapping[str, Path], *versions: str) -> Iterator[None]:
    """A block in which clients of some versions answer."""
    with ExitStack() as stack:
        processes = []
        for number, version in enumerate(versions):
            (place / "sockets" / str(number)).unlink(missing_ok=True)
            process = subprocess.Popen([pythons[version], "-c", CLIENT, str(number)], cwd=place, env=clean())
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        until = time.monotonic() + 300
        while not all((place / "sockets" / str(number)).exists() for number in range(len(versions))):
            assert all(process.poll() is None for process in processes) and time.monotonic() < until
            time.sleep(0.1)
        yield


def serve(place: Path, python: Path, what: str) -> subprocess.CompletedProcess[str]:
    return ran(python, "-c", SERVER, what, json.dumps(config("fedavg", **SETTINGS).chosen()), cwd=place)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, pythons: dict[str, Path]) -> Path:
    """The folder of a run that was stopped after a round, whose server and clients have different versions."""
    place = tmp_path_factory.mktemp("stopped")
    with clients(place, pythons, "0.1.0", "0.2.0"):
        result = serve(place, pythons["0.1.0"], "start")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [record["round"] for record in _records(place)] == [0, 1]
    return place


def _records(place: Path) -> list[dict[str, object]]:
    from fedpriv.storage.run_folder import RunFolder

    return RunFolder.open(place / "runs" / "run").records()


def test_a_run_goes_on_after_an_update_of_what_it_does_not_depend_on(
    tmp_path: Path, pythons: dict[str, Path], stopped: Path
) -> None:
    place = shutil.copytree(stopped, tmp_path / "copy", ignore=shutil.ignore_patterns("sockets"))
    with clients(place, pythons, "0.2.0", "0.1.0"):
        result = serve(place, pythons["0.2.0"], "resume")
    assert result.returncode == 0, result.stdout + result.stderr
    play(tmp_path / "whole", "fedavg", **SETTINGS)
    state = ("checkpoints/server-*.safetensors", "payloads/*/*", "weights/*")
    assert hashes(place / "runs" / "run", *state) == hashes(tmp_path / "whole", *state)
    same_records(place / "runs" / "run", tmp_path / "whole")


def test_a_client_of_another_version_is_named(tmp_path: Path, pythons: dict[str, Path]) -> None:
    with clients(tmp_path, pythons, "0.1.0", "0.3.0"):
        result = serve(tmp_path, pythons["0.1.0"], "start")
    assert result.returncode == 1 and re.fullmatch(
        r"fedpriv: client 1 runs fedpriv 0\.3\.0\+\w{12}, and here is fedpriv 0\.1\.0\+\w{12}, which may compute other numbers; "
        r"install the same version on all machines, and start them again\n",
        result.stderr,
    ), result.stderr
    assert not (tmp_path / "runs" / "run").exists()


def test_a_run_of_another_version_is_not_resumed(tmp_path: Path, pythons: dict[str, Path], stopped: Path) -> None:
    place = shutil.copytree(stopped, tmp_path / "copy", ignore=shutil.ignore_patterns("sockets"))
    result = ran(pythons["0.3.0"].parent / "fedpriv", "deploy", "resume", "runs/run", cwd=place)
    assert result.returncode == 2 and re.search(
        r"runs/run began with fedpriv 0\.1\.0\+\w{12}, which its clients have agreed to, and this is 0\.3\.0\+\w{12}; install "
        r"that version on all machines, or start another run",
        result.stderr,
    ), result.stderr
    assert len(_records(place)) == 2


def test_a_client_that_was_updated_does_not_train_and_says_why(tmp_path: Path, pythons: dict[str, Path], stopped: Path) -> None:
    place = shutil.copytree(stopped, tmp_path / "copy", ignore=shutil.ignore_patterns("sockets"))
    with clients(place, pythons, "0.1.0", "0.3.0"):
        result = serve(place, pythons["0.1.0"], "resume")
    assert re.search(
        r"round 2: client 1 gives no answer: run run began with fedpriv 0\.1\.0\+\w{12}, and here is fedpriv 0\.3\.0\+\w{12}, ",
        result.stdout,
    ), result.stdout + result.stderr
