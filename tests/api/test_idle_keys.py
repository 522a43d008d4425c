"""Keys without effect; the command line's are in ``tests/cli/test_bad_input.py``."""

from __future__ import annotations

import pytest

import fedpriv.methods
from fedpriv.api.idle_keys import check_effects
from fedpriv.config import load_config
from fedpriv.errors import UsageError
from fedpriv.methods.fedavg import FedAvg


def test_what_is_tested_of_a_method_that_keeps_its_buffers_is_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    class KeepsNorms(FedAvg):
        buffers = "local"

    asked = {"eval.state": "local_encoder"}
    config = load_config(None, {"method.name": "fedavg", **asked})
    with pytest.raises(UsageError, match=r"eval\.state has no effect under method fedavg"):
        check_effects(config, asked)
    monkeypatch.setattr(fedpriv.methods, "find_method", lambda name: KeepsNorms)
    check_effects(config, asked)
