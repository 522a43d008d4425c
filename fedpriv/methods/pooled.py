"""Training on the data of all clients in one place, a baseline (also called centralised training)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from fedpriv.methods import register
from fedpriv.methods.base import Phase, phase
from fedpriv.methods.local import Local


@register("pooled")
class Pooled(Local):
    """One model, trained on the data of all clients in one place; nothing is sent: the bound that federation is measured against.

    Clients are tested with this model on their own test samples. Each sample is trained on as often as by ``local``: a client
    takes part in a share r of the rounds, with E epochs each time, so that T rounds have T r E epochs of all samples. Where r E
    is no whole number, rounds differ by an epoch.
    """

    pools = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tested_names = ()

    @classmethod
    def unused_options(cls, params: Any) -> dict[str, str]:
        why = "method pooled, where all samples take part in each round"
        return {**super().unused_options(params), **dict.fromkeys(("train.selection", "train.schedule"), why)}

    @property
    def has_global_model(self) -> bool:
        return True

    def participants(self, round: int, sampled: Sequence[int], everyone: Sequence[int]) -> Sequence[int]:
        """Client 0, which stands for the one place; none in a round that has no epoch."""
        (planned,) = self.phases(round)
        return everyone if planned.epochs or planned.steps else ()

    def phases(self, round: int) -> Sequence[Phase]:
        (of_a_client,) = super().phases(round)
        clients = self.context.config.data.clients
        participants = self.context.config.participants_of(clients)
        if of_a_client.steps is not None:
            return [phase(epochs=0, steps=participants * of_a_client.steps)]
        each = Fraction(participants, clients) * of_a_client.epochs
        return [phase(epochs=ceil(each * round) - ceil(each * (round - 1)))]
