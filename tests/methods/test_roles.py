"""A method that shares a role which no net has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedpriv.errors import UsageError
from fedpriv.methods.fedavg import FedAvg
from fedpriv.simulation.simulation import Simulation


def test_a_misspelt_role_is_refused(simulate: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "shared", frozenset({"encoder", "headd"}))
    with pytest.raises(
        UsageError, match="method fedavg shares the role 'headd'; nets have the roles encoder, projector, predictor, head"
    ):
        simulate("fedavg", play=False)
