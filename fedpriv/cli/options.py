"""The flags for what people change most; each is a config key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fedpriv.config import RunConfig

_DATA_FLAGS: dict[str, tuple[str, Any, str]] = {
    "dataset": ("data.name", str, "Data set: a name of `fedpriv data list`, or the path of an image folder or parquet."),
    "clients": ("data.clients", int, "Number of registered clients."),
    "partition": ("data.partition.name", str, "How samples are dealt to clients; `fedpriv data list` names the ways."),
    "classes-per-client": ("data.partition.classes_per_client", int, "S of the partition `classes`."),
    "alpha": ("data.partition.alpha", float, "Concentration of the Dirichlet partitions."),
    "seed": ("seed", int, "Seed of every random draw."),
    "data-dir": ("data.dir", Path, "Folder with <name>/{train,test}.parquet (or set FEDPRIV_DATA)."),
}
_RUN_FLAGS: dict[str, tuple[str, Any, str]] = {
    "method": ("method.name", str, "A name of `fedpriv methods`."),
    "model": ("model.name", str, "A name of `fedpriv models`."),
    "participation": ("train.participation", float, "Share of the clients sampled each round. Default: ten clients."),
    "rounds": ("train.rounds", int, "Number of rounds."),
    "local-epochs": ("train.local_epochs", int, "Local epochs (layered methods: of the encoder phase)."),
    "batch-size": ("train.batch_size", int, "Samples per SGD step."),
    "lr": ("train.lr", float, "Learning rate."),
    "device": ("device", str, "Torch device, such as cpu or cuda."),
    "tracking-uri": ("tracking.uri", str, "MLflow tracking URI; 'none' for no tracking. Default: SQLite beside the runs."),
    "run-dir": ("run_dir", Path, "Folder of this run. Default: runs/<date>-<method>-<data>-s<seed>."),
}

Command = Callable[..., Any]


def config_options(run: bool = True) -> Callable[[Command], Command]:
    """Add ``--config``, ``--set`` and the flags (only those about data unless ``run``); read them with :func:`config_from`."""

    def add(function: Command) -> Command:
        help_set = "Any config key, such as --set method.mu=5; repeatable, strongest."
        function = click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=help_set)(function)
        help_config = "YAML file, as a run writes it (config.yaml)."
        function = click.option("--config", "config_file", type=click.Path(path_type=Path), help=help_config)(function)
        flags = {**_RUN_FLAGS, **_DATA_FLAGS} if run else _DATA_FLAGS
        for flag, (_, kind, text) in reversed(flags.items()):
            function = click.option("--" + flag, type=click.Path(path_type=Path) if kind is Path else kind, help=text)(function)
        return function

    return add


def config_from(config_file: Path | None, assignments: tuple[str, ...], flags: dict[str, Any]) -> RunConfig:
    """The config that the options of :func:`config_options` describe: file, then flags, then ``--set``."""
    from fedpriv.config import load_config, parse_assignment

    known = {**_RUN_FLAGS, **_DATA_FLAGS}
    overrides = {known[name.replace("_", "-")][0]: value for name, value in flags.items() if value is not None}
    overrides |= dict(parse_assignment(text) for text in assignments)
    config = load_config(config_file, overrides)
    _check_partition_options(config, overrides)
    return config


def _check_partition_options(config: RunConfig, asked: dict[str, Any]) -> None:
    """Refuse an option that was asked for by hand and means nothing to the partition; a file may hold them all."""
    prefix = "data.partition."
    options = [key.removeprefix(prefix) for key in asked if key.startswith(prefix) and key != prefix + "name"]
    if not options:
        return
    from fedpriv.data.partition import USES
    from fedpriv.errors import UsageError

    name = config.data.partition.name
    for option in options:
        if name in USES and option not in USES[name]:
            users = ", ".join(other for other, used in USES.items() if option in used)
            raise UsageError(f"{option} means nothing to the partition {name!r}; it is an option of: {users}")
