"""What a run was computed with: versions, commit, processor and plug-ins, for ``run.json``."""

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
"""Environment variable with the git checkout whose commit is noted, if it is not that of the working folder."""


def _computed_with(config: RunConfig) -> dict[str, Any]:
    """The facts on what computes a run now."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "processor": processor(),
        "plugins": _user_code(config),
    }


def _user_code(config: RunConfig) -> dict[str, str]:
    """SHA-256 (hex) of the files of plug-ins and of the user's net, by module name."""
    from fedpriv.models.user_net import hash_user_net  # imports torch

    return hash_user_net(config.model.name) | contents(config.plugins)


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
        **_computed_with(config),
        **hashes,
        "config_fingerprint": config.fingerprint(),
        "device": config.device,
        "tracking": config.tracking.model_dump() | {"uri": tracking_uri},
    }


def continued(facts: Mapping[str, Any], config: RunConfig, round: int) -> dict[str, Any]:
    """What to add to the facts of a run that is resumed after ``round`` rounds; empty if it is computed as before.

    Each entry of ``continued`` has the round, and whichever of commit, versions, processor and plug-ins changed.
    """
    now = _computed_with(config)
    known = {name: facts.get(name) for name in now}
    for earlier in facts.get("continued", []):
        known |= earlier
    changed = {name: value for name, value in now.items() if value and value != known[name]}
    return {"continued": [*facts.get("continued", []), {"after_round": round, **changed}]} if changed else {}


def changed_code(facts: Mapping[str, Any], config: RunConfig) -> list[str]:
    """The plug-ins, and the modules of the user's net, that were changed since the run began."""
    before, files = facts.get("plugins") or {}, {file.stem: file.name for file in config.plugins}
    now = _user_code(config)
    return [files.get(name, f"the module {name}") for name, content in now.items() if before.get(name, content) != content]


def code_of(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """The hashes of plug-ins and of the user's net, by module, for each part of a run: as it began, and as it was resumed."""
    return [part["plugins"] for part in (facts, *(facts.get("continued") or [])) if part.get("plugins")]


def other_code(facts: Mapping[str, Any], config: RunConfig) -> list[str]:
    """The plug-ins, and the modules of the user's net, that differ now from those of any part of a run."""
    return list(dict.fromkeys(name for code in code_of(facts) for name in changed_code({"plugins": code}, config)))


@cache  # reading the metadata of packages takes time
def versions() -> dict[str, str]:
    """The installed versions of the packages that numbers depend on."""
    return {name: version(name) for name in PACKAGES}


def git_commit() -> str | None:
    """The commit of the working folder, or of :data:`CHECKOUT`, with ``-dirty`` if it has changes; ``None``: not a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        folder = os.environ.get(CHECKOUT) or None
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False, encoding="utf-8")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def processor() -> str:
    """The kind of processor, on which libraries' kernels depend: name, family, model and widest vector unit as in Linux; on other
    systems what Python knows."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    flags = facts.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "")
    name = facts.get("model name", platform.machine())
    return f"{name} family {facts.get('cpu family')} model {facts.get('model')} {vectors}".strip()
