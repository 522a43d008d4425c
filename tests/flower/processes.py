"""Flower's SuperLink and SuperNodes as processes on 127.0.0.1, and apps that ``flwr run`` submits to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpriv.deploy.flower.internals import SILENT
from fedpriv.deploy.flower.machines import free_port
from fedpriv.deploy.flower.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "your-flower-app.ipynb"
"""Its cells are the files of an app of Flower's documented form."""
NUMPY_APP = Path(__file__).parent / "numpy_app"
"""Its two modules with ``NumPyClient``."""
LONGEST = 540.0
"""Seconds that ``flwr run`` may take: Ray and Flower take minutes to start on a busy machine."""
NODES = 2
COMMON = ("--insecure", "--host", "127.0.0.1", "--port")


@dataclass(frozen=True)
class Link:
    """A running SuperLink.

    Attributes:
        federation: options of ``flwr run``.
    """

    folder: Path
    federation: tuple[str, ...]
    supervisor: Supervisor

    def run(self, app: Path, model: Path, config: str = "num-server-rounds=2") -> dict[str, bytes]:
        """Run an app to its end: the bytes of each tensor of the final model.

        Args:
            model: the file that the app's server writes.
            config: of the run, further than that.
        """
        import torch

        config = f'model-file="{model}" {config}'
        command = ["flwr", "run", str(app), "tested", "--stream", "--run-config", config, *self.federation]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, **SILENT, "FLWR_HOME": str(self.folder / "flower"), "PATH": path}
        log = self.folder / "run.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + LONGEST
            while process.poll() is None and time.monotonic() < until:
                self.supervisor.look()
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
        said = log.read_text(errors="replace")
        assert process.returncode == 0 and model.exists(), f"{said}\n{self.supervisor.log.read_text(errors='replace')}"
        return {name: tensor.numpy().tobytes() for name, tensor in torch.load(model).items()}


@contextmanager
def running_link(folder: Path, simulated: bool, nodes: int = NODES) -> Iterator[Link]:
    """A block in which a SuperLink runs, for simulations or with SuperNodes."""
    home, port = folder / "flower", free_port()
    home.mkdir(parents=True)
    text = f'[superlink]\ndefault = "tested"\n\n[superlink.tested]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(text, encoding="utf-8")
    with Supervisor(folder / "log.txt", folder, {"FLWR_HOME": str(home), "PYTHONPATH": str(ROOT)}) as supervisor:
        code = "from flwr.superlink.cli import flower_superlink; flower_superlink()"
        mode = ["--simulation"] if simulated else []
        supervisor.start("the SuperLink", code, *COMMON, port, *mode, "--disable-runtime-dependency-installation")
        for number in [] if simulated else range(nodes):
            code = "from flwr.supernode.cli import flower_supernode; flower_supernode()"
            config = f"partition-id={number} num-partitions={nodes}"
            superlink = f"127.0.0.1:{port}"
            supervisor.start(f"node {number}", code, *COMMON, free_port(), "--superlink", superlink, "--node-config", config)
        _await(port, supervisor)
        options = ("--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1") if simulated else ()
        yield Link(folder, options, supervisor)


def _await(port: int, supervisor: Supervisor) -> None:
    import httpx

    until = time.monotonic() + LONGEST
    while True:
        supervisor.look()
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=1, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            assert time.monotonic() < until, "the SuperLink does not answer"
        time.sleep(0.5)


def documented_app(folder: Path, *, numpy_client: bool = False, mods: str = "") -> Path:
    """A copy of the documented app; with mods, by one line more in the file of its client.

    Args:
        mods: of the ``ClientApp``, in Python.
    """
    package = folder / "images_app"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for cell in json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"]:
        first, _, text = "".join(cell["source"]).partition("\n")
        if first.startswith("%%writefile"):
            (folder / first.split()[1].partition("/")[2]).write_text(text, encoding="utf-8")
    if numpy_client:
        for file in NUMPY_APP.glob("*_app.py"):
            shutil.copy(file, package)
    if mods:
        client = package / "client_app.py"
        text = client.read_text(encoding="utf-8")
        given = "client_fn=client_fn, " if numpy_client else ""
        plain = f"app = ClientApp({given.rstrip(', ')})\n"
        assert text.count(plain) == 1
        client.write_text(
            text.replace(plain, f"import fedpriv.flower\napp = ClientApp({given}mods=[{mods}])\n"), encoding="utf-8"
        )
    return folder
