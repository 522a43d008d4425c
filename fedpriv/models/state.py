"""Checks that a forward pass leaves no state outside the row, by passes of random samples.

The clients of a process share one net: each client sets the row (:class:`fedpriv.parameters.ParameterSpace`), and nothing else.
Any other state that a forward pass changes would leak from client to client, and the results would depend on how clients are
spread over processes.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.models.net import Net
from fedpriv.models.pairs.fusion import Branch, Fusion
from fedpriv.models.snapshot import State, unchanged, values_of
from fedpriv.models.text.transformer import TextEncoder
from fedpriv.parameters import ParameterSpace, constant_buffers
from fedpriv.samples import Inputs, Pairs, each, join, split
from fedpriv.seeding import generator, global_rng

_COUNTER = "num_batches_tracked"
_TOKENS = 8
"""Number of tokens of random texts."""


def random_images(net: Net) -> Tensor | None:
    """Two random images ``(2, *input_shape)`` in [0, 1); ``None`` for a net for texts or pairs."""
    samples = random_samples(net)
    return samples if isinstance(samples, Tensor) and samples.is_floating_point() else None


def random_samples(net: Net, seed: int = 0) -> Inputs:
    """Two random inputs for a net: images with entries in [0, 1), and texts of ``_TOKENS`` tokens without padding."""
    noise, like = generator(seed, "made up"), next(net.parameters())

    def draw(encoder: nn.Module, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(encoder, TextEncoder):
            return torch.rand((2, *shape), generator=noise).to(like)
        words = int(encoder.transformer.config.vocab_size)
        ids = (encoder.pad + torch.randint(1, words, (2, _TOKENS), generator=noise)) % words
        return ids.to(like.device)

    def draw_for(branch: Branch) -> Tensor:
        # Without an encoder, the branch takes features of a frozen one.
        is_frozen = isinstance(branch.encoder, nn.Identity)
        return draw(branch.encoder, (branch.fc.in_features,) if is_frozen else net.input_shape)

    if isinstance(net.encoder, Fusion):
        return Pairs(draw_for(net.encoder.image), draw_for(net.encoder.text))
    return draw(net.encoder, net.input_shape)


def _other_samples(net: Net, seed: int) -> Inputs:
    """Two random inputs with another scale and sign than those of :func:`random_samples`, and with other tokens."""
    return each(random_samples(net, seed), lambda part: 10 - 30 * part if part.is_floating_point() else part)


@torch.no_grad()
def perturb(parameters: Iterable[Tensor], seed: int = 0, most: float | None = None) -> None:
    """Add random numbers to parameters, since initial zeros would hide a dependence on other values.

    Args:
        most: largest magnitude of the numbers; ``None``: 1 for vectors, and 3 / sqrt(number of inputs) for other parameters, so
            that the outputs of deep nets are finite.
    """
    noise = generator(seed, "perturbed")
    for parameter in parameters:
        if not (parameter.is_floating_point() and parameter.numel()):
            continue
        default = 1.0 if parameter.ndim < 2 else 3 * (len(parameter) / parameter.numel()) ** 0.5
        parameter += (default if most is None else most) * (2 * torch.rand(parameter.shape, generator=noise) - 1).to(parameter)


def samples_interact(net: Net, training: bool = True) -> bool:
    """Whether a net's outputs for a sample depend on the other samples of the batch, in training or evaluation mode."""
    x = random_samples(net)
    other_batch = join([split(x, 1)[0], split(_other_samples(net, 1), 1)[1]])
    with unchanged(net):
        net.train(training)
        perturb(net.parameters())
        perturbed = State(net)
        first = _logits(net, x)[0]
        perturbed.restore()
        second = _logits(net, other_batch)[0]
        return not torch.allclose(first, second, rtol=1e-4, atol=1e-5, equal_nan=True)


def changed_by_data(net: Net) -> list[str]:
    """The names of the buffers that a forward pass changes, such as running statistics."""
    if not (buffers := dict(net.named_buffers())):
        return []
    with unchanged(net) as state:
        _logits(net, random_samples(net))
        return [name for name in state.changed() if name in buffers]


