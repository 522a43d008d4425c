"""Runs on whose messages a failure says little: the attacks' controls are of other messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.registry import image_attacks
from fedpriv.attacks.lab.attempts import Attacker
from fedpriv.audit.evidence.messages import Evidence
from fedpriv.audit.evidence.unlike import unlike_controls
from fedpriv.audit.images.reconstructions import on_message, on_single_images
from fedpriv.audit.verdict import of_images
from fedpriv.config import load_config
from fedpriv.defenses import build_transforms
from fedpriv.wire import Payload, TransformContext
from tests.simulation.small import play, settings


class Undeclared:
    """A transform of somebody else's, which says nothing of what it does."""

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        return payload

    def __str__(self) -> str:
        return "undeclared"


class Declared(Undeclared):
    rescales = False


def reasons(*transforms: Any, net: nn.Module | None = None, steps: bool = True, **overrides: Any) -> tuple[str, ...]:
    return unlike_controls(load_config(None, settings("fedavg", **overrides)), net or nn.Linear(1, 1), transforms, steps)


def test_what_the_controls_do_not_have_is_named() -> None:
    built_in = build_transforms([{"name": "clip"}, {"name": "gaussian", "variance": 1e-4}, {"name": "mask", "last": 1}])
    assert reasons(*built_in, Declared()) == ()
    (augmented,) = reasons(**{"data.augment": "crop_flip"})
    assert "altered copies of its images (data.augment crop_flip)" in augmented
    (stepped,) = reasons(**{"train.optimizer": "adam"})
    assert "the client's steps were adam's" in stepped
    assert reasons(steps=False, **{"train.optimizer": "adam"}) == (), "a gradient that was sent took no step"
    (dropped,) = reasons(net=nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.0)))
    assert "trained with dropout of 0.5, whose random masks" in dropped
    assert reasons(net=nn.Dropout(0.5).eval()) == ()
    (unknown,) = reasons(*built_in, Undeclared())
    assert unknown.startswith("undeclared does not declare what it does")


@pytest.mark.parametrize("option", [{"data.augment": "crop_flip"}, {"train.optimizer": "adam", "train.lr": 0.001}, {}])
def test_there_a_failure_is_no_evidence(tmp_path: Path, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or crops and flips, and Adam, would look like defences: the closed form passes its control, and finds next to nothing."""
    alone = [Attacker(image_attacks()["analytic"](), ThreatModel())]
    monkeypatch.setattr("fedpriv.audit.images.reconstructions.suited", lambda masked: alone)
    play(tmp_path / "run", "fedavg", **{"train.rounds": 1, **option})
    evidence = Evidence(tmp_path / "run")
    round, client = evidence.messages()[0]
    found = [
        on_message(evidence, round, client, 0, lambda text: None),
        on_single_images(evidence, round, client, 0, lambda text: None, 6),
    ]
    for attacked in found:
        (attempt,) = attacked.attempts
        assert attempt.recovered is not None and attempt.is_evidence == (not option)
        if option and not attempt.recovered.successes:
            said = of_images(attacked.described(None))
            assert "not known" in said and "which is no evidence" in said
    single = found[1].attempts[0].recovered
    assert single is not None and (single.share > 0.9) == (not option)
