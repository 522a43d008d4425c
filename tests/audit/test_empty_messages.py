"""Messages that show nothing of any sample, though nothing defends them: that attacks fail there is no evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpriv.attacks.attack import image_attack
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.audit.images import reconstructions
from fedpriv.audit.images.reconstructions import Attacked
from fedpriv.audit.judge.known import samples_not_known
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.audit.samples import on_images
from tests.audit.built import image, images, run
from tests.simulation.small import play

SETTINGS: dict[str, Any] = {
    "data.limit": 200,
    "data.clients": 5,
    "train.participation": 1.0,
    "train.rounds": 1,
    "train.momentum": 0.0,
    "wire.keep_payloads": "all",
}
OF_ZERO_HEAD = {"model.name": "tests.audit.nets:ZeroHead", "model.projection": None, "train.lr": 0.1, "train.rounds": 3}
NOISE = {"wire.transforms": [{"name": "gaussian", "variance": 1e-3}]}
WARM = {"train.warmup_steps": 1, "train.batch_size": 500}
CLOSED = Attacker(image_attack("analytic")(), ThreatModel())


@pytest.fixture(autouse=True)
def closed_forms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstructions, "SINGLES", 3)
    monkeypatch.setattr(reconstructions, "suited", lambda masked: [CLOSED])


def easiest(folder: Path, messages: int, **overrides: Any) -> list[Attacked]:
    """The attacks on clients with one image."""
    if not folder.exists():
        play(folder, "fedavg", **{**SETTINGS, **overrides})
    attacked = on_images(RunRecord(folder), AuditOptions(messages=messages), {}, lambda text: None)
    return [one for one in attacked if one.kind == "single image"]


def open_still(attacked: list[Attacked]) -> list[str]:
    """What is not known where messages of many images were attacked to some effect."""
    return list(samples_not_known(run(images(image()), *(one.described(None) for one in attacked))))


def test_below_a_head_that_begins_at_zero_later_rounds_show_what_the_first_does_not(tmp_path: Path) -> None:
    (first,) = easiest(tmp_path / "run", 1, **OF_ZERO_HEAD)
    assert "is zero, which shows nothing" in str(first.attempts[0].inapplicable)
    assert open_still([first]) == ["single images can be recovered"]
    first, last = easiest(tmp_path / "run", 2)
    assert (first.round, last.round) == (1, 3)
    assert last.attempts[0].recovered is not None and last.attempts[0].recovered.share == 1
    assert open_still([first, last]) == ["single images can be recovered from messages of round 1"]


@pytest.mark.slow
def test_noise_on_a_gradient_of_zero_is_no_defence(tmp_path: Path) -> None:
    first, last = easiest(tmp_path / "run", 2, **OF_ZERO_HEAD, **NOISE)
    for one, counts in ((first, False), (last, True)):
        (made,) = one.attempts
        assert made.recovered is not None and not made.recovered.successes
        assert made.is_evidence is counts, "in the last round there was something that the noise hides"
    (why,) = first.attempts[0].reasons
    assert why.kind == "same net" and "analytic refused undefended messages of this net" in why.text


@pytest.mark.slow
def test_where_all_was_recovered_the_last_round_is_not_attacked(tmp_path: Path) -> None:
    (only,) = easiest(tmp_path / "run", 2, **{"train.rounds": 2})
    assert only.round == 1 and only.all_recovered


@pytest.mark.parametrize("noise", [{}, NOISE])
def test_a_step_of_rate_zero_shows_nothing(tmp_path: Path, noise: dict[str, Any]) -> None:
    (one,) = easiest(tmp_path / "run", 1, **WARM, **noise)
    (made,) = one.attempts
    said = made.status(succeeded=False).why
    assert ("learning rate of 0 (train.warmup_steps)" if noise else "is zero, which shows nothing") in said
    assert open_still([one]) == ["single images can be recovered"]


@pytest.mark.slow
def test_warm_up_that_goes_on_to_a_step_is_no_such_thing(tmp_path: Path) -> None:
    (one,) = easiest(tmp_path / "run", 1, **WARM, **{"train.local_epochs": 2})
    assert one.attempts[0].recovered is not None and one.attempts[0].recovered.share == 1


@pytest.mark.slow
def test_noise_that_hides_a_gradient_is_evidence(tmp_path: Path) -> None:
    (one,) = easiest(tmp_path / "run", 1, **{"wire.transforms": [{"name": "gaussian", "variance": 1e-1}]})
    (made,) = one.attempts
    assert made.recovered is not None and not made.recovered.successes and made.is_evidence
    assert open_still([one]) == []
