"""Euclidean divergence of layers: FedLAMA's adaptive synchronisation (Lee et al. 2023), or weights by distance.

L-DAWA's paper compares with "EUC", cites FedLAMA and says only that the Euclidean distance decides which layers are updated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedpriv.aggregation import Aggregation, Memory, Merged, Uploads, register
from fedpriv.aggregation.columns import buffer_groups, combine, parameter_groups, squared_distances
from fedpriv.aggregation.mean import client_weights, normalised, weighted_mean
from fedpriv.errors import UsageError
from fedpriv.interfaces import Context, LocalUpdate, params
from fedpriv.wire import statistic

INTERVALS = statistic("intervals")
_MEMORY, _OWN = "euc.intervals", "euc.own/"
_EPSILON = 1e-5


@params
class EucParams:
    """Options of EUC."""

    euc: Literal["lama", "weight"] = Field(
        "lama", description="layers in which clients differ little are merged less often (FedLAMA), or uploads weigh by closeness"
    )
    weights: Literal["samples", "uniform"] = Field("samples", description="lama: weights of the mean (L-DAWA's server is FedAvg)")
    phi: int = Field(2, ge=2, description="lama: rounds between the merges of a layer in which clients differ little (FedLAMA)")
    start: int = Field(6, ge=1, description="lama: first round after which intervals may change (FedLAMA's code)")


def intervals(discrepancies: Tensor, sizes: Tensor, phi: int) -> Tensor:
    """FedLAMA's rule (its Algorithm 2): 1 or ``phi`` rounds between the merges of each of L layers.

    Layers are sorted by discrepancy. From the smallest up, layers wait while their share of the total discrepancy is less than
    the share of the remaining layers in the parameters.

    Args:
        discrepancies: ``(L,)`` m_l, per parameter and round.
        sizes: ``(L,)`` numbers of parameters.
    """
    order = torch.argsort(discrepancies, stable=True)
    size = sizes[order].double()
    share = (discrepancies[order].double() * size).cumsum(0)
    if share[-1] <= 0:  # no discrepancy at all: no layer can be chosen to wait
        return torch.ones_like(sizes)
    waits = share / share[-1] < 1 - size.cumsum(0) / size.sum()
    found = torch.ones_like(sizes)
    found[order[waits]] = phi
    return found


@register("euc")
class Euc(Aggregation):
    """FedAvg in which the layers that differ little between clients are merged every other round only.

    Every client keeps its own copy of such a layer in between; the server's model, which is tested, has the last merged one.
    """

    paper = "Lee et al., AAAI 2023 (FedLAMA); reading of Rehman et al., ICCV 2023"
    Params = EucParams
    suggests: ClassVar[Mapping[str, Any]] = {"train.selection": "all", "train.on_nan": "stop"}
    sends = "a number for each kernel down: the rounds between its merges"
    keeps = "its own copy of the layers that are not merged in a round"

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        return {} if params.euc == "lama" else dict.fromkeys(("weights", "phi", "start"), "euc=weight")

    @classmethod
    def suggested(cls, params: Any) -> Mapping[str, Any]:
        return cls.suggests if params.euc == "lama" else {}

    def __init__(self, params: EucParams, context: Context) -> None:
        super().__init__(params, context)
        self._kernels = [entry.name for entry in context.space.entries if entry.kind == "weight"]
        train = context.config.train
        if params.euc == "weight":
            return
        if train.selection != "all" and train.participation != 1.0:
            raise UsageError(
                "aggregation euc: clients keep their own copy of layers that are not merged, so all must take part each round; "
                "--set train.selection=all, or euc=weight"
            )
        if train.on_nan == "drop":
            raise UsageError("aggregation euc: a dropped client would have no copy of layers not sent; --set train.on_nan=stop")
        if others := [one["name"] for one in context.config.wire.transforms if one["name"] != "mask"]:
            raise UsageError(
                f"aggregation euc: {others[0]} acts on a client's change, and a layer that was not sent has none; use euc=weight"
            )

    def start(self, row: Tensor) -> dict[str, Tensor]:
        return {_MEMORY: torch.ones(len(self._kernels), dtype=torch.int64)} if self.params.euc == "lama" else {}

    def server_statistics(self, memory: Memory) -> dict[str, Tensor]:
        return {INTERVALS: memory[_MEMORY].to(torch.int16)} if self.params.euc == "lama" else {}

    def download_names(self, names: Sequence[str], memory: Memory, round: int) -> Sequence[str]:
        """The layers merged at the end of the last round."""
        if self.params.euc == "weight":
            return names
        waiting = self._waiting(memory[_MEMORY], round - 1)
        return [name for name in names if name not in waiting]

    def upload_names(self, names: Sequence[str], received: Mapping[str, Tensor], round: int) -> Sequence[str]:
        if self.params.euc == "weight":
            return names
        waiting = self._waiting(received[INTERVALS], round)
        return [name for name in names if name not in waiting]

    def set_start(self, update: LocalUpdate) -> None:
        """A client's own copy of what it was not sent.

        Raises:
            UsageError: it has none, as its last local update did not count.
        """
        if self.params.euc == "weight":
            return
        own = {name.removeprefix(_OWN): tensor for name, tensor in update.private.items() if name.startswith(_OWN)}
        waiting = self._waiting(update.received[INTERVALS], update.round - 1)
        if lost := sorted(waiting - own.keys()):
            raise UsageError(
                f"aggregation euc: client {update.client} has no copy of {lost[0]}, which is not sent in round {update.round}: "
                "its local update in the round before did not count; use euc=weight"
            )
        missing = {name: tensor for name, tensor in own.items() if name not in update.received}
        for row in (update.row, update.start):
            self.context.space.pack(missing, row)

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        if self.params.euc == "weight":
            return {}
        waiting = sorted(self._waiting(update.received[INTERVALS], update.round))
        return {_OWN + name: tensor for name, tensor in update.state(waiting).items()}

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The clients' weights ``(K,)``, not normalised; with ``euc: weight`` all weigh the same but for their distances."""
        return client_weights(uploads, self.params.weights if self.params.euc == "lama" else "uniform")

    def merge(self, uploads: Uploads, memory: Memory) -> Merged:
        rows = uploads.rows
        if self.params.euc == "weight":
            groups = parameter_groups(uploads.space, "array")
            closeness = 1 / (_EPSILON + squared_distances(rows, uploads.previous, groups).sqrt())
            row = combine(rows, closeness / closeness.sum(1, keepdim=True), groups, torch.empty_like(uploads.previous))
            plain = normalised(self.weigh(uploads)).to(rows.device)
            return Merged(combine(rows, plain, buffer_groups(uploads.space), row), memory)
        base = normalised(self.weigh(uploads))
        row = weighted_mean(rows, base.tolist())
        now = memory[_MEMORY]
        if uploads.round >= self.params.start and uploads.round % self.params.phi == 0:  # all layers were uploaded
            now = now.clone()
            groups = [group for group in parameter_groups(uploads.space, "array") if group.name in self._kernels]
            where = [self._kernels.index(group.name) for group in groups]
            sizes = torch.tensor([group.size for group in groups])
            spread = squared_distances(rows, row, groups).cpu() @ base
            now[where] = intervals(spread / (now[where] * sizes), sizes, self.params.phi)
        size = {entry.name: entry.stop - entry.start for entry in self.context.space.entries}
        waiting = sum(size[name] for name, rounds in zip(self._kernels, now.tolist(), strict=True) if rounds > 1)
        return Merged(row, {_MEMORY: now}, {"euc/waiting": waiting / self.context.space.size})

    def _waiting(self, rounds: Tensor, after: int) -> frozenset[str]:
        """The kernels that are not merged at the end of round ``after``; none in round 0, the initial model."""
        return frozenset(name for name, every in zip(self._kernels, rounds.tolist(), strict=True) if after % every)
