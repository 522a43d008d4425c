"""The short names of the most common config keys, and a config from short names, sections and dotted keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from fedpriv.config import RunConfig

KEYS = {
    "dataset": "data.name",
    "clients": "data.clients",
    "partition": "data.partition.name",
    "classes_per_client": "data.partition.classes_per_client",
    "alpha": "data.partition.alpha",
    "column": "data.partition.column",
    "seed": "seed",
    "data_dir": "data.dir",
    "method": "method.name",
    "objective": "objective.name",
    "aggregation": "aggregation.name",
    "model": "model.name",
    "roles": "model.roles",
    "encoder": "model.encoder",
    "tune": "model.tune",
    "init": "model.init",
    "selection": "train.selection",
    "optimizer": "train.optimizer",
    "participation": "train.participation",
    "rounds": "train.rounds",
    "local_epochs": "train.local_epochs",
    "batch_size": "train.batch_size",
    "lr": "train.lr",
    "lr_schedule": "train.lr_schedule",
    "dp": "privacy.level",
    "noise": "privacy.noise",
    "clip": "privacy.clip",
    "delta": "privacy.delta",
    "target_epsilon": "privacy.target_epsilon",
    "canaries": "privacy.canaries",
    "secure_aggregation": "wire.secure_aggregation",
    "keep_payloads": "wire.keep_payloads",
    "executor": "executor.name",
    "workers": "executor.workers",
    "ray_address": "executor.ray_address",
    "ray_workers": "executor.ray_workers",
    "group_size": "executor.group_size",
    "compile": "executor.compile",
    "device": "device",
    "tracking": "tracking.name",
    "tracking_uri": "tracking.uri",
    "run_dir": "run_dir",
    "title": "about.title",
    "owner": "about.owner",
    "data_description": "about.data",
}
"""Short name -> config key: the options of ``fedpriv train`` with underscores, and ``roles``."""
Values = Mapping[str, Any]
"""Keys of a section of the config, such as ``{"momentum": 0.9}``."""


class Keys(TypedDict, total=False):
    """The keywords of :func:`fedpriv.train`, for type checkers: short names, sections and keys without a section."""

    dataset: Any
    clients: int
    partition: str
    classes_per_client: int
    alpha: float
    column: str | None
    seed: int
    data_dir: str | os.PathLike[str] | None
    method: str | Values
    objective: str | Values | None
    aggregation: str | Values | None
    model: str | Callable[..., object] | Values | None
    roles: Mapping[str, str] | None
    encoder: str | None
    tune: Literal["full", "lora", "head"] | None
    init: str | os.PathLike[str] | None
    selection: Literal["uniform", "window", "all", "schedule"] | None
    optimizer: Literal["sgd", "adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "rprop", "adagrad", "adadelta", "asgd"]
    participation: float | None
    rounds: int
    local_epochs: int
    batch_size: int
    lr: float
    lr_schedule: str | Values | None
    dp: Literal["none", "client", "sample"]
    noise: float | None
    clip: float
    delta: float
    target_epsilon: float | None
    canaries: int
    secure_aggregation: bool
    keep_payloads: Literal["none", "default", "all"] | Sequence[int]
    executor: Literal["auto", "sequential", "vectorized"] | Values
    workers: int | Literal["auto", "ray"]
    ray_address: str | None
    ray_workers: int | None
    group_size: int | None
    compile: Literal["none", "default", "reduce-overhead"]
    device: str
    tracking: str | Values
    tracking_uri: str | None
    run_dir: str | os.PathLike[str] | None
    title: str | None
    owner: str | None
    data_description: str | None
    defense: str | Sequence[str] | None
    variance: float | None
    mask_layers: int | None
    data: Values
    train: Values
    eval: Values
    about: Values
    wire: Values
    privacy: Values
    threads: int
    plugins: Sequence[str | os.PathLike[str]]


SHORTHANDS = ("defense", "variance", "mask_layers")
"""Names that append to the config's ``wire.transforms``."""
_MAY_BE_NONE = ("objective", "aggregation")
"""Sections that a config may leave out, and so a run have the method's own."""


def config_of(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None,
    keys: Mapping[str, Any],
    here: bool = False,
    loading: Callable[[], None] = lambda: None,
) -> RunConfig:
    """A config with keys laid over it.

    Args:
        config: a config, its values as nested mappings, or a YAML file as a run writes it; ``None``: the defaults.
        keys: by short name (:data:`KEYS`), by dotted key, or by section (a mapping); later ones win. ``model`` may be a class or
            function that returns a net, ``dataset`` the data (:func:`fedpriv.data.user_data.objects.name_of`).
        here: whether the run's clients train on this machine, on its device and its files.
        loading: called before PyTorch is imported, if the keys need it.

    Raises:
        UsageError: an unknown key (with the nearest one), a value out of range, or a file that cannot be read.
    """
    from fedpriv.api.request import check_machine, check_names
    from fedpriv.api.unused_options import check_effects
    from fedpriv.plugins import load_plugins

    where = _where(config)
    config, overrides = parsed(config, keys)
    load_plugins(config.plugins, of=where.removeprefix("config ") if where != "config" else "the config")
    config = config.model_copy(update={"plugins": tuple(file.absolute() for file in config.plugins)})
    check_names(config)
    if here:
        check_machine(config)
    check_effects(config, overrides, loading)
    return config


