"""Commands that a user may want next, after a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.cli.common import run_folders
from fedpriv.cli.summary import is_scored
from fedpriv.errors import FedprivError
from fedpriv.scores.catalogue import ACCURACY, score_named

if TYPE_CHECKING:
    from fedpriv.config import RunConfig
    from fedpriv.storage.run_folder import RunFolder


def next_commands(run: RunFolder, summary: Mapping[str, Any]) -> Iterator[str]:
    """The commands, each with why."""
    config, folder = run.config(), run.path.parent
    path, beside = shlex.quote(os.path.relpath(run.path)), shlex.quote(os.path.relpath(folder))
    options = "" if _is_default(config) else f" --config {path}/config.yaml"
    for method, why in _other_methods(run, config):
        yield f"fedpriv train --method {method}{options}   {why}"
    if summary["payloads"]["files"]:
        yield f"fedpriv audit {path}   what its messages reveal"
    yield f"fedpriv compare {beside}/*" if _only_runs(folder) else f"fedpriv compare {path} OTHER_RUN"
    if not is_scored(summary):
        yield f"fedpriv probe {path}"
    if (command := ui_command(run.facts["tracking"], folder, beside)) is not None:
        yield command


def _other_methods(run: RunFolder, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Methods to compare with under the same config, with their options, and why; none where it depends on what a mask hides."""
    from fedpriv.data.preprocessing.stored import Preprocessing

    if any(transform["name"] == "mask" for transform in config.wire.transforms):
        return
    if config.method.name != "fedavg":
        yield "fedavg", "the same clients, another method"  # a composed run's objective and aggregation belong to its method
    elif Preprocessing.load(run.preprocessing_file).kind == "rows":
        steps, epochs = config.train.local_steps, config.train.local_epochs  # with steps, the baselines train as many
        as_long = "" if steps is not None else f" --set method.epochs={epochs}"
        yield f"local{as_long}", "what each client reaches alone"
        if config.privacy.level == "none":
            yield f"pooled{as_long}", "all rows in one place: the bound of every federation"
    else:  # MpFedcon's centres are of classes, and no noise covers them
        numbers = score_named(config.eval.metric or ACCURACY.name).of_numbers
        yield "fedrep" if numbers or config.privacy.level != "none" else "mpfedcon", "the same clients, another method"


def ui_command(tracking: Mapping[str, Any], folder: Path, beside: str) -> str | None:
    """The command that shows a run of that folder in MLflow; ``None``: its store is none that ``fedpriv ui`` opens."""
    from fedpriv.tracking import default_uri

    uri = tracking["uri"]
    if tracking["name"] != "mlflow" or uri == "none" or uri.startswith("http"):
        return None
    if uri == default_uri(folder):
        return f"fedpriv ui{'' if beside == 'runs' else f' --runs-dir {beside}'}"
    return f"fedpriv ui --tracking-uri {shlex.quote(uri)}"


def _only_runs(folder: Path) -> bool:
    """Whether ``fedpriv compare`` takes all that a shell's ``*`` names in a folder."""
    try:
        run_folders(tuple(str(path) for path in folder.iterdir() if not path.name.startswith(".")), folder)
    except FedprivError:  # no run, or a damaged one
        return False
    return True


def _is_default(config: RunConfig) -> bool:
    """Whether the config is the default except for the method, so that ``fedpriv train`` without options has the same clients."""
    default = type(config)()
    partition = config.data.partition.model_copy(update={"seed": None})
    same_data = config.data.model_copy(update={"partition": partition}) == default.data
    return (
        same_data and config.eval == default.eval and config.seed == default.seed and config.train.rounds == default.train.rounds
    )
