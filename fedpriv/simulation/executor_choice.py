"""The choice of a run's executor."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import torch
from torch import Tensor, nn

from fedpriv.config import ExecutorConfig, RunConfig
from fedpriv.errors import UsageError, extra
from fedpriv.interfaces import Phase
from fedpriv.models.batched.compiled import CompiledNet
from fedpriv.models.batched.layers import NotStackable
from fedpriv.models.batched.stacked import Form, StackedNet, VmappedNet, check
from fedpriv.models.net import Net, describe
from fedpriv.processes import TRACKING_THREAD, free_memory, usable_cores
from fedpriv.samples import Inputs

WIDEST = 64
"""Largest number of channels of the most expensive convolution, up to which stacked nets are not slower than single ones."""
LARGEST_DENSE = 300_000
"""Of nets without convolutions, the largest mean number of parameters in a step, up to which a group is faster on a CPU
(``benchmarks/groups.py``)."""
MIN_CONCURRENT = 1.5
"""Smallest mean number of clients that train at the same time, from which on a group is faster."""
TESTED_RAY = "2.60"
"""The tested version of Ray."""
LARGEST_GROUP = 10
"""Clients of a group; larger groups were not faster on a CPU."""
STEP_SECONDS, PRODUCT_SECONDS = 2.5e-4, 1.5e-10
"""Least CPU seconds of a client's training step, and of a product of its net with a sample, gradients included
(``benchmarks/workers.py``)."""
WORTH = 1.0
"""Seconds of training for each worker, as :func:`least_seconds` estimates them, from which on workers are worth their start
(``benchmarks/workers.py``)."""
WORKER_BYTES = 3e8
"""Memory of a worker besides its clients' models: what is written of the pages that it shares with this process."""


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
    number, why = _workers(config, chosen, groups, net, samples, sizes, phases)
    return replace(chosen, workers=number, why_workers=why)


def _workers(
    config: RunConfig,
    chosen: ExecutorChoice,
    groups: int,
    net: Net,
    samples: Inputs,
    sizes: Sequence[int],
    phases: Sequence[Phase],
) -> tuple[int, str]:
    """How many workers are faster than one, and why, for the user.

    Args:
        chosen: the executor of each worker.
        groups: of a round, which workers can share.
    """
    if reason := _no_workers(config):
        return 1, reason
    if multiprocessing.current_process().daemon:
        return 1, "the process that runs it is another's worker"
    if any(map(may_hold_locks, threading.enumerate())):
        return 1, "the process that runs it has other threads, whose locks would stay closed in a fork"
    if groups < 2:
        return 1, "a round has one group of clients" if chosen.form else "a round has one client"
    if (cores := usable_cores()) < 2:
        return 1, "only one core may be used"
    seconds = least_seconds(config, net, samples, sizes, phases)
    if (worth := int(seconds / WORTH)) < 2:
        return 1, "the run is short"
    number = min(cores, groups, worth)
    if (fit := free_memory() / _worker_bytes(config, chosen, net, samples)) < number:
        number, why = max(1, int(fit)), "there is no memory for more"
    else:
        group = "group" if chosen.form else "client"
        limits = {
            worth: "the run is too short for more",
            groups: f"a round has {groups} {group}s",
            cores: f"{cores} cores may be used",
        }
        why = limits[number]
    return number, why


def may_hold_locks(thread: threading.Thread) -> bool:
    """Whether a thread may hold a lock that a worker needs: any but this one, those of progress bars, as workers print nothing
    (reading a table starts tqdm's), and those that pass records on to a tracker."""
    own = thread is threading.current_thread() or thread.name == TRACKING_THREAD
    return not own and type(thread).__module__ not in ("rich.live", "tqdm._monitor")


def _worker_bytes(config: RunConfig, chosen: ExecutorChoice, net: Net, samples: Inputs) -> float:
    """Approximate memory of a worker, in bytes."""
    if isinstance(samples, Tensor):
        of_a_client = client_bytes(config, net, samples)
    else:  # of pairs, the states alone: the row, its gradient, velocity and start, in float32
        of_a_client = 4 * 4 * sum(tensor.numel() for tensor in net.state_dict().values())
    return WORKER_BYTES + of_a_client * (chosen.together[1] if chosen.together else 1)


