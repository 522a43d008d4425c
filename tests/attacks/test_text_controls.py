"""Controls of the attacks on text, and attacks that they must catch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fedpriv.attacks.attack import TextAttack, image_attacks, text_attack, text_attacks
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.text_reconstruction import TextReconstruction, counts_of
from fedpriv.attacks.lab.setting import TextSetting
from fedpriv.attacks.text.controls import negative_control, positive_control, text_controls
from fedpriv.attacks.text.tokens import TokenSet
from fedpriv.attacks.text.victims import PAD, SMALL, sentences
from tests.marks import slow_but


@dataclass(frozen=True)
class Leaking(TextAttack):
    """Knows the sentences of the controls from elsewhere, and does not look at the gradient."""

    name: ClassVar[str] = "leaking"

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        ids = sentences([TextSetting().tokens] * TextSetting().messages, seed)
        counts = torch.stack([counts_of(row, SMALL.words, PAD) for row in ids])
        nothing = torch.full((len(ids),), -1)
        return TextReconstruction(ids, counts, nothing, torch.zeros(len(ids)), ("",) * len(ids))


@dataclass(frozen=True)
class Blind(TokenSet):
    """Overlooks a token."""

    name: ClassVar[str] = "blind"

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        result = super().run(observations, seed)
        counts = result.counts.clone()
        counts[0, counts[0].nonzero().flatten()[-1]] = 0
        return replace(result, counts=counts)


@pytest.mark.parametrize("name", slow_but({"tokens", "span"}, sorted(text_attacks())))
def test_every_attack_passes_its_controls(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one sentence each, for the time that three take."""
    monkeypatch.setenv("FEDPRIV_CONTROLS", str(tmp_path))
    kind = text_attack(name)
    monkeypatch.setattr(kind, "control", TextSetting(messages=1))
    positive, negative = text_controls(kind())
    assert positive.passed, positive.sentence
    assert negative.passed, negative.sentence


def test_a_leak_and_a_broken_attack_are_caught() -> None:
    assert positive_control(Leaking()).passed and not negative_control(Leaking()).passed
    assert not positive_control(Blind()).passed and negative_control(Blind()).passed


def test_attacks_on_text_are_not_attacks_on_images() -> None:
    assert {"span", "tag", "tokens"} <= set(text_attacks()) and not set(text_attacks()) & set(image_attacks())
    with pytest.raises(KeyError, match="did you mean 'tokens'"):
        text_attack("token")
