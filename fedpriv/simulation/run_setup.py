"""The agreement of a run, from its config and declared facts alone: checks the config, and computes the noise of private runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from fedpriv.agreement import Agreement, Declared, agree
from fedpriv.config import RunConfig
from fedpriv.defenses import build_transforms
from fedpriv.defenses.stage import Stage
from fedpriv.errors import UsageError
from fedpriv.models.net import Net
from fedpriv.optim.rates import check_rates
from fedpriv.privacy.accountant import Plan
from fedpriv.privacy.plan import SampleHolders, check, with_noise
from fedpriv.privacy.steps import schedule
from fedpriv.secure.protocol_checks import check_run
from fedpriv.server.answers.failing import failures
from fedpriv.server.sampling import participants
from fedpriv.wire import Transform


def settle(
    config: RunConfig,
    new_net: Callable[[], Net],
    declared: Declared,
    sizes: Mapping[int, int],
    shares: SampleHolders,
    device: torch.device,
    begun: bool = False,
) -> tuple[Agreement, Net]:
    """The agreement of a run, and the initial model as a net on the device.

    Args:
        config: with every open key filled in, except the noise of a private run.
        sizes: client -> its number of training samples, of those that hold some, as far as they are known here.
        shares: which clients hold the same sample.
        begun: whether the run has begun, so that its secure sums were checked.

    Raises:
        UsageError: the schedule, a mask, the privacy options or the secure sums cannot be right.
    """
    schedule = config.train.schedule if isinstance(config.train.schedule, tuple) else ()
    if strangers := sorted({client for clients in schedule for client in clients} - set(declared.trainable)):
        raise UsageError(f"train.schedule names client {strangers[0]}, which does not exist or holds no training data")
    check_rates(config.train)
    transforms = build_transforms(config.wire.transforms)
    agreement, net = agree(config, new_net, declared, transforms, device)
    config = agreement.config
    _ = agreement.sent_names  # raises if a mask cannot be right
    if config.wire.secure_aggregation and not begun:
        rounds = range(1, len(schedule or range(config.train.rounds)) + 1)
        check_run(agreement, (participants(agreement, round) for round in rounds), sizes)
    if config.privacy.level != "none":
        server = agreement.method.start(agreement.initial.clone())
        check(config, agreement.method, server, net, transforms, shares)
        _ = agreement.canaries  # raises if there are too many
        planned = plans(agreement, sizes, shares, range(1, config.train.rounds + 1))
        privacy = with_noise(config.privacy, planned, agreement.spent_before)
        agreement.config = config.model_copy(update={"privacy": privacy})
        if privacy.level == "client":
            agreement.transforms = _clipped(transforms, privacy.clip)
    return agreement, net


def plans(
    agreement: Agreement,
    sizes: Mapping[int, int],
    shares: SampleHolders,
    rounds: Iterable[int],
    clients: Iterable[int] | None = None,
    spent: bool = False,
) -> list[Plan]:
    """What the samples (level ``client``: the clients) spend in some rounds: (sampling rate, steps) for each client that holds a
    sample.

    Args:
        sizes, shares: as for :func:`settle`.
        clients: only samples that one of these holds; ``None``: all samples.
        spent: without what clients would have spent that dropped out (``train.dropout``). A run's noise does not count on that.
    """
    config = agreement.config
    if config.privacy.level == "client":
        return [((config.train.participation or 0.0, len(list(rounds))),)]
    epochs = dict.fromkeys(sizes, 0)
    for round in rounds:
        epochs_of_round = sum(phase.epochs for phase in agreement.method.phases(round))
        asked = participants(agreement, round)
        idle = failures(config, round, asked).dropped if spent else ()
        for client in asked:
            if client in epochs and client not in idle:
                epochs[client] += epochs_of_round
    per_epoch = {client: schedule(size, config.train.batch_size) for client, size in sizes.items()}
    spends = {client: (rate, epochs[client] * steps) for client, (rate, steps) in per_epoch.items()}
    wanted = set(sizes if clients is None else clients)
    return [tuple(spends[client] for client in held) for held in shares.holders() if not wanted.isdisjoint(held)]


def _clipped(transforms: Sequence[Transform], bound: float) -> list[Transform]:
    """The transforms with the clients' clipping after the masks, and before noise and compression: it bounds what is sent."""
    later = (i for i, transform in enumerate(transforms) if getattr(transform, "stage", Stage.CLIP) > Stage.CLIP)
    first = next(later, len(transforms))
    return [*transforms[:first], *build_transforms([{"name": "clip", "norm": bound}]), *transforms[first:]]
