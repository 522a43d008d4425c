"""Under sample-level DP, parts that look at all of a client's samples are refused, whether they say so or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpriv.errors import UsageError
from fedpriv.interfaces import ClientTurn
from fedpriv.objectives.cross_entropy import CrossEntropy
from tests.simulation.small import play

LOOKS: dict[str, Callable[[ClientTurn], object]] = {
    "labels": lambda turn: turn.labels,
    "embed": lambda turn: turn.embed(),
    "accuracy": lambda turn: turn.accuracy(),
    "gradient": lambda turn: turn.gradient(),
}


@pytest.mark.parametrize("what", LOOKS)
def test_a_part_that_looks_at_all_samples_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrossEntropy, "begin", lambda part, turn: LOOKS[what](turn))
    private = {"privacy.level": "sample", "privacy.noise": 1.0, "privacy.clip": 1.0}
    with pytest.raises(UsageError, match=r"privacy.level sample: a turn asks for .* says so by `no_dp`"):
        play(tmp_path / "private", "fedavg", **private)
    assert play(tmp_path / "plain", "fedavg").summary["rounds"]
