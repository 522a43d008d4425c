"""The number of a run's workers: processes that train a round's clients in parallel."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.config import RunConfig
from fedpriv.errors import extra
from fedpriv.interfaces import Phase
from fedpriv.models.net import Net
from fedpriv.processes import TRACKING_THREAD, free_memory, usable_cores
from fedpriv.samples import Inputs
from fedpriv.simulation.choice.costs import client_bytes, least_seconds

if TYPE_CHECKING:
    from fedpriv.simulation.choice.executor import ExecutorChoice

TESTED_RAY = "2.60"
"""The tested version of Ray."""
WORTH = 1.0
"""Workers are worth their start if each has at least so many seconds of training, as :func:`least_seconds` estimates them
(``benchmarks/workers.py``)."""
WORKER_BYTES = 3e8
"""Memory of a worker besides its clients' models: pages that it shares with this process until one of the two writes them."""


def number_of_workers(
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
    if reason := no_workers(config):
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
    """Whether a thread may hold a lock that a worker needs.

    This thread holds none. Nor do those of progress bars, as workers print nothing (reading a table starts tqdm's), and those
    that pass records on to a tracker.
    """
    own = thread is threading.current_thread() or thread.name == TRACKING_THREAD
    return not own and type(thread).__module__ not in ("rich.live", "tqdm._monitor")


def no_workers(config: RunConfig) -> str:
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


def _worker_bytes(config: RunConfig, chosen: ExecutorChoice, net: Net, samples: Inputs) -> float:
    """Approximate memory of a worker, in bytes."""
    if isinstance(samples, Tensor):
        of_a_client = client_bytes(config, net, samples)
    else:  # of pairs, the states alone: the row, its gradient, velocity and start, in float32
        of_a_client = 4 * 4 * sum(tensor.numel() for tensor in net.state_dict().values())
    return WORKER_BYTES + of_a_client * (chosen.together[1] if chosen.together else 1)
