"""Controls show whether an attack works where it is tried: how one is run, and the cache of their results.

A broken attack makes every defence look good, and a leaking harness makes every attack look good.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.attacks.core.doing import doing
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable


@dataclass(frozen=True)
class Control:
    """The result of a control.

    Attributes:
        name: ``positive``: the attack must succeed; ``negative``: it must find nothing; ``same net``: it must succeed on the net
            that it attacks.
        sentence: what the attack found, and what was needed.
        cpu_seconds: measured when the control was run, perhaps by an earlier process; ``None``: it has no cost of its own.
    """

    name: str
    passed: bool
    sentence: str
    cpu_seconds: float | None


def run_control(name: str, attack: str, tried_on: str, check: Callable[[], tuple[bool, str]]) -> Control:
    """Run and time a control of an attack. If the attack refuses the messages, it passes a negative control and no other.

    Args:
        attack: the attack's name.
        tried_on: the messages, as in "refused undefended images".
        check: runs the attack; returns whether the control is passed, and its sentence.
    """
    began = time.process_time()
    try:
        with doing(f"{name} control of {attack}"):
            passed, sentence = check()
    except Inapplicable as refusal:
        passed, sentence = name == "negative", f"{attack} refused {tried_on} ({refusal})"
    return Control(name, passed, sentence, time.process_time() - began)


def behind_a_message(samples: int) -> str:
    """A clause on the number of samples behind each message, if there are several."""
    return "" if samples == 1 else f", {samples} behind one message"


def noise_like(observation: Observation, generator: torch.Generator) -> dict[str, Tensor]:
    """Random tensors with the names, shapes and norms of the shared ones."""
    noisy = {}
    for name, tensor in observation.shared.items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        noisy[name] = noise * tensor.norm() / noise.norm()
    return noisy


def folder() -> Path:
    """The folder of the cache: ``$FEDPRIV_CONTROLS``, else ``fedpriv/controls`` in the user's cache."""
    if own := os.environ.get("FEDPRIV_CONTROLS"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedpriv" / "controls"


def cached_controls(attack: object, *facts: object, compute: Callable[[], Sequence[Control]]) -> tuple[Control, ...]:
    """Controls from the cache; computed, and stored if the cache can be written, where it lacks them.

    Args:
        attack: its class, options and source are part of the key, as are the source of this package, Python and PyTorch.
        facts: everything else that the controls depend on; their ``repr`` is part of the key.
    """
    kind = type(attack)
    key = repr((kind.__module__, kind.__qualname__, attack, facts, _source(inspect.getfile(kind)), code()))
    path = folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        return tuple(Control(**control) for control in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    controls = tuple(compute())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False, encoding="utf-8") as draft:
            json.dump([asdict(control) for control in controls], draft)
        Path(draft.name).replace(path)
    except OSError:
        pass  # a full disk, or a home that cannot be written
    return controls


@cache
def code(root: Path = Path(__file__).parents[1]) -> str:
    """A hash of all Python files of a package (default: this one), of Python and of PyTorch."""
    digest = hashlib.sha256(f"{sys.version} {version('torch')}".encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} ".encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _source(file: str) -> str:
    """A hash of an attack's file, which may belong to another package."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
