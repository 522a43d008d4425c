"""Client selection: the participants of a round depend only on the config, the round, and which clients hold data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from fedpriv.agreement import Agreement
from fedpriv.config import RunConfig
from fedpriv.errors import UsageError
from fedpriv.seeding import generator


def participants(agreement: Agreement, round: int) -> list[int]:
    """The participants of a round (1-based), by number, as ``train.selection`` says.

    Under client-level DP each client is drawn with probability ``train.participation``, independently (Poisson sampling, which
    the accountants assume). Their number then varies, and may be zero.
    """
    config, everyone = agreement.config, agreement.trainable
    if config.privacy.level == "client":
        return poisson_sample(config, everyone, round)
    return sorted(agreement.method.participants(round, _selected(config, everyone, round), everyone))


def poisson_sample(config: RunConfig, clients: Sequence[int], round: int) -> list[int]:
    """The clients that are drawn for a round, each with probability ``train.participation``, independently."""
    share = config.train.participation or 0.0
    return [client for client in clients if uniform(config.seed, round, client, "participates") < share]


def _selected(config: RunConfig, everyone: Sequence[int], round: int) -> list[int]:
    train, count = config.train, config.participants_of(len(everyone))
    if train.selection == "all":
        return list(everyone)
    if train.selection == "schedule":
        assert isinstance(train.schedule, tuple)  # read at set-up
        return list(train.schedule[round - 1])
    if train.selection == "window":
        return sliding_window(config.seed, everyone, count, round)
    order = torch.randperm(len(everyone), generator=generator(config.seed, round, "participants"))
    return [everyone[i] for i in order[:count].tolist()]


def sliding_window(seed: int, everyone: Sequence[int], count: int, round: int) -> list[int]:
    """The round's window of ``count`` clients in a shuffled order, which is reshuffled after each cycle through all clients
    (SimProx, sec. IV, after the SimAgg notebook).

    If ``count`` does not divide the number of clients, the last window is filled with the first clients of the order.
    """
    windows = math.ceil(len(everyone) / count)
    cycle, index = divmod(round - 1, windows)
    order = torch.randperm(len(everyone), generator=generator(seed, cycle, "window")).tolist()
    order += order[: windows * count - len(order)]
    return [everyone[i] for i in order[index * count : (index + 1) * count]]


def read_schedule(path: Path, clients: int, rounds: int) -> tuple[tuple[int, ...], ...]:
    """The participants of every round, from a file with a line of client numbers for each round.

    Raises:
        UsageError: there is no such file, a line is not numbers of clients, or there are too few lines.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read train.schedule {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    schedule = []
    for number, line in enumerate(lines, 1):
        names = line.replace(",", " ").split()
        chosen = [int(name) for name in names if name.isdecimal() and len(name) < 10 and int(name) < clients]
        if len(chosen) < len(names) or len(set(chosen)) < len(chosen):
            raise UsageError(f"{path}:{number}: {line.strip()!r}: expected client numbers from 0 to {clients - 1}, each once")
        schedule.append(tuple(chosen))
    if len(schedule) < rounds:
        raise UsageError(f"{path}: {len(schedule)} lines for {rounds} rounds (train.rounds)")
    return tuple(schedule)


def uniform(seed: int, round: int, client: int, what: str) -> float:
    """A draw from [0, 1) that depends on these alone."""
    return float(torch.rand((), dtype=torch.float64, generator=generator(seed, round, client, what)))
