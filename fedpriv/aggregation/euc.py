"""Aggregation by the Euclidean divergence of layers, the baseline "EUC" of L-DAWA's comparison (Rehman et al., ICCV 2023).

The paper cites FedLAMA and says only that the Euclidean distance decides which layers are updated. Two readings:

* ``lama``: FedLAMA's adaptive synchronisation (Lee et al., AAAI 2023, alg. 2): layers that differ little between clients are
  merged only every ``phi`` rounds;
* ``weight``: each tensor of an upload is weighted by ``1 / (1e-5 + distance from the round's start)``.
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
_INTERVALS, _LOCAL = "euc.intervals", "euc.own/"
_EPSILON = 1e-5


@params
class EucParams:
    """Options of EUC."""

    euc: Literal["lama", "weight"] = Field(
        "lama", description="layers in which clients differ little are merged less often (FedLAMA), or weights by closeness"
    )
    weights: Literal["samples", "uniform"] = Field("samples", description="lama: weights of the mean")
    phi: int = Field(2, ge=2, description="lama: interval in rounds for layers in which clients differ little (FedLAMA)")
    start: int = Field(6, ge=1, description="lama: first round after which intervals may change (FedLAMA's code)")


def intervals(discrepancies: Tensor, sizes: Tensor, phi: int) -> Tensor:
    """FedLAMA's intervals between merges (its Algorithm 2): 1 or ``phi`` rounds for each layer ``(L,)``.

    Starting with the smallest discrepancy, layers get the interval ``phi`` as long as their cumulative share of the total
    discrepancy is below the remaining layers' share of the parameters.

    Args:
        discrepancies: m_l ``(L,)``, per parameter and round.
        sizes: numbers of parameters ``(L,)``.
    """
    order = torch.argsort(discrepancies, stable=True)
    size = sizes[order].double()
    share = (discrepancies[order].double() * size).cumsum(0)
    if share[-1] <= 0:  # no discrepancy at all, so there is no order
        return torch.ones_like(sizes)
    waits = share / share[-1] < 1 - size.cumsum(0) / size.sum()
    rounds = torch.ones_like(sizes)
    rounds[order[waits]] = phi
    return rounds


@register("euc")
class Euc(Aggregation):
    """FedAvg in which layers that differ little between clients are merged in some rounds only.

    In between, each client keeps its own copy of such a layer. The server's model, which is tested, has the last merged one.
    """

    paper = "Lee et al., AAAI 2023 (FedLAMA); reading of Rehman et al., ICCV 2023"
    Params = EucParams
    suggests: ClassVar[Mapping[str, Any]] = {"train.selection": "all", "train.on_nan": "stop"}
    sends = "down, a number for each weight matrix or kernel: the rounds between its merges"
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
                "aggregation euc: clients keep their own copies of layers that are not merged, so all must take part each round; "
                "--set train.selection=all, or euc=weight"
            )
        if train.on_nan == "drop":
            raise UsageError(
                "aggregation euc: a dropped client would have no copy of layers that are not sent; --set train.on_nan=stop"
            )
        if others := [transform["name"] for transform in context.config.wire.transforms if transform["name"] != "mask"]:
            raise UsageError(
                f"aggregation euc: {others[0]} acts on a client's change, and a layer that was not sent has none; use euc=weight"
            )

    def start(self, row: Tensor) -> dict[str, Tensor]:
        return {_INTERVALS: torch.ones(len(self._kernels), dtype=torch.int64)} if self.params.euc == "lama" else {}

    def server_statistics(self, memory: Memory) -> dict[str, Tensor]:
        return {INTERVALS: memory[_INTERVALS].to(torch.int16)} if self.params.euc == "lama" else {}

    def download_names(self, names: Sequence[str], memory: Memory, round: int) -> Sequence[str]:
        """The tensors that were merged at the end of the last round."""
        if self.params.euc == "weight":
            return names
        waiting = self._waiting(memory[_INTERVALS], round - 1)
        return [name for name in names if name not in waiting]

    def upload_names(self, names: Sequence[str], received: Mapping[str, Tensor], round: int) -> Sequence[str]:
        if self.params.euc == "weight":
            return names
        waiting = self._waiting(received[INTERVALS], round)
        return [name for name in names if name not in waiting]

    def set_start(self, update: LocalUpdate) -> None:
        """Use the client's own copies of the layers that it did not receive.

        Raises:
            UsageError: it has none, because its upload of the last round was not merged.
        """
        if self.params.euc == "weight":
            return
        local = {name.removeprefix(_LOCAL): tensor for name, tensor in update.private.items() if name.startswith(_LOCAL)}
        waiting = self._waiting(update.received[INTERVALS], update.round - 1)
        if lost := sorted(waiting - local.keys()):
            raise UsageError(
                f"aggregation euc: client {update.client} has no copy of {lost[0]}, which is not sent in round {update.round}: "
                "its local update in the round before did not count; use euc=weight"
            )
        missing = {name: tensor for name, tensor in local.items() if name not in update.received}
        for row in (update.row, update.start):
            self.context.space.pack(missing, row)

    def keep(self, update: LocalUpdate) -> dict[str, Tensor]:
        if self.params.euc == "weight":
            return {}
        waiting = sorted(self._waiting(update.received[INTERVALS], update.round))
        return {_LOCAL + name: tensor for name, tensor in update.state(waiting).items()}

    def weigh(self, uploads: Uploads) -> Sequence[float]:
        """The clients' weights ``(K,)``, not normalised; with ``euc: weight`` they are equal before the distances."""
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
        rounds = memory[_INTERVALS]
        if uploads.round >= self.params.start and uploads.round % self.params.phi == 0:  # all layers were uploaded
            rounds = rounds.clone()
            groups = [group for group in parameter_groups(uploads.space, "array") if group.name in self._kernels]
            where = [self._kernels.index(group.name) for group in groups]
            sizes = torch.tensor([group.size for group in groups])
            spread = squared_distances(rows, row, groups).cpu() @ base
            rounds[where] = intervals(spread / (rounds[where] * sizes), sizes, self.params.phi)
        size = {entry.name: entry.stop - entry.start for entry in self.context.space.entries}
        waiting = sum(size[name] for name, interval in zip(self._kernels, rounds.tolist(), strict=True) if interval > 1)
        return Merged(row, {_INTERVALS: rounds}, {"euc/waiting": waiting / self.context.space.size})

    def _waiting(self, rounds: Tensor, after: int) -> frozenset[str]:
        """The kernels that are not merged at the end of round ``after``; none after round 0."""
        return frozenset(name for name, every in zip(self._kernels, rounds.tolist(), strict=True) if after % every)
