"""The flags of ``fedpriv train`` for the most common config keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli.common import loading
from fedpriv.cli.terminal import FilePath, WorkersParam

if TYPE_CHECKING:
    from fedpriv.config import RunConfig

_DATA_FLAGS: dict[str, tuple[Any, str]] = {
    "dataset": (str, "Data set: a name of `fedpriv data list`, a path, or hf:owner/name."),
    "clients": (int, "Number of registered clients."),
    "partition": (str, "How samples are partitioned among clients; a name of `fedpriv data list`."),
    "classes-per-client": (int, "S of the partitions `classes` and `class_subsets`."),
    "alpha": (float, "Concentration of the Dirichlet partitions."),
    "column": (str, "Column of a table whose values are the clients (--partition by_column)."),
    "seed": (int, "Seed of every random draw."),
    "data-dir": (Path, "Folder with <name>/{train,test}.parquet (or set FEDPRIV_DATA)."),
}
_RUN_FLAGS: dict[str, tuple[Any, str]] = {
    "method": (str, "A name of `fedpriv methods`."),
    "objective": (str, "Client objective instead of the method's own; `fedpriv methods` lists them."),
    "aggregation": (str, "Server aggregation instead of the method's own; without --method, all else is FedAvg's."),
    "model": (str, "A name of `fedpriv models`, or package.module:Name of a net of your own."),
    "encoder": (
        str,
        "For texts: a transformers model by hub name or folder, minilm or tiny. Default: BERT base.",
    ),
    "tune": (str, "For texts: trained part of a pretrained encoder: full, lora or head. Default: head."),
    "init": (Path, "File with weights to start from: .safetensors, or a state dict. Default: drawn from the seed."),
    "selection": (str, "Who takes part: uniform, window, all or schedule."),
    "optimizer": (str, "The clients' optimiser: sgd, adam, adamw, or another elementwise one of torch.optim."),
    "participation": (float, "Share of the clients sampled each round. Default: as the data set suggests, else ten clients."),
    "rounds": (int, "Number of rounds."),
    "local-epochs": (int, "Local epochs (layered methods: of the encoder phase)."),
    "batch-size": (int, "Samples per SGD step."),
    "lr": (float, "Learning rate."),
    "lr-schedule": (str, "Learning rate over the rounds, such as cosine:eta_min=1e-4 or step:step_size=10. Default: constant."),
    "dp": (str, "Differential privacy: client, sample or none."),
    "noise": (float, "Noise multiplier of --dp: standard deviation of the noise over --clip."),
    "clip": (float, "Bound on a client's change (--dp client) or a sample's gradient (--dp sample)."),
    "delta": (float, "Delta of --dp."),
    "target-epsilon": (float, "Epsilon that the whole run may spend; the noise is computed for it."),
    "canaries": (int, "Number of canaries to plant, to measure the epsilon of --dp; half of them are used."),
    "secure-aggregation": (
        bool,
        "The server learns only the sum of a round's uploads (pairwise masks that cancel; at least three clients).",
    ),
    "keep-payloads": (
        str,
        "Messages to keep: none, default (first, middle, last round; three clients), all, or rounds such as 1,5,10.",
    ),
    "executor": (str, "How clients are run: auto, sequential or vectorized (groups of them as one wide net)."),
    "workers": (
        WorkersParam(),
        "Processes over which a round's clients are spread, auto (one for each core that has enough to do), or ray: a cluster's. "
        "Results do not depend on it.",
    ),
    "ray-address": (str, "HOST:PORT of the Ray cluster. Default: one of this machine alone."),
    "ray-workers": (int, "Processes on the Ray cluster. Default: one for each of its cores."),
    "group-size": (int, "Clients that a vectorized executor trains together."),
    "compile": (str, "torch.compile for the net of a group: none, default or reduce-overhead (CUDA graphs)."),
    "device": (str, "Torch device, such as cpu or cuda."),
    "tracking": (str, "Where records are copied: mlflow (default), tensorboard, or a plug-in's name."),
    "tracking-uri": (str, "MLflow tracking URI; 'none' for no tracking. Default: SQLite beside the runs."),
    "run-dir": (Path, "Folder of this run. Default: runs/<date>-<method>-<data>-s<seed>."),
    "title": (str, "Title of the run, on the audit's page and in MLflow."),
    "owner": (str, "Who answers for the run; shown as the title is."),
    "data-description": (str, "What the data are, for a reader who does not know them; shown as the title is."),
}

Command = Callable[..., Any]


_SET = "Any config key, such as --set method.mu=5; repeatable, overrides all else."


def config_options(run: bool = True, help_set: str = _SET) -> Callable[[Command], Command]:
    """Add ``--config``, ``--set`` and the flags (only those about data unless ``run``); read them with :func:`config_from`."""

    def add(function: Command) -> Command:
        function = click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help=help_set)(function)
        help_config = "YAML file, as a run writes it (config.yaml)."
        function = click.option("--config", "config_file", type=FilePath(), help=help_config)(function)
        flags = {**_RUN_FLAGS, **_DATA_FLAGS} if run else _DATA_FLAGS
        if run:
            function = _defense_options(function)
        for flag, (kind, text) in reversed(flags.items()):
            function = _option(flag, kind, text)(function)
        return function

    return add


def _option(flag: str, kind: Any, text: str) -> Callable[[Command], Command]:
    if kind is bool:
        return click.option("--" + flag, is_flag=True, default=None, help=text)
    return click.option("--" + flag, type=FilePath() if kind is Path else kind, help=text)


def config_from(config_file: Path | None, assignments: tuple[str, ...], flags: dict[str, Any], here: bool = False) -> RunConfig:
    """The config that the options of :func:`config_options` describe: file, then flags, then ``--set``.

    Args:
        here: as for :func:`fedpriv.api.keys.config_of`.
    """
    from fedpriv.api.keys import SHORTHANDS, config_of
    from fedpriv.config import parse_assignment

    assigned = dict(parse_assignment(text) for text in assignments)
    replaced = SHORTHANDS if "wire.transforms" in assigned else ()
    keys = {name: value for name, value in flags.items() if value is not None and name not in replaced}
    config = config_of(config_file, keys | assigned, here, loading)
    given = click.get_current_context().meta.get("fedpriv.plugins", ())
    return config.model_copy(update={"plugins": tuple(dict.fromkeys((*config.plugins, *given)))})


def _defense_options(function: Command) -> Command:
    """``--defense``, ``--variance``, ``--mask-layers``: shorthands that append to the config's ``wire.transforms``."""
    text = "Append a transform of `fedpriv defenses`, such as gaussian or prune:fraction=0.05; repeatable, in order."
    function = click.option("--defense", multiple=True, metavar="NAME[:OPTION=VALUE,...]", help=text)(function)
    text = "Variance of the noise of --defense gaussian or laplace."
    function = click.option("--variance", type=float, help=text)(function)
    text = "Do not send the net's last N fully connected layers."
    return click.option("--mask-layers", type=int, metavar="N", help=text)(function)