def least_seconds(config: RunConfig, net: Net, samples: Inputs, sizes: Sequence[int], phases: Sequence[Phase]) -> float:
    """CPU seconds that the local training of all rounds takes at least, on the fastest processor that was measured.

    A low estimate: each step takes some time, and so does each product of a weight with a number of a sample. Steps on cached
    features have no products here.
    """
    epochs = sum(phase.epochs for phase in phases)
    steps = epochs * sum(-(-size // config.train.batch_size) for size in sizes)
    seconds = config.train.rounds * steps * STEP_SECONDS
    if isinstance(samples, Tensor):
        products = sum(
            output.numel() * module.weight[0].numel()
            for module, output in _layers(net, samples)
            if isinstance(module, nn.Conv2d | nn.Linear)
        )
        whole = sum(phase.epochs for phase in phases if _passes_encoder(config, phase))
        seconds += config.train.rounds * whole * sum(sizes) * products * PRODUCT_SECONDS
    return seconds


def _executor(config: RunConfig, net: Net, samples: Inputs, sizes: Sequence[int], phases: Sequence[Phase]) -> ExecutorChoice:
    """As :func:`choose`, for one worker."""
    requested = config.executor
    if requested.spread and (reason := _no_workers(config)):
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


def _no_workers(config: RunConfig) -> str:
    """Why several processes are impossible; empty: they are possible."""
    if torch.device(config.device).type != "cpu":
        return f"one process drives the device {config.device}"
    if config.threads > 1:
        return f"a worker has one torch thread, and threads is {config.threads}"
    if config.executor.workers == "ray":
        return _no_ray()
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system cannot fork processes"
    return ""


def _no_ray() -> str:
    """Why Ray cannot be used; empty: it can."""
    try:
        installed = version("ray")
    except PackageNotFoundError:
        return f"Ray is not installed ({extra('cluster')})"
    if not installed.startswith(f"{TESTED_RAY}."):
        return f"Ray {installed} is installed, and {TESTED_RAY} is tested ({extra('cluster')})"
    return ""


def _slower(config: RunConfig, net: Net, samples: Tensor, sizes: Sequence[int], phases: Sequence[Phase]) -> str:
    """Why clients are faster one after another; empty: they are not."""
    if len(sizes) < 2:
        return "one client a round"
    if torch.device(config.device).type != "cpu":
        return ""  # on an H200 a group of ResNets takes 0.8 to 1 of the time of one after another, small nets a fifth
    work = [
        (output.numel() * module.weight[0].numel(), module.out_channels)
        for module, output in _layers(net, samples)
        if isinstance(module, nn.Conv2d)
    ]
    if not work and (parameters := _parameters_a_step(config, net, phases)) > LARGEST_DENSE:
        return f"steps on {parameters:,} parameters without convolutions gain nothing"
    if work and (channels := max(work)[1]) > WIDEST:
        return f"convolutions of {channels} channels use the CPU fully"
    largest = config.executor.group_size or _group_size(config, net, samples, len(sizes))
    ordered = sorted(sizes, reverse=True)
    concurrent = sum(sizes) / max(1, sum(ordered[::largest]))
    if concurrent < MIN_CONCURRENT:
        return f"clients differ so much in size that only {concurrent:.1f} would train at a time on average"
    return ""


def _parameters_a_step(config: RunConfig, net: Net, phases: Sequence[Phase]) -> int:
    """Mean number of parameters that a training step computes with: without the encoder's if its features are cached."""
    size = {part.role: part.parameters for part in describe(net)}
    whole = sum(size.values())
    total = sum(phase.epochs * (whole if _passes_encoder(config, phase) else whole - size["encoder"]) for phase in phases)
    return total // max(1, sum(phase.epochs for phase in phases))


def _passes_encoder(config: RunConfig, phase: Phase) -> bool:
    """Whether each step of a phase computes the encoder, and has no cached features of it."""
    caches = config.train.cache_features and config.data.augment in (None, "none")
    return not caches or "encoder" in phase.trains


def _group_size(config: RunConfig, net: Net, samples: Tensor, participants: int) -> int:
    """On a CPU half of the participants, so that each of two processes has a group, but at most :data:`LARGEST_GROUP`; on a
    GPU as many as fit into its memory."""
    device = torch.device(config.device)
    if device.type != "cuda":
        return max(2, min(LARGEST_GROUP, -(-participants // 2)))
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(participants, int(free) // client_bytes(config, net, samples)))


@torch.no_grad()
def _layers(net: Net, samples: Tensor) -> list[tuple[nn.Module, Tensor]]:
    """The layers of a forward pass of one sample, with their outputs."""
    layers: list[tuple[nn.Module, Tensor]] = []

    def record(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            layers.append((module, output))

    hooks = [module.register_forward_hook(record) for module in net.modules() if not list(module.children())]
    modes = [module.training for module in net.modules()]
    try:
        net.eval()(samples[:1])
    finally:
        for module, training in zip(net.modules(), modes, strict=True):
            module.training = training
        for hook in hooks:
            hook.remove()
    return layers


def client_bytes(config: RunConfig, net: Net, samples: Tensor) -> int:
    """Approximate memory of a client's training in bytes: its state, and the activations of a batch.

    Args:
        samples: ``(n, ...)`` at least one of a client's samples.
    """
    outputs = [output.numel() for _, output in _layers(net, samples)]
    state = sum(tensor.numel() for tensor in net.state_dict().values())
    # The row, its gradient, velocity and start; of each layer the output and its gradient.
    numbers: int = 4 * state + 2 * config.train.batch_size * sum(outputs)
    return samples.element_size() * numbers
