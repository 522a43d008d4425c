"""What a run needs of a client's memory: it is estimated before it is allocated, and the system holds the bound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.deploy.client.client_node import ClientNode
from fedpriv.deploy.client.need import activations
from fedpriv.deploy.client.requires import Requires
from fedpriv.deploy.client.source import Source
from fedpriv.deploy.facts import HANDSHAKE
from fedpriv.deploy.frames import Frame
from fedpriv.deploy.versions import code_version
from fedpriv.models.registry import build_model
from tests.simulation.small import config

MIB = 2**20


def described(folder: Path, requires: Requires, **overrides: Any) -> str | None:
    """The error with which a client of digits answers a config; ``None``: it declares its data."""
    chosen = config("fedavg", **{"data.clients": 2, "train.participation": 1.0, **overrides}).model_dump(mode="json")
    node = ClientNode(0, Source("digits", None, "partition"), folder, requires=requires)
    error = node.answer(
        Frame({"run": HANDSHAKE, "entries": [{"do": "describe", "code": code_version(), "config": chosen}]})
    ).error
    assert error is None or node.data.loaded is None
    return error


def test_what_needs_too_much_is_refused_in_a_line_and_what_fits_is_not(tmp_path: Path) -> None:
    usual = Requires()
    assert described(tmp_path, usual) is None
    assert described(tmp_path, usual, **{"data.image_size": 513}) == (
        "this client's own file requires data.image_size of at most 512 (requires.max_image_side), and not 513"
    )
    assert described(tmp_path, Requires(max_memory=256 * MIB), **{"data.image_size": 512}) == (
        "this client's own file allows 256 MiB of memory (requires.max_memory), and the run needs about 1.89 GiB: "
        "859 images of 512 x 512 pixels (data.image_size)"
    )
    assert described(tmp_path, usual, **{"model.projection": 30_000_000}) == (
        "this client's own file allows nets of at most 1 GiB (requires.max_model_bytes), and the run's has 8.38 GiB"
    )
    assert described(tmp_path, Requires(max_memory=MIB)) == (
        "this client's own file allows 1 MiB of memory (requires.max_memory), and the run needs about 2.44 MiB: "
        "a net of 87784 bytes and batches of 20"
    )


def test_activations_are_those_of_a_net_with_numbers() -> None:
    with torch.device("meta"):
        net = build_model("lenet5", (3, 32, 32), 10)
    real, held = build_model("lenet5", (3, 32, 32), 10), list[int]()
    for module in real.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, given, output: held.append(output.numel() * 4))
    real(torch.zeros(7, 3, 32, 32))
    assert activations(net, 7) == 2 * sum(held)


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from tests.deploy.test_need import Requires, described, config
described(Path(sys.argv[1]) / "warm", Requires())
held = lambda name: next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
room = held("VmSize") + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (room, room))
before = held("VmHWM")
print(described(Path(sys.argv[1]) / "limited", Requires(), **eval(sys.argv[2])))
print(held("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("config", [{"data.image_size": 4096}, {"model.projection": 3_000_000}], ids=["images", "net"])
def test_what_is_refused_costs_less_than_64_mib(tmp_path: Path, config: dict[str, Any]) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path), repr(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    error, cost = ended.stdout.splitlines()
    assert "this client's own file" in error and int(cost) < 64 * MIB


@pytest.mark.slow
def test_the_system_holds_what_an_estimate_misses(tmp_path: Path) -> None:
    code = (
        "import torch; from fedpriv.deploy.client.need import hold; from fedpriv.deploy.client.requires import Requires\n"
        f"hold(Requires(max_memory={256 * MIB})); torch.ones({16 * MIB})\n"
        f"try: torch.ones({128 * MIB})\nexcept RuntimeError: print('refused')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "refused\n", ended.stderr
