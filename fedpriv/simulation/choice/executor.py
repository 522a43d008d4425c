"""The choice of a run's executor: its clients one after another, or several as one net, whichever is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fedpriv.config import ExecutorConfig, RunConfig
from fedpriv.errors import UsageError
from fedpriv.interfaces import Phase
from fedpriv.models.batched.compiled import CompiledNet
from fedpriv.models.batched.layers import NotStackable
from fedpriv.models.batched.stacked import Form, StackedNet, VmappedNet, check
from fedpriv.models.net import Net
from fedpriv.samples import Inputs
from fedpriv.simulation.choice.costs import client_bytes, layers_of, parameters_a_step
from fedpriv.simulation.choice.workers import no_workers, number_of_workers

WIDEST = 64
"""Stacked nets are not slower than single ones if the most expensive convolution has at most so many channels."""
LARGEST_DENSE = 300_000
"""A group of nets without convolutions is faster on a CPU if a step computes with at most so many parameters on average
(``benchmarks/groups.py``)."""
MIN_CONCURRENT = 1.5
"""A group is faster if at least so many clients train at the same time on average."""
LARGEST_GROUP = 10
"""Clients of a group; larger groups were not faster on a CPU."""


@dataclass(frozen=True)
class ExecutorChoice:
    """The chosen executor.

    Attributes:
        config: without open keys.
        form: the net's form for several clients; ``None``: one after another.
        why: the reason, for the user.
        workers: processes that the clients are spread over, or actors of a Ray cluster.
        why_workers: the reason for their number; empty: as requested.
    """

    config: ExecutorConfig
    form: Form | None
    why: str
    workers: int | Literal["ray"] = 1
    why_workers: str = ""

    @property
    def together(self) -> tuple[Form, int] | None:
        """The net's form and the group size; ``None``: one after another."""
        size = self.config.group_size
        return None if self.form is None or size is None else (self.form, size)

    def __str__(self) -> str:
        how = f"vectorized, groups of up to {self.config.group_size} clients" if self.form else "sequential"
        how += ", compiled" if self.config.compile != "none" else ""
        where = {1: "in one process", "ray": "on Ray"}.get(self.workers, f"in {self.workers} processes")
        if self.why_workers:
            return f"{how}: {self.why}; {where}: {self.why_workers}"
        return f"{how}{'' if self.workers == 1 else f', {where}'}: {self.why}"


