"""What computed a run: versions, commit, processor and plug-ins, as ``run.json`` notes them."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig
from fedpriv.plugins import contents
from fedpriv.storage.run_folder import RunFolder

PACKAGES = ("fedpriv", "torch", "torchvision", "numpy", "datasets", "flwr-datasets", "safetensors", "mlflow", "opacus")
CHECKOUT = "FEDPRIV_CHECKOUT"
"""Environment variable with a folder of the git checkout whose commit a run names, if it is not that of the working folder."""


def _made_by(config: RunConfig) -> dict[str, Any]:
    """The facts on what computes a run."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "processor": processor(),
        "plugins": _own_code(config),
    }


def _own_code(config: RunConfig) -> dict[str, str]:
    """SHA-256 (hex) of the files of plug-ins and of a net of the user's own, by module name."""
    from fedpriv.models.user_net import contents_of_user_net  # with torch

    return contents_of_user_net(config.model.name) | contents(config.plugins)


def first_facts(config: RunConfig, folder: RunFolder, hashes: Mapping[str, str], tracking_uri: str) -> dict[str, Any]:
    """The facts of a run before its first round.

    Args:
        hashes: of its data, by the name of the fact.
    """
    return {
        "run_id": folder.path.name,
        "method": config.called,
        "dataset": config.data.name,
        "seed": config.seed,
        "created_ms": int(time.time() * 1000),
        "status": "running",
        **_made_by(config),
        **hashes,
        "config_fingerprint": config.fingerprint(),
        "device": config.device,
        "tracking": config.tracking.model_dump() | {"uri": tracking_uri},
    }


def continued(facts: Mapping[str, Any], config: RunConfig, round: int) -> dict[str, Any]:
    """What to add to the facts of a run that goes on after ``round`` rounds; empty where nothing has changed since it began.

    Each entry of ``continued`` has the round, and those of commit, versions, processor and plug-ins that differ from what was
    before.
    """
    now = _made_by(config)
    known = {name: facts.get(name) for name in now}
    for earlier in facts.get("continued", []):
        known |= earlier
    changed = {name: value for name, value in now.items() if value and value != known[name]}
    return {"continued": [*facts.get("continued", []), {"after_round": round, **changed}]} if changed else {}


def changed_code(facts: Mapping[str, Any], config: RunConfig) -> list[str]:
    """The plug-ins, and the modules of a net of the user's own, whose content is not what the run began with.

    Runs of earlier versions do not say what that was.
    """
    then, files = facts.get("plugins") or {}, {file.stem: file.name for file in config.plugins}
    now = _own_code(config)
    return [files.get(name, f"the module {name}") for name, content in now.items() if then.get(name, content) != content]


def code_of(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The hashes, by module, of plug-ins and of a net of the user's own: those that a run began with, and that continued it."""
    return [part["plugins"] for part in (facts, *(facts.get("continued") or [])) if part.get("plugins")]


def other_code(facts: Mapping[str, Any], config: RunConfig) -> list[str]:
    """As :func:`changed_code`, of every part of a run: also of rounds by which it was continued."""
    return list(dict.fromkeys(name for code in code_of(facts) for name in changed_code({"plugins": code}, config)))


@cache  # a process may start many runs, and each version is parsed out of its package's metadata
def versions() -> dict[str, str]:
    """The installed versions of the packages that numbers depend on."""
    return {name: version(name) for name in PACKAGES}


def git_commit() -> str | None:
    """The commit of the working folder, or of :data:`CHECKOUT`, with ``-dirty`` where it was changed; ``None`` outside one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        folder = os.environ.get(CHECKOUT) or None
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False, encoding="utf-8")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def processor() -> str:
    """The kind of processor, by which libraries choose their kernels: name, family, model and widest vector unit, as Linux says
    it; elsewhere what Python knows."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return platform.processor() or platform.machine()
    said = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = said.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    name = said.get("model name", platform.machine())
    return f"{name} family {said.get('cpu family')} model {said.get('model')} {vectors}".strip()
