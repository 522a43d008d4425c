"""What a server asks of a client, read from the head of a frame; each raises ``Refused`` where it is not of its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpriv.config import RunConfig, parse
from fedpriv.config.run import NamedOptions
from fedpriv.models.text.pretrained import is_local
from fedpriv.models.user_net import is_user_net
from fedpriv.wire.message import Refused

MOST_CLIENTS = 1_000_000
"""A client has a place for each, whatever the others hold: some 100 MB for so many."""
MOST_ROUNDS = 100_000
"""A client plans them all where it trains with differential privacy: in some seconds for so many."""
MOST_TURNS = 10_000_000
"""Rounds times clients: who takes part is drawn from all clients, anew in each round."""
MOST_EPOCHS = 1_000
"""Of a local update, and of fine-tuning. Meanwhile a client answers no other run."""
MOST_STEPS = 100_000
"""As for :data:`MOST_EPOCHS`, where a local update is so many steps."""


def config_of(asked: Mapping[str, Any]) -> RunConfig:
    """The run's config, without plug-ins and folder; ``UsageError`` where it is none.

    It names nothing that is to be opened on the client's machine, but for the data set
    (:meth:`fedpriv.deploy.source.Source.of_run`).
    """
    config = parse(RunConfig, asked.get("config"), "the run's config").model_copy(update={"plugins": (), "run_dir": None})
    if is_user_net(config.model.name):
        raise Refused("a config whose model names something to import")
    if isinstance(config.train.schedule, Path):
        raise Refused("a config whose train.schedule names a file, in place of the clients of each round")
    for what, number, most in _lengths(config):
        if number > most:
            raise Refused(f"a config of {number} {what}; at most {most} are possible")
    if is_local(config.model.encoder):
        raise Refused("a config whose model.encoder names a folder")
    return config


def _lengths(config: RunConfig) -> Iterator[tuple[str, float, int]]:
    """What a client's time and memory grow with: what it is, how much of it, and the most that a client takes."""
    clients, train = config.data.clients, config.train
    yield "clients (data.clients)", clients, MOST_CLIENTS
    yield "rounds (train.rounds)", train.rounds, MOST_ROUNDS
    yield "rounds times clients", train.rounds * clients, MOST_TURNS
    yield "epochs (train.local_epochs)", train.local_epochs, MOST_EPOCHS
    yield "steps (train.local_steps)", train.local_steps or 0, MOST_STEPS
    for section in ("method", "objective", "aggregation"):
        chosen: NamedOptions | None = getattr(config, section)
        for name, value in ({} if chosen is None else chosen.params).items():
            for what, most in (("epochs", MOST_EPOCHS), ("steps", MOST_STEPS)):
                if name.endswith(what) and isinstance(value, int | float):
                    yield f"{what} ({section}.{name})", value, most


def number_of(asked: Mapping[str, Any], name: str) -> int:
    """A whole number, not negative."""
    found = asked.get(name)
    if type(found) is not int or found < 0:
        raise Refused(f"a frame without its {name}")
    return found


def last_of(asked: Mapping[str, Any], before: int) -> int | None:
    """The round of the client's last local update, before a round; ``None``: it has had none."""
    last = asked.get("last")
    if last is not None and (type(last) is not int or not 0 <= last < before):
        raise Refused(f"a frame that names a state of round {last!r}")
    return last


def rounds_of(asked: Mapping[str, Any]) -> list[int]:
    """The numbers of rounds."""
    found = asked.get("rounds")
    if not isinstance(found, list) or not all(type(one) is int and one >= 0 for one in found):
        raise Refused("a frame that names no rounds")
    return found
