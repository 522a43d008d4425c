"""Shared by the tests of audits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import pytest

from fedpriv.attacks.attack import image_attacks, row_attacks
from fedpriv.attacks.core.options import defaults_of
from fedpriv.attacks.image.centers import invert_centers
from fedpriv.attacks.inference.membership_controls import positive_controls
from fedpriv.attacks.lab.control import Control
from tests.attacks.conftest import one_iteration

__all__ = ["controls_once", "hardly_any_steps", "one_iteration"]


@pytest.fixture(scope="package", autouse=True)
def controls_once() -> Iterator[None]:
    """The positive controls of membership inference depend on the number of shadows and the seed alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpriv.audit.membership.inference.kept_controls", cache(positive_controls))
        yield


@pytest.fixture
def hardly_any_steps(monkeypatch: pytest.MonkeyPatch, one_iteration: None) -> None:
    """Attacks on images and rows that do next to nothing, and controls that they pass, for tests of what is around them."""
    few = {
        "steps": 1,
        "restarts": 0,
        "adam_steps": 2,
        "adam": 2,
        "lbfgs": 1,
        "iterations": 1,
        "images": 2,
        "starts": 4,
        "rows": 4,
    }
    for kind in image_attacks().values():
        if kind.audit_options is not None:
            usual = {option: few[option] for option in defaults_of(kind).keys() & few.keys()}
            monkeypatch.setattr(kind, "audit_options", usual)
            monkeypatch.setattr(kind, "max_batch", 1000)
    for row_kind in row_attacks().values():
        if row_kind.audit_options is not None:
            usual = {option: few[option] for option in defaults_of(row_kind).keys() & few.keys()}
            monkeypatch.setattr(row_kind, "audit_options", usual)
    passed = tuple(Control(name, True, f"{name}: as it must be", 0.1) for name in ("positive", "negative"))
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: passed)
    monkeypatch.setattr("fedpriv.attacks.lab.row_attempts.run_row_controls", lambda *asked: passed)
    monkeypatch.setattr("fedpriv.audit.rows.recovery.SINGLES", 2)
    monkeypatch.setattr("fedpriv.audit.rows.attributes.ROWS", 8)
    monkeypatch.setattr("fedpriv.attacks.gradients.spear.BATCH", 4)
    monkeypatch.setattr("fedpriv.audit.images.reconstructions.SINGLES", 2)
    monkeypatch.setattr("fedpriv.audit.images.center_leaks.invert_centers", partial(invert_centers, steps=1))
