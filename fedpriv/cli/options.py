"""The flags of ``fedpriv train`` for the most common config keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli.terminal import FilePath, WorkersParam

if TYPE_CHECKING:
    from fedpriv.config import RunConfig

_DATA_FLAGS: dict[str, tuple[str, Any, str]] = {
    "dataset": ("data.name", str, "Data set: a name of `fedpriv data list`, a path, or hf:owner/name."),
    "clients": ("data.clients", int, "Number of registered clients."),
    "partition": ("data.partition.name", str, "How samples are dealt to clients; a name of `fedpriv data list`."),
    "classes-per-client": ("data.partition.classes_per_client", int, "S of the partitions `classes` and `class_subsets`."),
    "alpha": ("data.partition.alpha", float, "Concentration of the Dirichlet partitions."),
    "column": ("data.partition.column", str, "Column of a table whose values are the clients (--partition by_column)."),
    "seed": ("seed", int, "Seed of every random draw."),
    "data-dir": ("data.dir", Path, "Folder with <name>/{train,test}.parquet (or set FEDPRIV_DATA)."),
}
_RUN_FLAGS: dict[str, tuple[str, Any, str]] = {
    "method": ("method.name", str, "A name of `fedpriv methods`."),
    "objective": ("objective.name", str, "Another client's half than the method's; `fedpriv methods` lists them."),
    "aggregation": ("aggregation.name", str, "Another server's half than the method's; without --method the rest is FedAvg's."),
    "model": ("model.name", str, "A name of `fedpriv models`."),
    "encoder": (
        "model.encoder",
        str,
        "Of texts: a transformers model by hub name or folder, minilm or tiny. Default: BERT base.",
    ),
    "tune": ("model.tune", str, "Of texts: what is trained of a pretrained encoder: full, lora or head. Default: head."),
    "selection": ("train.selection", str, "Who takes part: uniform, window, all or schedule."),
    "optimizer": ("train.optimizer", str, "The clients' optimiser: sgd, adam or adamw."),
    "participation": ("train.participation", float, "Share of the clients sampled each round. Default: ten clients."),
    "rounds": ("train.rounds", int, "Number of rounds."),
    "local-epochs": ("train.local_epochs", int, "Local epochs (layered methods: of the encoder phase)."),
    "batch-size": ("train.batch_size", int, "Samples per SGD step."),
    "lr": ("train.lr", float, "Learning rate."),
    "dp": ("privacy.level", str, "Differential privacy: client, sample or none."),
    "noise": ("privacy.noise", float, "Noise multiplier of --dp: standard deviation of the noise over --clip."),
    "clip": ("privacy.clip", float, "Bound on a client's change (--dp client) or a sample's gradient (--dp sample)."),
    "delta": ("privacy.delta", float, "Delta of --dp."),
    "target-epsilon": ("privacy.target_epsilon", float, "Epsilon that the whole run may spend; the noise is found for it."),
    "canaries": ("privacy.canaries", int, "Plant so many canaries, half of them used, to measure the epsilon of --dp."),
    "secure-aggregation": (
        "wire.secure_aggregation",
        bool,
        "The server learns the sum of a round's uploads, and no upload (masks that cancel; at least three clients).",
    ),
    "keep-payloads": (
        "wire.keep_payloads",
        str,
        "Sealed payloads to keep: none, default (first, middle, last round; three clients), all, or rounds such as 1,5,10.",
    ),
    "executor": ("executor.name", str, "How clients are run: auto, sequential or vectorized (groups of them as one wide net)."),
    "workers": (
        "executor.workers",
        WorkersParam(),
        "Processes over which a round's clients are spread, or ray: a cluster's. Results do not depend on it.",
    ),
    "ray-address": ("executor.ray_address", str, "HOST:PORT of the Ray cluster. Default: one of this machine alone."),
    "ray-workers": ("executor.ray_workers", int, "Processes on the Ray cluster. Default: one for each of its cores."),
    "group-size": ("executor.group_size", int, "Clients that a vectorized executor trains together."),
    "compile": ("executor.compile", str, "torch.compile for the net of a group: none, default or reduce-overhead (CUDA graphs)."),
    "device": ("device", str, "Torch device, such as cpu or cuda."),
    "tracking": ("tracking.name", str, "Where records are copied: mlflow (default), tensorboard, or a plug-in's name."),
    "tracking-uri": ("tracking.uri", str, "MLflow tracking URI; 'none' for no tracking. Default: SQLite beside the runs."),
    "run-dir": ("run_dir", Path, "Folder of this run. Default: runs/<date>-<method>-<data>-s<seed>."),
}

_DEFENSE_FLAGS = ("defense", "variance", "mask_layers")

Command = Callable[..., Any]


def config_options(run: bool = True) -> Callable[[Command], Command]:
    """Add ``--config``, ``--set`` and the flags (only those about data unless ``run``); read them with :func:`config_from`."""

    def add(function: Command) -> Command:
        help_set = "Any config key, such as --set method.mu=5; repeatable, strongest."
        function = click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=help_set)(function)
        help_config = "YAML file, as a run writes it (config.yaml)."
        function = click.option("--config", "config_file", type=FilePath(), help=help_config)(function)
        flags = {**_RUN_FLAGS, **_DATA_FLAGS} if run else _DATA_FLAGS
        if run:
            function = _defense_options(function)
        for flag, (_, kind, text) in reversed(flags.items()):
            function = _option(flag, kind, text)(function)
        return function

    return add


def _option(flag: str, kind: Any, text: str) -> Callable[[Command], Command]:
    if kind is bool:
        return click.option("--" + flag, is_flag=True, default=None, help=text)
    return click.option("--" + flag, type=FilePath() if kind is Path else kind, help=text)


def config_from(config_file: Path | None, assignments: tuple[str, ...], flags: dict[str, Any]) -> RunConfig:
    """The config that the options of :func:`config_options` describe: file, then flags, then ``--set``."""
    from fedpriv.config import load_config, parse_assignment, read_yaml
    from fedpriv.plugins import load_plugins

    known = {**_RUN_FLAGS, **_DATA_FLAGS}
    flags = dict(flags)
    added = _transforms(*(flags.pop(name, None) for name in _DEFENSE_FLAGS))
    overrides: dict[str, Any] = {known[name.replace("_", "-")][0]: value for name, value in flags.items() if value is not None}
    if added:
        wire = (read_yaml(config_file) if config_file else {}).get("wire") or {}
        overrides["wire.transforms"] = [*(wire.get("transforms") or [] if isinstance(wire, dict) else []), *added]
    overrides |= dict(parse_assignment(text) for text in assignments)
    config = load_config(config_file, overrides)
    load_plugins(config.plugins, of=str(config_file))
    given = click.get_current_context().meta.get("fedpriv.plugins", ())
    config = config.model_copy(update={"plugins": tuple(dict.fromkeys((*(f.absolute() for f in config.plugins), *given)))})
    _check_partition_options(config, overrides)
    return config


def _check_partition_options(config: RunConfig, asked: dict[str, Any]) -> None:
    """Reject a flag that the partition does not use; a config file may set all options."""
    prefix = "data.partition."
    options = [key.removeprefix(prefix) for key in asked if key.startswith(prefix) and key != prefix + "name"]
    if not options:
        return
    from fedpriv.config import filled
    from fedpriv.data.dealing import partitions
    from fedpriv.data.sources import suggestions
    from fedpriv.errors import UsageError

    name = filled(config, suggestions(config.data.name)).data.partition.name
    for option in options:
        if name in partitions() and option not in partitions()[name].uses:
            users = ", ".join(other for other, dealer in partitions().items() if option in dealer.uses)
            raise UsageError(f"{option} has no effect on the partition {name!r}; it is an option of: {users}")


def _defense_options(function: Command) -> Command:
    """``--defense``, ``--variance``, ``--mask-layers``: shorthands that append to the config's ``wire.transforms``."""
    text = "Append a transform of `fedpriv defenses`, such as gaussian or prune:fraction=0.05; repeatable, in order."
    function = click.option("--defense", multiple=True, metavar="NAME[:OPTION=VALUE,...]", help=text)(function)
    text = "Variance of the noise of --defense gaussian or laplace."
    function = click.option("--variance", type=float, help=text)(function)
    text = "Do not send the net's last N fully connected layers."
    return click.option("--mask-layers", type=int, metavar="N", help=text)(function)


def _transforms(defenses: tuple[str, ...] | None, variance: float | None, mask_layers: int | None) -> list[dict[str, Any]]:
    """The transforms that the shorthands stand for, the mask first."""
    from fedpriv.config import parse_assignment
    from fedpriv.errors import UsageError

    found: list[dict[str, Any]] = [] if mask_layers is None else [{"name": "mask", "last": mask_layers}]
    for text in defenses or ():
        name, _, options = text.partition(":")
        found.append({"name": name} | dict(parse_assignment(one) for one in options.split(",") if one))
    if variance is not None:
        noisy = [one for one in found if one["name"] in ("gaussian", "laplace")]
        if len(noisy) != 1 or "variance" in noisy[0]:
            raise UsageError("--variance needs exactly one --defense gaussian or laplace")
        noisy[0]["variance"] = variance
    return found
