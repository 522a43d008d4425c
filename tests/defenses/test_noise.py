"""Gaussian and Laplace noise have the law they say, and the ratio to the change is reported."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.wire import Payload
from tests.defenses.upload import Sender, change, received, upload

NOISES = pytest.mark.parametrize(("name", "kurtosis"), [("gaussian", 3.0), ("laplace", 6.0)])


@NOISES
@pytest.mark.parametrize("variance", [1e-4, 0.25])
def test_mean_variance_and_kurtosis(name: str, kurtosis: float, variance: float) -> None:
    """Mean 0; Var(s^2) = (kurtosis - 1) v^2 / n; the fourth moment tells Laplace from Gauss."""
    base = received(300)
    payload = upload(base)
    noise = change(Sender(base, {"name": name, "variance": variance}).arrives(payload), base) - change(payload.tensors, base)
    n = len(noise)
    assert abs(noise.mean()) < 4 * math.sqrt(variance / n)
    assert abs(noise.var() / variance - 1) < 4 * math.sqrt((kurtosis - 1) / n)
    assert abs(noise.pow(4).mean() / noise.var() ** 2 - kurtosis) < 0.25 * (kurtosis - 2)


@NOISES
def test_every_entry_of_the_net_and_nothing_else(name: str, kurtosis: float) -> None:
    base = received(20)
    payload = upload(base)
    noisy = Sender(base, {"name": name, "variance": 1.0}).arrives(payload)
    assert all((noisy[n] != payload.tensors[n]).all() for n in base)
    assert torch.equal(noisy["statistic.centers"], payload.tensors["statistic.centers"])
    assert noisy.keys() == payload.tensors.keys()


def test_the_signal_to_noise_ratio_is_that_of_the_layer_s_change() -> None:
    base = {"encoder.fc1.weight": torch.zeros(2, 3), "encoder.fc1.bias": torch.zeros(2), "head.weight": torch.ones(4, 4)}
    tensors = {**base, "encoder.fc1.weight": torch.full((2, 3), 0.2), "encoder.fc1.bias": torch.full((2,), 0.4)}
    sender = Sender(base, {"name": "gaussian", "variance": 1e-3})
    sender.send(Payload(tensors, round=1))
    power = (6 * 0.2**2 + 2 * 0.4**2) / 8
    assert sender.reports["snr_db/encoder.fc1"] == pytest.approx(10 * math.log10(power / 1e-3), abs=1e-5)
    assert sender.reports["snr_db/head"] == pytest.approx(-270), "no change: a number that JSON knows"


def test_no_variance_is_no_noise() -> None:
    base = received(5)
    payload = upload(base)
    sender = Sender(base, {"name": "laplace", "variance": 0})
    sent = sender.arrives(payload)
    assert all(torch.equal(sent[n], payload.tensors[n]) for n in sent) and sender.reports == {}


def test_a_running_variance_stays_a_variance() -> None:
    base = {"encoder.norm.running_var": torch.full((1000,), 0.1)}
    sent = Sender(base, {"name": "gaussian", "variance": 1.0}).arrives(Payload(base, round=1))
    assert sent["encoder.norm.running_var"].min() == 0


@pytest.mark.parametrize("options", [{"variance": -1e-9}, {"variance": float("nan")}, {"variance": "loud"}, {"sigma": 1}])
@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_bad_options(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"wire.transforms\[0\]") as caught:
        build_transforms([{"name": name, **options}])
    assert next(iter(options)) in str(caught.value) and "\n" not in str(caught.value)
