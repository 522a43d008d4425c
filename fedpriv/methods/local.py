"""Local training without communication, a baseline (also called SOLO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from fedpriv.methods import register
from fedpriv.methods.base import Method, Phase, params, phase
from fedpriv.seeding import derive


@params
class LocalParams:
    """Options of local training."""

    epochs: int | None = Field(
        None,
        ge=1,
        description="epochs per round in which a client trains; null: train.local_steps if set, otherwise 10 + "
        "train.local_epochs epochs (10 is the default of FedRep's head_epochs)",
    )


@register("local")
class Local(Method):
    """Every client trains its own model from the common initial one; nothing is sent (SOLO)."""

    paper = "baseline"
    Params = LocalParams
    shared = frozenset()

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        replaced = dict.fromkeys(
            ("train.local_epochs", "train.local_steps"), "method.epochs, which says how long a client trains"
        )
        return {**super().unused_options(params), **({} if params.epochs is None else replaced)}

    def participants(self, round: int, sampled: Sequence[int], everyone: Sequence[int]) -> Sequence[int]:
        """As many clients as were sampled, but in rotation: random sampling would leave some clients without any training.

        In T rounds with participation r, each client trains in about T r rounds, the budget of the federated methods. With
        ``train.selection=schedule``, the schedule decides.
        """
        if self.train.selection == "schedule":
            return sampled
        seed = self.context.config.seed
        order = sorted(everyone, key=lambda client: derive(seed, "local update order", client))
        first = (round - 1) * len(sampled)
        return sorted({order[(first + i) % len(order)] for i in range(len(sampled))})

    def phases(self, round: int) -> Sequence[Phase]:
        epochs = self.params.epochs
        return [phase(epochs=epochs or 10 + self.train.local_epochs, steps=None if epochs else self.train.local_steps)]
