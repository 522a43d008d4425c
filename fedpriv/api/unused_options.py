"""Keys that a user sets and that would do nothing beside the others: they are refused, as the user expects an effect.

Only what is asked for counts; a config file may set all options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedpriv.config import RunConfig, filled
from fedpriv.errors import UsageError

_PARTITION = "data.partition."


def check_effects(config: RunConfig, asked: Mapping[str, Any], loading: Callable[[], None] = lambda: None) -> None:
    """Refuse a key without effect.

    Args:
        config: with what was asked for laid over it.
        asked: by dotted key.
        loading: called before PyTorch is imported, if the keys need it.

    Raises:
        UsageError: there is one; the message says under what it has none.
    """
    _check_partition_options(config, asked)
    if asked.get("eval.state") is not None:
        _check_layered(config)
    if asked.get("model.projector") is not None:
        _check_projector(config)
    for key, under in (_unused_keys(config) | _unused_method_options(config, asked, loading)).items():
        if asked.get(key) is not None:
            raise UsageError(f"{key} has no effect under {under}")


def _unused_keys(config: RunConfig) -> dict[str, str]:
    """Key without effect -> the setting that makes it so, and often what to set for an effect."""
    train, model, privacy, unused = config.train, config.model, config.privacy, dict[str, str]()
    if privacy.level == "none":
        private = ("privacy.clip", "privacy.delta", "privacy.clipping", "privacy.accountant")
        unused |= dict.fromkeys(private, "privacy.level none; --dp client or --dp sample")
    elif privacy.level == "client":
        unused["privacy.clipping"] = "privacy.level client; it is how --dp sample clips"
    if train.local_steps is not None:
        unused["train.local_epochs"] = "train.local_steps, which says how long a client trains; leave one of them out"
    if train.optimizer != "sgd":
        unused["train.momentum"] = f"train.optimizer {train.optimizer}; it is that of sgd"
    elif not train.momentum and train.keep_optimizer:
        unused["train.keep_optimizer"] = "train.momentum 0, where sgd has nothing to keep"
    if train.optimizer == "rprop":
        decays = ("train.weight_decay", "train.weight_decay_bias")
        unused |= dict.fromkeys(decays, "train.optimizer rprop, which has no weight decay")
    if train.selection in ("all", "schedule") and train.participation != 1.0:
        unused["train.participation"] = f"train.selection {train.selection}, which says itself who takes part; leave it out"
    if config.eval.probe == "none":
        unused["eval.probe_fractions"] = "eval.probe none; --set eval.probe=linear"
    if not config.data.corrupt_clients:
        unused["data.corruption"] = "data.corrupt_clients 0, which has no bad clients"
    if model.tune != "lora":
        unused |= dict.fromkeys(("model.lora_rank", "model.lora_alpha"), "model.tune other than lora; --tune lora")
    return unused


def _unused_method_options(config: RunConfig, asked: Mapping[str, Any], loading: Callable[[], None]) -> dict[str, str]:
    """As :func:`_unused_keys`, of the options of the method and its two parts, and of the keys that these replace."""
    if not any(key.startswith(("method.", "objective.", "aggregation.", "train.")) for key in asked):
        return {}
    loading()
    from fedpriv.methods.build import parts_of

    unused = dict[str, str]()
    for section, kind, params in parts_of(config):
        unused |= {name if "." in name else f"{section}.{name}": under for name, under in kind.unused_options(params).items()}
        if config.privacy.level == "client" and asked.get(f"{section}.weights") == "samples":
            unused[f"{section}.weights"] = "privacy.level client, where all clients weigh the same"
    return unused


def _check_projector(config: RunConfig) -> None:
    from fedpriv.data.sources import suggestions
    from fedpriv.models.user_net import is_user_net

    if is_user_net(config.model.name):
        raise UsageError(f"model.projector has no effect on a net of your own: {config.model.name} is taken as it is")
    if filled(config, suggestions(config.data.name)).model.projection is None:
        raise UsageError("model.projector has no effect under model.projection none; set that to a width, such as 128")


def _check_layered(config: RunConfig) -> None:
    from fedpriv.methods import find_method
    from fedpriv.methods.base import Method
    from fedpriv.models.net import ROLES

    kind = find_method(config.method.name)
    if kind.shared >= set(ROLES) and kind.select_shared is Method.select_shared and kind.buffers == "average":
        raise UsageError(f"eval.state has no effect under method {kind.name}, which sends all layers; it is for such as mpfedcon")


def _check_partition_options(config: RunConfig, asked: Mapping[str, Any]) -> None:
    options = [key.removeprefix(_PARTITION) for key in asked if key.startswith(_PARTITION) and key != _PARTITION + "name"]
    if not options:
        return
    from fedpriv.data.partition_rules import partitions
    from fedpriv.data.sources import suggestions

    name = filled(config, suggestions(config.data.name)).data.partition.name
    for option in options:
        if name in partitions() and option not in partitions()[name].uses:
            users = ", ".join(other for other, partition_rule in partitions().items() if option in partition_rule.uses)
            raise UsageError(f"{option} has no effect on the partition {name!r}; it is an option of: {users}")
