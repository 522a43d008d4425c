"""Validation of what a server requests of a client. Every function raises ``Refused`` if the request is malformed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig, parse
from fedpriv.config.sections import NamedOptions
from fedpriv.models.text.pretrained import is_local
from fedpriv.models.user_net import is_user_net
from fedpriv.wire.message import Refused

MAX_CLIENTS = 1_000_000
"""A client stores an entry for every client of the run: some 100 MB for so many."""
MAX_ROUNDS = 100_000
"""With differential privacy a client plans all rounds in advance: some seconds for so many."""
MAX_UPDATES = 10_000_000
"""Rounds times clients: a client draws the participants of every round from all clients."""
MAX_EPOCHS = 1_000
"""Of a local update, or of fine-tuning. Meanwhile a client answers no other run."""
MAX_STEPS = 100_000
"""As :data:`MAX_EPOCHS`, where the length is given in steps."""


def config_of(request: Mapping[str, Any]) -> RunConfig:
    """The run's config, without plug-ins and folder; ``UsageError`` if it is invalid.

    It names nothing that would be opened on the client's machine, except the data set
    (:meth:`fedpriv.deploy.client.source.Source.of_run`).
    """
    config = parse(RunConfig, request.get("config"), "the run's config").model_copy(update={"plugins": (), "run_dir": None})
    if is_user_net(config.model.name):
        raise Refused("a config whose model names something to import")
    if isinstance(config.train.schedule, Path):
        raise Refused("a config whose train.schedule names a file, in place of the clients of each round")
    for what, number, limit in _costs(config):
        if number > limit:
            raise Refused(f"a config of {number} {what}; at most {limit} are possible")
    if is_local(config.model.encoder):
        raise Refused("a config whose model.encoder names a folder")
    return config


def _costs(config: RunConfig) -> Iterator[tuple[str, float, int]]:
    """What a client's time and memory grow with: (name, amount, limit)."""
    clients, train = config.data.clients, config.train
    yield "clients (data.clients)", clients, MAX_CLIENTS
    yield "rounds (train.rounds)", train.rounds, MAX_ROUNDS
    yield "rounds times clients", train.rounds * clients, MAX_UPDATES
    yield "epochs (train.local_epochs)", train.local_epochs, MAX_EPOCHS
    yield "steps (train.local_steps)", train.local_steps or 0, MAX_STEPS
    for section in ("method", "objective", "aggregation"):
        chosen: NamedOptions | None = getattr(config, section)
        for name, value in ({} if chosen is None else chosen.params).items():
            for what, limit in (("epochs", MAX_EPOCHS), ("steps", MAX_STEPS)):
                if name.endswith(what) and isinstance(value, int | float):
                    yield f"{what} ({section}.{name})", value, limit


def number_of(request: Mapping[str, Any], name: str) -> int:
    """A non-negative integer."""
    number = request.get(name)
    if type(number) is not int or number < 0:
        raise Refused(f"a frame without its {name}")
    return number


def last_of(request: Mapping[str, Any], before: int) -> int | None:
    """The round of the client's last local update, which is below ``before``; ``None``: it had none."""
    last = request.get("last")
    if last is not None and (type(last) is not int or not 0 <= last < before):
        raise Refused(f"a frame that names a state of round {last!r}")
    return last


def rounds_of(request: Mapping[str, Any]) -> list[int]:
    """A list of rounds."""
    rounds = request.get("rounds")
    if not isinstance(rounds, list) or not all(type(number) is int and number >= 0 for number in rounds):
        raise Refused("a frame that names no rounds")
    return rounds