def choose(config: RunConfig, net: Net, samples: Inputs, sizes: Sequence[int], phases: Sequence[Phase]) -> ExecutorChoice:
    """The executor that the config names, or, with ``auto``, the one that is faster for the net.

    The choice depends only on the config, the net and the clients, so a run is determined by its config. Only the number of
    workers, which changes no bit of the run, depends on the machine, too; if it is ``auto``, it stays so in the config, and a run
    that is resumed elsewhere has as many as suit there.

    Args:
        samples: training samples of some client.
        sizes: numbers of samples of a round's participants.
        phases: of a client's local update.

    Raises:
        UsageError: the requested executor cannot run this config.
    """
    chosen = _executor(config, net, samples, sizes, phases)
    if config.executor.workers != "auto":
        return replace(chosen, workers=config.executor.workers)
    groups = -(-len(sizes) // (chosen.together[1] if chosen.together else 1))
    number, why = number_of_workers(config, chosen, groups, net, samples, sizes, phases)
    return replace(chosen, workers=number, why_workers=why)


def _executor(config: RunConfig, net: Net, samples: Inputs, sizes: Sequence[int], phases: Sequence[Phase]) -> ExecutorChoice:
    """As :func:`choose`, for one worker."""
    requested = config.executor
    if requested.spread and (reason := no_workers(config)):
        raise UsageError(f"executor.workers {requested.workers}: {reason}; use --workers 1")
    if requested.name == "sequential":
        return _sequential(requested, "as requested")
    reason = _impossible(config, samples)
    form: Form | None = None
    if not reason:
        try:
            form = StackedNet(net)
        except NotStackable as error:
            if requested.name == "vectorized":
                form, reason = _vmapped(net, str(error))
            else:
                reason = f"this net trains one client at a time, more slowly, with the same results ({error})"
    if requested.name == "vectorized":
        if form is None:
            raise UsageError(f"executor vectorized: {reason}; use --executor sequential")
        why = reason or "as requested"
    elif form is None or not isinstance(samples, Tensor) or (reason := _slower(config, net, samples, sizes, phases)):
        return _sequential(requested, reason)
    else:
        why = "the net is small, and several together use the CPU better"
        if config.device != "cpu":
            why = "so small a net alone does not use the device fully"
    assert isinstance(samples, Tensor)
    if requested.compile != "none":
        if not isinstance(form, StackedNet):
            raise UsageError(f"executor.compile {requested.compile}: the net runs {why}; use --compile none")
        form = CompiledNet(form, requested.compile)
    size = requested.group_size or _group_size(config, net, samples, len(sizes))
    return ExecutorChoice(requested.model_copy(update={"name": "vectorized", "group_size": size}), form, why)


def _sequential(requested: ExecutorConfig, why: str) -> ExecutorChoice:
    if requested.compile != "none":
        raise UsageError(
            f"executor.compile {requested.compile}: it is for the net of a group, and the executor is sequential ({why}); "
            "use --compile none"
        )
    return ExecutorChoice(requested.model_copy(update={"name": "sequential"}), None, why)


def _vmapped(net: Net, missing: str) -> tuple[Form | None, str]:
    """The net's form by ``torch.func.vmap``, and the reason for the user; ``None``: there is none.

    Args:
        missing: the layer without a stacked form.
    """
    form = VmappedNet(net)
    if form.draws:
        return None, f"{missing} cannot be stacked, and the net's dropout would not have the draws of a single client"
    try:
        check(form, net)
    except NotStackable as error:
        return None, f"{missing} cannot be stacked, and torch.func.vmap fails on the net ({error})"
    return form, f"as requested, by torch.func.vmap ({missing} has no faster form)"


def _impossible(config: RunConfig, samples: Inputs) -> str:
    """Why clients cannot train together; empty: they can."""
    if config.privacy.level == "sample":
        return "per-sample gradients (privacy.level sample) are computed client by client"
    if not isinstance(samples, Tensor) or not samples.is_floating_point():
        return "text encoders cannot be stacked"
    return ""


def _slower(config: RunConfig, net: Net, samples: Tensor, sizes: Sequence[int], phases: Sequence[Phase]) -> str:
    """Why clients are faster one after another; empty: they are not."""
    if len(sizes) < 2:
        return "one client a round"
    if torch.device(config.device).type != "cpu":
        return ""  # on an H200 a group of ResNets takes 0.8 to 1 of the time of one after another, small nets a fifth
    work = [
        (output.numel() * module.weight[0].numel(), module.out_channels)
        for module, output in layers_of(net, samples)
        if isinstance(module, nn.Conv2d)
    ]
    if not work and (parameters := parameters_a_step(config, net, phases)) > LARGEST_DENSE:
        return f"steps on {parameters:,} parameters without convolutions gain nothing"
    if work and (channels := max(work)[1]) > WIDEST:
        return f"convolutions of {channels} channels use the CPU fully"
    largest = config.executor.group_size or _group_size(config, net, samples, len(sizes))
    ordered = sorted(sizes, reverse=True)
    concurrent = sum(sizes) / max(1, sum(ordered[::largest]))
    if concurrent < MIN_CONCURRENT:
        return f"clients differ so much in size that only {concurrent:.1f} would train at a time on average"
    return ""


def _group_size(config: RunConfig, net: Net, samples: Tensor, participants: int) -> int:
    """The size of a group.

    On a CPU it is half of the participants, so that each of two processes has a group, but at most :data:`LARGEST_GROUP`. On a
    GPU it is as many as fit into its memory.
    """
    device = torch.device(config.device)
    if device.type != "cuda":
        return max(2, min(LARGEST_GROUP, -(-participants // 2)))
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(participants, int(free) // client_bytes(config, net, samples)))
