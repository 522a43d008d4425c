"""What a received message must be: its sender, its round, and the form of every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.wire.coding import Upload, decoded, is_model
from fedpriv.wire.message import Kind, Refused
from fedpriv.wire.sealing import CODES, Sealed


@dataclass(frozen=True)
class Form:
    """The form of a tensor; its numbers must be finite.

    Attributes:
        shape: the sizes; a word stands for any size, the same everywhere in a message.
        dtype: ``None``: that of the net.
        least, most: the range of its numbers; ``None``: no bound.
        or_zero: whether zeros are valid too, even below ``least``.
        rising: whether the numbers of a list must be strictly increasing.
        adds: whether the mean upload of a secure sum has the sum of its numbers over the clients, not their mean.
        optional: whether it may be missing.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype | None = None
    least: float | None = None
    most: float | None = None
    or_zero: bool = False
    rising: bool = False
    adds: bool = False
    optional: bool = False

    @property
    def floating(self) -> bool:
        """Whether its numbers are floating-point."""
        return self.dtype is None or self.dtype.is_floating_point

    @property
    def bounded(self) -> bool:
        """Whether there are conditions on its numbers, other than that they are finite."""
        return self.least is not None or self.most is not None or self.rising


@dataclass(frozen=True)
class Expected:
    """What a message must be.

    Attributes:
        round, client, kind, transforms: its facts.
        tensors: the form of each of its tensors, by name on the wire.
        received: what the sender was sent, by name; changes are relative to it.
        examples: the range of the number of training samples; ``None``: the message has no number.
        dtype: of the net.
        max_update_norm: bound on the L2 norm of the change of all model tensors together (relative to zero for those that were
            not received), and on that of each statistic that is more than one number; ``None``: no bound.
    """

    round: int
    client: int | None
    tensors: Mapping[str, Form]
    received: Mapping[str, Tensor] = field(default_factory=dict)
    examples: tuple[int, int] | None = None
    kind: Kind = "weights"
    transforms: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    max_update_norm: float | None = None

    def through(self, transforms: Iterable[Any], linear: Sequence[str] = ()) -> Expected:
        """The message after transforms (:class:`~fedpriv.wire.Transform`), in their order.

        Args:
            linear: the net's fully connected layers in forward order.
        """
        expected = self
        for transform in transforms:
            if expects := getattr(transform, "expects", None):
                expected = expects(expected, linear)
            expected = replace(expected, transforms=(*expected.transforms, str(transform)))
        return expected

    def check(self, sealed: Sealed) -> Upload:
        """Check and decode a message.

        Raises:
            Refused: it is not what is expected.
        """
        self._check_facts(sealed)
        self._check_forms(sealed.schema)
        if spoiled := sealed.not_finite():
            raise Refused(f"{spoiled} is not finite")
        bounded = {name for name, form in self.tensors.items() if form.bounded}
        for name, tensor in (sealed.tensors(bounded) if bounded else {}).items():
            _check_numbers(name, tensor, self.tensors[name])
        upload = decoded(sealed, self.received)
        if upload.weights is not None and (spoiled := upload.not_finite()):
            raise Refused(f"{spoiled} is not finite once it is whole")
        upload.check_variances()
        if self.max_update_norm is not None:
            self._check_norms(upload, self.max_update_norm)
        return upload

    def _check_facts(self, sealed: Sealed) -> None:
        for what in ("round", "client", "kind", "transforms"):
            if (value := getattr(sealed, what)) != (expected := getattr(self, what)):
                raise Refused(f"it says {what} {_short(value)}, not {_short(expected)}")
        number = sealed.num_examples
        if self.examples is None or number is None:
            if number is not None or self.examples is not None:
                raise Refused(f"it says {'no' if number is None else 'a'} number of samples")
        elif not self.examples[0] <= number <= self.examples[1]:
            raise Refused(f"it says {number} samples, not {self.examples[0]} to {self.examples[1]}")

    def _check_forms(self, schema: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        needed = {name for name, form in self.tensors.items() if not form.optional}
        unknown, missing = sorted(schema.keys() - self.tensors.keys()), sorted(needed - schema.keys())
        if unknown or missing:
            raise Refused(f"{unknown[0]} is nothing that it should send" if unknown else f"{missing[0]} is missing")
        sizes: dict[str, int] = {}
        for name, (code, shape) in schema.items():
            form = self.tensors[name]
            if CODES[code] != (right := form.dtype or self.dtype):
                raise Refused(f"{name} is of {CODES[code]}, not {right}")
            fits = len(shape) == len(form.shape) and all(
                size == (sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted)
                for size, wanted in zip(shape, form.shape, strict=True)
            )
            if not fits:
                sizes_there = ", ".join(str(sizes.get(size, size) if isinstance(size, str) else size) for size in form.shape)
                raise Refused(f"{name} has shape {list(shape)}, not [{sizes_there}]")

    def _check_norms(self, upload: Upload, bound: float) -> None:
        squares: dict[str, float] = {}
        for name, tensor in upload.tensors().items():
            if not tensor.is_floating_point() or (tensor.numel() == 1 and not is_model(name)):
                continue
            what, change = "the change", tensor.float() if tensor.itemsize < 4 else tensor
            if not is_model(name):
                what = name.partition("/")[0]
            elif name in self.received:
                change = change - self.received[name].cpu()
            squares[what] = squares.get(what, 0.0) + float(torch.linalg.vector_norm(change, dtype=torch.float64)) ** 2
        for what, square in squares.items():
            if not square <= bound**2 * (1 + 1e-6):  # a client may clip to the bound, up to rounding
                raise Refused(f"{what} has norm {math.sqrt(square):.3g}, over {bound:g}")


def _check_numbers(name: str, tensor: Tensor, form: Form) -> None:
    """Refuse numbers outside of a form's range, or out of order."""
    ranged = tensor[tensor != 0] if form.or_zero else tensor
    if not ranged.numel():
        return
    if (form.least is not None and ranged.min() < form.least) or (form.most is not None and ranged.max() > form.most):
        right = f"{'any' if form.least is None else f'{form.least:g}'} to {'any' if form.most is None else f'{form.most:g}'}"
        raise Refused(f"{name} holds {float(ranged.min()):g} to {float(ranged.max()):g}, not {right}")
    if form.rising and bool((tensor[1:] <= tensor[:-1]).any()):
        raise Refused(f"{name} does not rise from one number to the next")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
