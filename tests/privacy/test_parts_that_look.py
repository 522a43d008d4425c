"""Under sample-level DP, parts that look at all of a client's samples are refused, whether they say so or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedpriv.errors import UsageError
from fedpriv.interfaces import LocalUpdate
from fedpriv.methods import Method
from fedpriv.objectives.cross_entropy import CrossEntropy
from fedpriv.wire import Form, Payload
from tests.simulation.small import play

LOOKS: dict[str, Callable[[LocalUpdate], object]] = {
    "labels": lambda update: update.labels,
    "embed": lambda update: update.embed(),
    "accuracy": lambda update: update.accuracy(),
    "gradient": lambda update: update.gradient(),
}


@pytest.mark.parametrize("in_place", [False, True])
def test_method_cannot_leak_data_into_its_model_under_dp(in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Method.upload

    def upload(method: Method, update: LocalUpdate) -> Payload | None:
        sent = honest(method, update)
        assert sent is not None
        counts = torch.bincount(update.labels, minlength=10)
        if in_place:
            sent.tensors["head.bias"].add_(counts)
            return sent
        return replace(sent, tensors={**sent.tensors, "head.bias": sent.tensors["head.bias"] + counts})

    monkeypatch.setattr(Method, "upload", upload)
    private = {"privacy.level": "sample", "privacy.noise": 1.0, "privacy.clip": 1.0}
    with pytest.raises(UsageError, match=r"privacy.level sample: the method would send other values of head.bias"):
        play(tmp_path / "private", "fedavg", **private)


@pytest.mark.parametrize("what", LOOKS)
def test_a_part_that_looks_at_all_samples_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrossEntropy, "begin", lambda part, update: LOOKS[what](update))
    private = {"privacy.level": "sample", "privacy.noise": 1.0, "privacy.clip": 1.0}
    with pytest.raises(UsageError, match=r"privacy.level sample: a local update asks for .* says so by `no_dp`"):
        play(tmp_path / "private", "fedavg", **private)
    assert play(tmp_path / "plain", "fedavg").summary["rounds"]


@pytest.mark.parametrize(("name", "fix"), [("histogram", "cannot be used with DP"), ("statistic.histogram", "mask 'statistic")])
def test_what_is_sent_beside_the_net_is_refused(name: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After training a part may look at all samples, but nothing of that may leave the client."""
    monkeypatch.setattr(
        CrossEntropy, "statistics", lambda part, update: {name: torch.bincount(update.labels, minlength=10).float()}
    )
    monkeypatch.setattr(CrossEntropy, "forms", lambda part, received, steps: {name: Form((10,))})
    with pytest.raises(UsageError, match=f"{name} would be sent, which no noise covers; .*{fix}"):
        play(tmp_path / "private", "fedavg", **{"privacy.level": "sample", "privacy.noise": 1.0})
