"""A config before any client is asked: what a deployment cannot do, its defaults, and what of it clients are sent."""

from __future__ import annotations

from typing import Any

from fedpriv.config import RunConfig, filled
from fedpriv.defenses import build_transforms
from fedpriv.deploy.facts import HANDSHAKE
from fedpriv.errors import UsageError
from fedpriv.evaluation.probe_during_run import PROBE
from fedpriv.methods import find_method
from fedpriv.methods.build import with_options
from fedpriv.models.text.pretrained import is_local
from fedpriv.models.user_net import is_user_net
from fedpriv.plugins import load_plugins
from fedpriv.scores.catalogue import score_named
from fedpriv.simulation.open_keys import with_schedule
from fedpriv.tracking import check_tracking


def deployable(config: RunConfig) -> RunConfig:
    """The config with a deployment's defaults for what is not set: a client that reports divergence does not end the run, clients
    train one by one as with a simulation's sequential executor, and a schedule file is read.

    Raises:
        UsageError: whatever data the clients have, the run cannot begin: only a simulation can do it, or an option is wrong.
    """
    load_plugins(config.plugins, of="the config")
    sequential = config.executor.model_copy(update={"name": "sequential"})
    config = with_schedule(filled(with_options(config).model_copy(update={"executor": sequential}), {"train.on_nan": "drop"}))
    _check(config)
    build_transforms(config.wire.transforms)
    if config.eval.metric is not None:
        score_named(config.eval.metric)
    check_tracking(config.tracking)
    return config


def _check(config: RunConfig) -> None:
    """Raise :class:`UsageError` for what only a simulation can do."""
    if config.run_dir is not None and config.run_dir.name == HANDSHAKE:
        raise UsageError(f"--run-dir {config.run_dir}: {HANDSHAKE} is what clients call the time before a run; another name")
    if find_method(config.method.name).pools:
        raise UsageError(
            f"method {config.method.name} needs all data in one place, and clients keep theirs; `fedpriv train` runs it on yours"
        )
    if is_user_net(config.model.name):
        raise UsageError(
            f"model {config.model.name}: clients import nothing that a server names; make it a plug-in on each machine"
        )
    if is_local(config.model.encoder):
        raise UsageError(
            f"model.encoder {config.model.encoder}: clients open no folder that a server names; a name of the hub, minilm or tiny"
        )
    if config.tracking.log_model:
        raise UsageError("tracking.log_model: models are exported in simulations; the weights are artifacts of every run")
    if config.eval.probe != "none":
        raise UsageError(f"eval.{PROBE.rstrip('/')} needs the training images, which the server has not; --set eval.probe=none")
    if config.eval.before_merge:
        raise UsageError("eval.before_merge needs test samples, which the server has not; --set eval.before_merge=false")
    if config.eval.fresh_head:
        raise UsageError("eval.fresh_head: heads are trained afresh in simulations; --set eval.fresh_head=0")
    if config.privacy.level == "client":
        raise UsageError("privacy.level client: its noise would come from the seed, which every client knows; use sample")
    if config.data.corrupt_clients:
        raise UsageError("data.corrupt_clients: bad clients are simulated; leave it out, or use `fedpriv train`")
    if config.train.dropout or config.train.late:
        raise UsageError("train.dropout, train.late: failing clients are simulated; leave them out, or use `fedpriv train`")
    if config.privacy.canaries:
        raise UsageError("privacy.canaries: canaries are planted in simulations; leave it out, or use `fedpriv train`")


def for_clients(config: RunConfig) -> RunConfig:
    """The config without the server's own plug-ins, folders, tracking and starting weights."""
    own: dict[str, Any] = {"plugins": (), "run_dir": None, "tracking": type(config.tracking)(uri="none")}
    own["model"] = config.model.model_copy(update={"init": None, "init_roles": None, "init_hash": None})
    return config.model_copy(update={**own, "data": config.data.model_copy(update={"dir": None})})
