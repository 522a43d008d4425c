"""A net's state as one flat row: name -> shape, slice, role.

Clients train on *views* of a row, the server merges rows, and messages consist of a row's named views; so tensors are never
flattened or copied one by one.

The row holds the parameters and the floating-point buffers (BatchNorm's running statistics). Integer buffers (counters) stay in
the net; they are neither sent nor averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["weight", "bias", "buffer"]
_KINDS: tuple[Kind, ...] = ("weight", "bias", "buffer")


@dataclass(frozen=True)
class Entry:
    """One named tensor and its position in the row.

    ``kind`` is ``weight`` (two or more dimensions), ``bias`` (biases and the scales of norms: no weight decay by default)
    or ``buffer`` (not trained).
    """

    name: str
    shape: torch.Size
    start: int
    stop: int
    role: str
    kind: Kind


def layer_of(name: str) -> str:
    """The layer of a parameter: the module that owns it, also where ``torch.nn.utils.parametrize`` keeps it in one of its own."""
    return name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


class ParameterSpace:
    """The layout of a net's state in a row of ``size`` float entries.

    Entries are ordered by role, and inside a role by kind, so that a role, or a role's weights, are one slice.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)
        self._by_name = {entry.name: entry for entry in self.entries}
        self.size = self.entries[-1].stop if self.entries else 0

    @classmethod
    def of(cls, net: nn.Module) -> ParameterSpace:
        """The space of a net whose children are its roles (``encoder.conv1.weight`` has the role ``encoder``).

        Parameters without gradient are constants known to all parties, such as a pretrained encoder under LoRA. They are neither
        trained nor sent, and not part of the space; nor are buffers that are not persistent.
        """
        found: list[tuple[str, Kind, str, Tensor]] = []
        stored = net.state_dict(keep_vars=True)
        for name, parameter in net.named_parameters():
            if not parameter.requires_grad:
                continue
            found.append((name.split(".")[0], "weight" if parameter.ndim > 1 else "bias", name, parameter))
        for name, buffer in net.named_buffers():
            if buffer.is_floating_point() and name in stored:
                found.append((name.split(".")[0], "buffer", name, buffer))
        roles = [name for name, _ in net.named_children()]
        found.sort(key=lambda item: (roles.index(item[0]), _KINDS.index(item[1])))
        entries, start = [], 0
        for role, kind, name, tensor in found:
            entries.append(Entry(name, tensor.shape, start, start + tensor.numel(), role, kind))
            start += tensor.numel()
        return cls(entries)

    def __getitem__(self, name: str) -> Entry:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def select(self, roles: Iterable[str], buffers: bool = True) -> tuple[str, ...]:
        """The names of the entries of ``roles``, in row order, with or without buffers."""
        wanted = frozenset(roles)
        return tuple(e.name for e in self.entries if e.role in wanted and (buffers or e.kind != "buffer"))

    def restricted(self, names: Iterable[str]) -> ParameterSpace:
        """The space of these entries alone, in the same order, without gaps."""
        wanted, entries, start = frozenset(names), [], 0
        for entry in self.entries:
            if entry.name in wanted:
                size = entry.stop - entry.start
                entries.append(replace(entry, start=start, stop=start + size))
                start += size
        return ParameterSpace(entries)

    def slices(self, roles: Iterable[str], kind: Kind) -> Iterator[slice]:
        """The contiguous parts of the row that hold ``kind`` entries of ``roles`` (neighbours are joined)."""
        wanted = frozenset(roles)
        return self.spans(entry.name for entry in self.entries if entry.role in wanted and entry.kind == kind)

    def spans(self, names: Iterable[str]) -> Iterator[slice]:
        """The contiguous parts of the row that hold these entries (neighbours are joined)."""
        wanted = frozenset(names)
        current: slice | None = None
        for entry in self.entries:
            if entry.name not in wanted:
                continue
            if current is not None and current.stop == entry.start:
                current = slice(current.start, entry.stop)
            else:
                if current is not None:
                    yield current
                current = slice(entry.start, entry.stop)
        if current is not None:
            yield current

    def parameters(self, roles: Iterable[str] | None = None) -> list[slice]:
        """The contiguous parts of the row that hold the parameters (no buffers) of ``roles``; of all of them by default."""
        wanted = {entry.role for entry in self.entries} if roles is None else frozenset(roles)
        return [*self.slices(wanted, "weight"), *self.slices(wanted, "bias")]

    def view(self, row: Tensor, name: str) -> Tensor:
        """The entry ``name`` of ``row`` ``(p,)``, as a view of its own shape."""
        entry = self._by_name[name]
        return row[entry.start : entry.stop].view(entry.shape)

    def unpack(self, row: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Named views of ``row`` ``(p,)``: all entries, or those of ``names``."""
        return {name: self.view(row, name) for name in (self._by_name if names is None else names)}

    def pack(self, tensors: Mapping[str, Tensor], row: Tensor) -> Tensor:
        """Copy those of ``tensors`` that belong to this space into ``row`` ``(p,)`` and return it."""
        for name, tensor in tensors.items():
            entry = self._by_name.get(name)
            if entry is not None:
                row[entry.start : entry.stop].copy_(tensor.reshape(-1))
        return row

    def row_of(self, net: nn.Module) -> Tensor:
        """A new row ``(p,)`` with the net's present state."""
        state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        with torch.no_grad():
            return torch.cat([state[entry.name].reshape(-1) for entry in self.entries]).clone()

    def bind(self, net: nn.Module, row: Tensor, grad: Tensor | None = None) -> None:
        """Make the net's state (and, given ``grad`` ``(p,)``, its gradients) views of the rows."""
        parameters, buffers = dict(net.named_parameters()), dict(net.named_buffers())
        for entry in self.entries:
            view = self.view(row, entry.name)
            if entry.kind == "buffer":
                buffers[entry.name].data = view
            else:
                parameters[entry.name].data = view
                if grad is not None:
                    parameters[entry.name].grad = self.view(grad, entry.name)
