"""The positive control of the membership attacks: passed at any budget of shadows, and failed by an attack that is broken."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpriv.attacks.inference import membership, membership_controls
from fedpriv.attacks.inference.membership import Array, Use
from fedpriv.attacks.inference.membership_controls import Kind, kept_controls, positive_controls
from fedpriv.attacks.lab.control import Control
from tests.marks import quick_first

KINDS = ("confidence", "row distance", "class centre")
USES = ("alone", "LiRA", "LiRA offline", "FedMIA")


once = cache(positive_controls)


@pytest.mark.parametrize("shadows", quick_first([4, 32]))
def test_every_attack_tells_members_that_were_learned_by_heart(shadows: int) -> None:
    result = once(shadows, seed=1)
    assert set(result) == {(kind, use) for kind in KINDS for use in USES} | {("gradient", "alone")}
    assert all(control.passed and "it must lie above 0.5" in control.sentence for control in result.values())


def noise(*_: object) -> Array:
    return np.random.default_rng(0).normal(size=16)


BREAKS: dict[str, tuple[object, str, Callable[..., Array], set[tuple[str, str]]]] = {
    "confidences": (membership_controls, "confidence", noise, {("confidence", use) for use in USES}),
    "rows": (membership_controls.RowDistance, "__call__", noise, {("row distance", use) for use in USES}),
    "centres": (membership_controls, "trace", noise, {("class centre", use) for use in USES}),
    "regression": (membership_controls, "gradient_regression", lambda *_: [noise()], {("gradient", "alone")}),
    "likelihoods": (membership, "lira", lambda observed, *_: -observed, {(kind, use) for kind in KINDS for use in USES[1:]}),
    "other clients": (membership_controls, "fedmia", lambda observed, others: -observed[0], {(kind, "FedMIA") for kind in KINDS}),
}


@pytest.mark.parametrize("broken", quick_first(BREAKS))
def test_what_is_broken_fails_and_nothing_else(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead, expected = BREAKS[broken]
    monkeypatch.setattr(where, name, instead)
    assert {key for key, control in positive_controls(4).items() if not control.passed} == expected


def test_they_are_run_once_for_each_budget_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIV_CONTROLS", str(tmp_path))
    made, asked = once(4, seed=1), list[tuple[int, int]]()

    def counted(shadows: int, seed: int) -> dict[tuple[Kind, Use], Control]:
        asked.append((shadows, seed))
        return made

    monkeypatch.setattr(membership_controls, "positive_controls", counted)
    kept = [kept_controls(*budget) for budget in ((4, 1), (4, 1), (6, 1), (4, 2), (6, 1))]
    assert asked == [(4, 1), (6, 1), (4, 2)] and all(list(controls.items()) == list(made.items()) for controls in kept)


@pytest.mark.slow
def test_the_outcome_is_a_function_of_budget_and_seed() -> None:
    first, again = once(4, seed=1), positive_controls(4, seed=1)
    assert [control.sentence for control in first.values()] == [control.sentence for control in again.values()]


def test_the_global_random_state_is_left_as_it_was() -> None:
    before = torch.get_rng_state()
    positive_controls(4)
    assert torch.equal(torch.get_rng_state(), before)
