"""A net's state as one flat row, with name, shape, slice and role of each tensor.

Clients train on *views* of a row, the server merges rows, and messages consist of named views of a row; tensors are never
flattened or copied one by one.

The row holds the trainable parameters, and running statistics: floating-point buffers that training changes and that may be
averaged, with names that start with ``running_`` as in torch's BatchNorm. It also holds the vectors u and v of spectral norms,
which are recomputed after a merge. All other buffers (masks, tables, counters) stay in the net; they are neither sent nor
averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm as _SpectralNormHook

Kind = Literal["weight", "bias", "buffer"]
_KINDS: tuple[Kind, ...] = ("weight", "bias", "buffer")
RUNNING = "running_"
"""Prefix of the names of buffers that are averaged over the clients."""


@dataclass(frozen=True)
class Entry:
    """One named tensor and its position in the row.

    ``kind`` is ``weight`` (two or more dimensions), ``bias`` (biases and the scales of normalisation layers, by default without
    weight decay), or ``buffer`` (not trained).
    """

    name: str
    shape: torch.Size
    start: int
    stop: int
    role: str
    kind: Kind


@dataclass(frozen=True)
class SpectralNorm:
    """A weight that is divided by its largest singular value, computed as ``u^T W v`` of two buffers (Miyato et al. 2018).

    Attributes:
        weight, u, v: names of the weight before the division, and of the two vectors.
        dim: the dimension of the weight that becomes the rows of the matrix W.
    """

    weight: str
    u: str
    v: str
    dim: int


def spectral_norms(net: nn.Module) -> tuple[SpectralNorm, ...]:
    """The spectral norms of trained weights in a net, by either form of torch's ``spectral_norm``.

    Spectral norms of weights that have another parametrisation before, or that are tied to another weight, are left out.
    """
    norms, trained = [], {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    for where, module in net.named_modules():
        prefix = f"{where}." if where else ""
        parametrised = getattr(module, "parametrizations", {})
        for name, steps in parametrised.items():
            if isinstance(first := steps[0], _SpectralNorm) and hasattr(first, "_u"):
                inside = f"{prefix}parametrizations.{name}"
                norms.append(SpectralNorm(f"{inside}.original", f"{inside}.0._u", f"{inside}.0._v", first.dim))
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, _SpectralNormHook):
                name = prefix + hook.name
                norms.append(SpectralNorm(f"{name}_orig", f"{name}_u", f"{name}_v", hook.dim))
    return tuple(norm for norm in norms if norm.weight in trained)


def changing_buffers(net: nn.Module) -> frozenset[str]:
    """Names of the buffers in the row: persistent floating-point buffers that training may change."""
    singular_vectors = {name for norm in spectral_norms(net) for name in (norm.u, norm.v)}
    stored = net.state_dict(keep_vars=True)
    return frozenset(
        name
        for name, buffer in net.named_buffers(remove_duplicate=False)
        if name in stored
        and buffer.is_floating_point()
        and (name in singular_vectors or name.rpartition(".")[2].startswith(RUNNING))
    )


def constant_buffers(net: nn.Module) -> dict[str, Tensor]:
    """Copies of a net's persistent floating-point buffers that are not in the row, by name."""
    stored, changing = net.state_dict(keep_vars=True), changing_buffers(net)
    buffers = net.named_buffers()
    return {
        name: buffer.detach().cpu().clone()
        for name, buffer in buffers
        if name in stored and buffer.is_floating_point() and name not in changing
    }


def layer_of(name: str) -> str:
    """The name of the module that a parameter belongs to, also if ``torch.nn.utils.parametrize`` moved it."""
    return name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


