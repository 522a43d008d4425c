"""The memory that a run needs of a client, estimated from its setup before any is allocated."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.config import DataConfig, RunConfig
from fedpriv.data.sources import open_data
from fedpriv.deploy.client.requires import Requires
from fedpriv.errors import UsageError
from fedpriv.models.net import Net

COPIES = 28
"""Rows of a net's numbers that a client holds at most at once: measured 12 with fedavg, 19 with mpfedcon, 26 with scaffold."""
_CHANNELS, _DECODED = 3, 3
"""Of a decoded image: its channels, and the copies of all images while they are decoded and stored."""


def check_images(data: DataConfig, requires: Requires) -> None:
    """Check that images of the size that a run's config names fit; reads their number alone.

    Raises:
        UsageError: they need more memory than the client allows.
    """
    if (side := data.image_size) is None:
        return
    opened = open_data(data)
    if opened.images is None:
        return  # the option has no effect on other data, which a later check says
    number = len(opened.train_labels) + len(opened.test_labels)
    need = number * _CHANNELS * _DECODED * side**2
    _check(need, requires, f"{number} images of {side} x {side} pixels (data.image_size)")


def check_net(build: Callable[[], Net], config: RunConfig, samples: int, texts: bool, requires: Requires) -> None:
    """Check that a run's net fits. It is built without memory for its numbers.

    Args:
        samples: number of training samples.
        texts: whether they have texts, the outputs of whose layers are not estimated.

    Raises:
        UsageError: it has more bytes than the client allows, or training it needs more memory.
    """
    with torch.device("meta"):
        net = build()
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*net.parameters(), *net.buffers()))
    if size > requires.max_model_bytes:
        raise UsageError(
            f"this client's own file allows nets of at most {in_words(requires.max_model_bytes)} (requires.max_model_bytes), and "
            f"the run's has {in_words(size)}"
        )
    batch = min(samples, config.train.batch_size or samples)
    need = COPIES * size + (0 if texts else activations(net, batch))
    _check(need, requires, f"a net of {in_words(size)} and batches of {batch}")


def activations(net: Net, batch: int) -> int:
    """Bytes of the outputs of a net's layers for a batch, and of their gradients; the net is on the device ``meta``."""
    sizes = list[int]()

    def note(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    hooks = [module.register_forward_hook(note) for module in net.modules() if not list(module.children())]
    with torch.no_grad():
        net.eval()(torch.empty(2, *net.input_shape, device="meta"))
    for hook in hooks:
        hook.remove()
    return sum(sizes) * batch


def _check(need: int, requires: Requires, what: str) -> None:
    if need > (allowed := requires.memory):
        raise UsageError(
            f"this client's own file allows {in_words(allowed)} of memory (requires.max_memory), and the run needs about "
            f"{in_words(need)}: {what}"
        )


def hold(requires: Requires) -> None:
    """Have the system refuse this process what it would allocate beyond a run's memory, which an estimate may miss.

    Not where there is a GPU, whose driver maps more than is used.
    """
    if not torch.cuda.is_available():
        most = _held() + requires.memory
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _held() -> int:
    """Bytes of data that this process has mapped."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))


def in_words(size: int) -> str:
    """A number of bytes, such as ``1.5 GiB``."""
    for unit, of in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= of:
            return f"{size / of:.3g} {unit}"
    return f"{size} bytes"
