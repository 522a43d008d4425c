"""The options of a run that tell it from another of the same method."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.config import RunConfig, parse
from fedpriv.methods.build import changed_options, with_options


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        ({"method": {"name": "mpfedcon"}}, {}),
        ({"method": {"name": "mpfedcon", "mu": 10.0}}, {}),
        ({"method": {"name": "mpfedcon", "mu": 3, "negative": "R2"}}, {"mu": 3.0, "negative": "R2"}),
        ({"method": {"name": "fedavg"}, "aggregation": {"name": "fedopt", "server_lr": 0.5}}, {"server_lr": 0.5}),
    ],
)
def test_options_differ_where_they_are_not_the_defaults(config: dict[str, Any], changed: dict[str, Any]) -> None:
    assert changed_options(with_options(parse(RunConfig, config, "config"))) == changed