class ParameterSpace:
    """The layout of a net's state in a row of ``size`` float entries.

    Entries are ordered by role, and within a role by kind, so that a role, or the weights of a role, are one slice.
    """

    def __init__(self, entries: Iterable[Entry], spectral: Iterable[SpectralNorm] = ()) -> None:
        self.entries = tuple(entries)
        self.spectral = tuple(spectral)
        self._by_name = {entry.name: entry for entry in self.entries}
        self.size = self.entries[-1].stop if self.entries else 0

    @classmethod
    def of(cls, net: nn.Module) -> ParameterSpace:
        """The space of a net whose children are its roles (``encoder.conv1.weight`` has the role ``encoder``).

        Parameters without gradient (such as a pretrained encoder under LoRA) and buffers that training does not change are
        constants that all sides know; they are not part of the space.
        """
        tensors: list[tuple[str, Kind, str, Tensor]] = []
        changing = changing_buffers(net)
        for name, parameter in net.named_parameters():
            if not parameter.requires_grad:
                continue
            tensors.append((name.split(".")[0], "weight" if parameter.ndim > 1 else "bias", name, parameter))
        for name, buffer in net.named_buffers():
            if name in changing:
                tensors.append((name.split(".")[0], "buffer", name, buffer))
        roles = [name for name, _ in net.named_children()]
        tensors.sort(key=lambda item: (roles.index(item[0]), _KINDS.index(item[1])))
        entries, start = [], 0
        for role, kind, name, tensor in tensors:
            entries.append(Entry(name, tensor.shape, start, start + tensor.numel(), role, kind))
            start += tensor.numel()
        return cls(entries, spectral_norms(net))

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
        """The slices with the parameters (no buffers) of ``roles``, by default of all roles."""
        wanted = {entry.role for entry in self.entries} if roles is None else frozenset(roles)
        return [*self.slices(wanted, "weight"), *self.slices(wanted, "bias")]

    def view(self, row: Tensor, name: str) -> Tensor:
        """The tensor ``name`` in ``row`` ``(p,)``, as a view."""
        entry = self._by_name[name]
        return row[entry.start : entry.stop].view(entry.shape)

    def unpack(self, row: Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Views of the tensors in ``row`` ``(p,)`` by name: all, or those of ``names``."""
        return {name: self.view(row, name) for name in (self._by_name if names is None else names)}

    def pack(self, tensors: Mapping[str, Tensor], row: Tensor) -> Tensor:
        """Copy ``tensors`` into ``row`` ``(p,)``, ignoring names that are not in this space, and return the row."""
        for name, tensor in tensors.items():
            entry = self._by_name.get(name)
            if entry is not None:
                row[entry.start : entry.stop].copy_(tensor.reshape(-1))
        return row

    def row_of(self, net: nn.Module) -> Tensor:
        """A new row ``(p,)`` with the net's current state."""
        state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        with torch.no_grad():
            return torch.cat([state[entry.name].reshape(-1) for entry in self.entries]).clone()

    @torch.no_grad()
    def renew_spectral_norms(self, row: Tensor) -> None:
        """Set u and v of every spectral norm to the first singular vectors of its weight in ``row`` ``(p,)``, in place.

        The mean of the clients' unit vectors would be shorter than one, and ``u^T W v`` too small.
        """
        for norm in self.spectral:
            matrix = self.view(row, norm.weight).cpu().double().movedim(norm.dim, 0).flatten(1)
            wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
            gram = wide @ wide.T
            if not gram.numel() or not gram.isfinite().all() or not gram.any():
                continue  # there is no positive singular value
            left = torch.linalg.eigh(gram).eigenvectors[:, -1]
            right = torch.nn.functional.normalize(wide.T @ left, dim=0)
            u, v = (left, right) if wide is matrix else (right, left)
            self.view(row, norm.u).copy_(u)
            self.view(row, norm.v).copy_(v)

    def bind(self, net: nn.Module, row: Tensor, grad: Tensor | None = None) -> None:
        """Turn the net's tensors into views of ``row`` ``(p,)``, and its gradients into views of ``grad`` ``(p,)`` if given."""
        parameters, buffers = dict(net.named_parameters()), dict(net.named_buffers())
        for entry in self.entries:
            view = self.view(row, entry.name)
            if entry.kind == "buffer":
                buffers[entry.name].data = view
            else:
                parameters[entry.name].data = view
                if grad is not None:
                    parameters[entry.name].grad = self.view(grad, entry.name)