def find_hidden_state(net: Net, space: ParameterSpace) -> str | None:
    """Find state outside the row that would leak from client to client and affect results; ``None``: there is none.

    Two samples are passed through the net in training and in evaluation mode, and what they change is inspected. Reported are

    * a tensor of the row that moves to other memory, and so is no longer part of the row;
    * a persistent floating-point buffer outside the row that changes;
    * a whole number that keeps changing, such as a counter, since a schedule may depend on it later;
    * anything else that changes or is replaced, if the next outputs depend on it. (A net may also store values that it never
      reads, such as attention weights.)

    The counters of torch's own normalisation layers are ignored, as nothing depends on them if there is a momentum. The net does
    not change.

    Returns:
        the name of the tensor or attribute.
    """
    x = random_samples(net)
    with unchanged(net) as state:
        for perturbed in (True, False):  # perturbed first: with initial outputs of zero, running means would not change
            if perturbed:
                perturb(net.parameters())
            with suppress(Exception):  # the net may not allow other weights; if it fails anyway, training will raise the error
                return _find_hidden_state(net, x, space)
            state.restore()
        return None


def _find_hidden_state(net: Net, x: Inputs, space: ParameterSpace) -> str | None:
    state, constants = State(net), constant_buffers(net).keys()
    rows = state.within(space)
    _pass_both(net, x)
    if (moved := next((name for name in state.moved() if name in rows), None)) is not None:
        return moved
    changed = _changed_outside(net, state, rows)
    if (statistic := next((name for name in changed if name in constants), None)) is not None:
        return statistic
    if numbers := [name for name in changed if _is_whole_number(net, name) and not name.endswith(f".{_COUNTER}")]:
        # After a second pass of the same samples, a number that depends on them alone is the same; a counter is not.
        state.refill(space)
        settled = State(net)
        _pass_both(net, x)
        changing = set(settled.changed())
        if (number := next((name for name in numbers if name in changing), None)) is not None:
            return number
    return changed[0] if changed and _depends(net, x, state, space) else None


def _changed_outside(net: Net, state: State, rows: set[str]) -> list[str]:
    """The names of what has changed outside the row, and of tensors of the row that were replaced."""
    counters = {
        f"{where}.{_COUNTER}"
        for where, module in net.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and type(module).__module__.startswith("torch.nn.")
    }
    replaced = [name for name in state.replaced() if name in rows]
    return [*replaced, *(name for name in state.changed() if name not in rows | counters)]


def _is_whole_number(net: Net, name: str) -> bool:
    value = next((value for other, _, _, value in values_of(net) if other == name), None)
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_floating_point()
    return isinstance(value, bool | int)


def _depends(net: Net, x: Inputs, state: State, space: ParameterSpace) -> bool:
    """Whether outputs, or the updated row, depend on passes before the row was set."""

    def results() -> list[Tensor]:
        logits = _pass_both(net, x)
        tensors = itertools.chain(net.named_parameters(), net.named_buffers())
        return [*logits, *(tensor.detach().clone() for name, tensor in tensors if name in space)]

    state.restore()
    expected = results()
    state.restore()
    for seed in (1, 2, 3):
        _pass_both(net, _other_samples(net, seed))
    state.refill(space)
    return not all(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in zip(expected, results(), strict=True))


def _pass_both(net: Net, x: Inputs) -> list[Tensor]:
    return [_logits(net.train(training), x) for training in (True, False)]


@contextmanager
def fixed_randomness() -> Iterator[None]:
    """A block without gradients in which the global generators of torch, Python and NumPy are seeded, and then restored.

    Nothing is compiled in it, because later passes, with other hooks, would use the compiled code.
    """
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        with eager, global_rng(0, "dropout"), torch.no_grad():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _logits(net: Net, x: Inputs) -> Tensor:
    """The logits of samples ``(B, C)``."""
    with fixed_randomness():
        logits: Tensor = net(each(x, lambda part: part.clone())).logits
        return logits