def parsed(
    config: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None, keys: Mapping[str, Any]
) -> tuple[RunConfig, dict[str, Any]]:
    """The config of :func:`config_of` without its checks, which may load PyTorch; and what was laid over it, by dotted key."""
    from fedpriv.config import laid_over, read_yaml

    where = _where(config)
    values = read_yaml(Path(config)) if isinstance(config, str | os.PathLike) else _values(config)
    overrides = dotted(keys)
    if overrides.get("executor.workers", "ray") != "ray":  # the config may be of a run on a cluster
        overrides = {"executor.ray_address": None, "executor.ray_workers": None} | overrides
    if "model.init" in overrides:  # the config may be of a run that started from another file
        overrides = {"model.init_hash": None} | overrides
    shorthands = {name: overrides.pop(name, None) for name in SHORTHANDS}
    if added := transforms(**shorthands):
        wire = values.get("wire") or {}
        before = overrides.get("wire.transforms", wire.get("transforms") if isinstance(wire, Mapping) else ()) or ()
        overrides["wire.transforms"] = [*before, *added]
    if not isinstance(data := overrides.get("data.name"), str | None):
        from fedpriv.data.user_data.objects import name_of as written

        overrides["data.name"] = str(written(data))
    if callable(model := overrides.get("model.name")):
        from fedpriv.models.user_net import name_of

        overrides["model.name"] = name_of(model)
    return laid_over(values, overrides, where), overrides


def _where(config: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None) -> str:
    """What a config is, for errors."""
    return f"config {os.fspath(config)}" if isinstance(config, str | os.PathLike) else "config"


def dotted(keys: Mapping[str, Any]) -> dict[str, Any]:
    """``{"lr": 0.1, "train": {"momentum": 0}}`` -> ``{"train.lr": 0.1, "train.momentum": 0}``; paths become texts.

    Raises:
        UnknownName: a name that is neither short nor a section of the config.
    """
    from fedpriv.config import RunConfig
    from fedpriv.config.sections import keys_of
    from fedpriv.errors import UnknownName

    flat: dict[str, Any] = {}
    for name, value in keys.items():
        if isinstance(value, Mapping) and name in RunConfig.model_fields:
            flat |= {f"{name}.{inner}": item for inner, item in _flat(value)}
        elif "." in name or name in (*RunConfig.model_fields, *KEYS, *SHORTHANDS):
            key = name if value is None and name in _MAY_BE_NONE else KEYS.get(name, name)
            flat[key] = os.fspath(value) if isinstance(value, os.PathLike) else value
        else:
            known = {*RunConfig.model_fields, *KEYS, *SHORTHANDS}
            raise UnknownName("key in config", name, known, within=keys_of(RunConfig))
    return flat


def transforms(
    defense: str | Sequence[str] | None = None, variance: float | None = None, mask_layers: int | None = None
) -> list[dict[str, Any]]:
    """The transforms that the shorthands stand for, the mask first: ``"prune:fraction=0.05"``, the variance of a noise, the
    number of fully connected layers that are not sent."""
    from fedpriv.config import parse_assignment
    from fedpriv.errors import UsageError

    transforms: list[dict[str, Any]] = [] if mask_layers is None else [{"name": "mask", "last": mask_layers}]
    for text in (defense,) if isinstance(defense, str) else defense or ():
        name, _, options = text.partition(":")
        given = dict(parse_assignment(option, f"--defense {name}:", "variance=0.01") for option in options.split(",") if option)
        transforms.append({"name": name} | given)
    if variance is not None:
        noisy = [transform for transform in transforms if transform["name"] in ("gaussian", "laplace")]
        if len(noisy) != 1 or "variance" in noisy[0]:
            raise UsageError("--variance needs exactly one --defense gaussian or laplace")
        noisy[0]["variance"] = variance
    return transforms


def _values(config: RunConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """A config as the values that were given; what it left open stays open."""
    from fedpriv.config import RunConfig

    if isinstance(config, RunConfig):
        return config.chosen()
    return dict(config or {})


def _flat(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Nested mappings as dotted keys and values."""
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        inner = _flat(value) if isinstance(value, Mapping) else [("", value)]
        flat += [(f"{key}.{name}" if name else str(key), item) for name, item in inner]
    return flat
