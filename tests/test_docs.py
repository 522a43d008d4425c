"""What README and CONTRIBUTING show works as shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from fedpriv.cli import main
from fedpriv.methods import registry
from fedpriv.simulation.loop import Simulation

ROOT = Path(__file__).parent.parent


def python_of(name: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    return str(code)


def commands() -> list[str]:
    """Every ``fedpriv ...`` that stands on an indented line of its own, without the comment."""
    documents = [ROOT / name for name in ("README.md", "experiments/README.md", "mlflow/README.md")]
    lines = [line for document in documents for line in document.read_text().splitlines()]
    shown = [line for line in lines if re.match(r"    (.*uv run )?fedpriv ", line)]
    return sorted({re.sub(r"\s+#.*", "", line).partition("fedpriv ")[2] for line in shown})


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The methods that a document's code registers are forgotten after the test."""
    monkeypatch.setattr(registry, "_known", registry.all())
    return registry._known


def test_the_method_of_the_readme(methods: dict[str, Any], simulate: Callable[..., Simulation]) -> None:
    exec(python_of("README.md"), {})
    simulation = simulate("lg-fedavg", **{"train.rounds": 2})
    assert {name.split(".")[0] for name in simulation.federation.method.shared_names} == {"projector", "head"}
    assert simulation.progress.total_bytes_up > 0


def test_the_method_of_contributing(methods: dict[str, Any], simulate: Callable[..., Simulation]) -> None:
    exec(python_of("CONTRIBUTING.md"), {})
    plain, without, with_term = (
        simulate(method, **{"train.rounds": 2, **options})
        for method, options in (("fedavg", {}), ("prox-example", {"method.mu": 0}), ("prox-example", {"method.mu": 1}))
    )
    assert torch.equal(plain.server.row, without.server.row)
    moved = [(simulation.server.row - simulation.federation.initial).norm() for simulation in (plain, with_term)]
    assert moved[1] < 0.98 * moved[0]


@pytest.mark.parametrize("line", commands())
def test_commands_in_the_documents_exist(line: str) -> None:
    command: click.Command = main
    words = shlex.split(line.replace("…", ""))
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    command.make_context("fedpriv", words)  # parses, and runs nothing
