"""Whether a stored result is that of a config, by its config and by the code that made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig, filled, parse, usual_share
from fedpriv.data.partition_rules import partitions
from fedpriv.data.sources import full_name, suggestions, usual_model
from fedpriv.data.user_data.owners import BY_COLUMN, GIVEN
from fedpriv.errors import FedprivError, UsageError
from fedpriv.experiments.results import StoredRun, portable
from fedpriv.methods.build import with_options
from fedpriv.models.user_net import is_user_net
from fedpriv.plugins import load_plugins
from fedpriv.simulation.inputs.texts import on_frozen_features
from fedpriv.simulation.open_keys import resolve
from fedpriv.storage.provenance import other_code
from fedpriv.tracking import flatten


def made_otherwise(config: RunConfig, stored: StoredRun) -> str | None:
    """Why a stored result is not that of a config: it has another config, plug-ins or user net; ``None``: it is."""
    if (other := difference(config, stored.config)) is not None:
        return other
    return by_other_code({"plugins": stored.plugins, "continued": stored.continued}, config)


def by_other_code(facts: Mapping[str, Any], config: RunConfig) -> str | None:
    """A line on plug-ins and user nets of which a run had another version; ``None``: it had none, or they are not at hand."""
    if not facts.get("plugins"):
        return None
    try:
        load_plugins(config.plugins, of="the config")
        changed = other_code(facts, config)
    except FedprivError:
        return None
    return f"it was made by another version of {', '.join(changed)}" if changed else None


FOUND_BY_THE_RUN = (
    *("model.encoder", "model.pooling", "model.tune", "model.adapter", "model.backbone", "data.max_tokens"),
    *("privacy.noise", "eval.metric"),
)
"""Options that a run sets where the config leaves them open: from its text encoder, the noise for ``target_epsilon``, and its
score."""


def difference(asked: RunConfig, stored: Mapping[str, Any] | RunConfig) -> str | None:
    """The first difference between a stored (resolved) config and the requested one; ``None``: it is the same run.

    Keys that a config leaves open count as their defaults, so that results stay valid when options are added.

    Args:
        stored: a run folder's config, or the ``config`` of a :class:`Result`.
    """
    try:
        config = stored if isinstance(stored, RunConfig) else parse(RunConfig, dict(stored), "stored config")
        there = _resolved(config, None)
    except UsageError as error:
        return f"its config is of another version ({error})"
    # The default net of user data is known only once they are opened; any will do.
    usual = config.model.name and (usual_model(asked.data.name) or config.model.name)
    here = _resolved(_with_found_options(asked, config), usual)
    for key in sorted(here.keys() | there.keys()):
        is_open = here.get(key) is None
        found_by_the_run = is_open and (key in FOUND_BY_THE_RUN or (key == "train.participation" and _has_default_share(config)))
        if here.get(key) != there.get(key) and not found_by_the_run:
            return f"{key} is {there.get(key)} there, {here.get(key)} in the YAML"
    return None


def _with_found_options(asked: RunConfig, stored: RunConfig) -> RunConfig:
    """The requested config with the options that a run takes from data, net and encoder, where the config leaves them open."""
    data = asked.data.model_copy(update={"name": _name_there(asked.data.name, stored.data.name)})
    options: dict[str, Any] = {}
    if stored.data.partition.name in (GIVEN, BY_COLUMN):
        options |= {"data.partition.name": GIVEN, "data.clients": stored.data.clients}
    if is_user_net(stored.model.name):
        options["model.projection"] = None
    config = filled(asked.model_copy(update={"data": data}), options)
    return on_frozen_features(config, stored.model.adapter) if stored.model.tune == "head" else config


def _has_default_share(stored: RunConfig) -> bool:
    """Whether a stored share of the clients may be the default one: ten clients, of those that hold data."""
    clients, partition = stored.data.clients, stored.data.partition
    some_may_be_empty = partition.min_samples == 0 and "min_samples" in partitions()[partition.name].uses
    holders = range(1, clients + 1) if some_may_be_empty else (clients,)
    return stored.train.participation in set(map(usual_share, holders))


def _name_there(asked: str, stored: str) -> str:
    """The full name of a data set; that of a relative path is the stored one if it ends so, be it of another machine."""
    full, parts = full_name(asked), Path(asked).parts
    return stored if full != asked and Path(stored).parts[-len(parts) :] == parts else full


def _resolved(config: RunConfig, usual: str | None) -> dict[str, Any]:
    """A config as a run stores it, flat; without loading the data, and without the executor, on which results do not depend."""
    flat = flatten(portable(resolve(with_options(config), usual, suggestions(config.data.name))))
    return {key: value for key, value in flat if not key.startswith("executor.")}
