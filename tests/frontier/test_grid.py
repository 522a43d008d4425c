"""How defences are parsed, and the configs of a grid."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.errors import UsageError
from fedpriv.frontier.grid import Defence, grid, point

BASE: dict[str, Any] = {"data": {"name": "digits"}, "method": {"name": "mpfedcon", "mu": 3.0}}


def test_a_defence_is_what_train_takes() -> None:
    config = point(BASE, "mpfedcon", Defence.read("mask:last=1+gaussian:variance=1e-4"), "here").config
    assert config.wire.transforms == ({"name": "mask", "last": 1}, {"name": "gaussian", "variance": 1e-4})
    private = point(BASE, "mpfedcon", Defence.read("dp-sample:noise=1.5,clip=2"), "here").config.privacy
    assert (private.level, private.noise, private.clip) == ("sample", 1.5, 2.0)
    assert point(BASE, "fedavg", Defence.read("secure-aggregation"), "here").config.wire.secure_aggregation


def test_what_the_config_says_of_privacy_stays() -> None:
    base = {**BASE, "privacy": {"level": "none", "delta": 1e-7, "accountant": "prv"}}
    private = point(base, "mpfedcon", Defence.read("dp-sample:target_epsilon=8"), "here").config.privacy
    assert (private.delta, private.accountant, private.target_epsilon) == (1e-7, "prv", 8.0)


@pytest.mark.parametrize(
    ("own", "text"),
    [({"level": "client", "noise": 1.0}, "dp-sample:noise=1"), ({}, "dp-client:noise=1+dp-sample:noise=2")],
)
def test_a_second_level_of_privacy_is_refused(own: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match="there is dp-client already"):
        point({**BASE, "privacy": own}, "mpfedcon", Defence.read(text), "here")


def test_dp_sample_is_not_trained_by_a_recorded_executor() -> None:
    recorded = {**BASE, "executor": {"name": "vectorized", "group_size": 5, "workers": 2}}
    executor = point(recorded, "mpfedcon", Defence.read("dp-sample:noise=1.5"), "here").config.executor
    assert (executor.name, executor.group_size, executor.workers) == ("auto", None, 2)
    assert point(recorded, "mpfedcon", Defence.read("mask:last=1"), "here").config.executor.name == "vectorized"


def test_transforms_of_the_base_stay_and_the_base_is_not_changed() -> None:
    base = {**BASE, "wire": {"transforms": [{"name": "clip", "norm": 1.0}]}}
    config = point(base, "mpfedcon", Defence.read("gaussian:variance=1e+3"), "here").config
    assert [transform["name"] for transform in config.wire.transforms] == ["clip", "gaussian"]
    assert len(base["wire"]["transforms"]) == 1


def test_another_method_leaves_the_options_of_the_first() -> None:
    assert point(BASE, "mpfedcon", Defence("none"), "here").config.method.model_dump()["mu"] == 3.0
    assert "mu" not in point(BASE, "fedavg", Defence("none"), "here").config.method.model_dump()


def test_a_grid_has_no_defence_and_what_is_left_without_a_range() -> None:
    defences = [Defence.read(text) for text in ("mask:last=1", "mask:last=2+gaussian:variance=1e-7..1e-2")]
    points = [(each.method, each.defence) for each in grid(BASE, ["mpfedcon", "fedavg"], defences, "here")]
    expected = ("none", "mask:last=1", "mask:last=2")
    assert points == [(method, defence) for method in ("mpfedcon", "fedavg") for defence in expected]


def test_labels_name_files() -> None:
    label = point(BASE, "fedavg", Defence.read("mask:last=1+gaussian:variance=1e-4"), "here").label
    assert label == "fedavg-mask-last=1+gaussian-variance=1e-4"


def test_a_range_becomes_a_strength() -> None:
    defence = Defence.read("mask:last=1+gaussian:variance=1e-7..1e-2")
    assert defence.range == (1e-7, 1e-2)
    assert defence.at(3.1623e-5) == Defence("mask:last=1+gaussian:variance=3.16e-05")
    assert defence.without() == Defence("mask:last=1")
    assert Defence.read("gaussian:variance=1e-7..1e-2").without() == Defence("none")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gaussian:variance=1e-2..1e-7", "LEAST..GREATEST"),
        ("gaussian:variance=0..1", "above 0"),
        ("gaussian:variance=1e-7..1e-2+prune:fraction=0.1..0.5", "one range"),
        ("quantise:bits=2..8", "bits is a whole number; list the values"),
        ("mask:last=1..3", "last is a whole number"),
        ("dp-client:noise=1..2", "after it has received"),
    ],
)
def test_ranges_that_cannot_be_searched(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Defence.read(text)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(UsageError, match="privacy"):
        point(BASE, "fedavg", Defence.read("dp-sample:nois=1"), "here")


@pytest.mark.parametrize(
    ("text", "bounds", "rest", "at"),
    [
        ("gaussian:variance=1e-7..1e-2+mask:last=1", (1e-7, 1e-2), "mask:last=1", "gaussian:variance=0.001+mask:last=1"),
        ("gaussian:variance=1e+1..1e+3", (10.0, 1000.0), "none", "gaussian:variance=0.001"),
        ("prune:fraction=0.01..0.5+mask:last=1", (0.5, 0.01), "mask:last=1", "prune:fraction=0.001+mask:last=1"),
        ("dp-sample:clip=1,target_epsilon=1..50", (50.0, 1.0), "none", "dp-sample:clip=1,target_epsilon=0.001"),
        ("dp-sample:noise=1,clip=0.1..10", (0.1, 10.0), "none", "dp-sample:noise=1,clip=0.001"),  # the noise grows with it
        ("mask:last=1+gaussian:variance=.1..2.5", (0.1, 2.5), "mask:last=1", "mask:last=1+gaussian:variance=0.001"),
    ],
)
def test_a_range_may_stand_anywhere(text: str, bounds: tuple[float, float], rest: str, at: str) -> None:
    defence = Defence.read(text)
    assert (defence.range, defence.without().text, defence.at(1e-3).text) == (bounds, rest, at)
