"""Where the special tokens of a text encoder are: before the words, behind them, on both sides, or nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.attack import text_attack
from fedpriv.attacks.core.observation import TextFacts
from fedpriv.attacks.scoring.text_scores import score_text
from fedpriv.attacks.text.victims import FIRST, LAST, facts, observe_text, sentences, small_bert
from fedpriv.audit.record.attacker_view import opening
from fedpriv.models.text.pretrained import Encoder

LAYOUTS = {"nowhere": ((), ()), "behind": ((), (LAST,)), "before": ((FIRST,), ()), "both behind": ((), (FIRST, LAST))}
"""As in GPT-2, T5, Gemma and XLNet."""


def laid_out(layout: str) -> tuple[TextFacts, torch.Tensor]:
    """The facts of an encoder with this layout of special tokens, and a sentence of six words."""
    before, behind = LAYOUTS[layout]
    words = sentences([8], seed=0)[0, 1:-1].tolist()
    text = replace(facts(), special=(*before, *behind), opens=len(before))
    return text, torch.tensor([[*before, *words, *behind]])


@pytest.mark.parametrize("name", ["span", pytest.param("tag", marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sentence_is_found_wherever_the_special_tokens_are(name: str, layout: str) -> None:
    text, ids = laid_out(layout)
    observation = observe_text(small_bert(0), ids, torch.tensor([1]), text)
    result = text_attack(name)().run([observation], seed=0)
    scores = score_text(result, ids, torch.tensor([1]), text)
    assert scores.exact is not None and scores.exact.share == 1 and result.ids is not None
    assert torch.equal(result.ids, ids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_tokenizer_tells_where_they_are(layout: str) -> None:
    before, behind = LAYOUTS[layout]

    class Tokenizer:
        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [*before, *([9] if text else []), *behind]}

    encoder = Encoder("some", Tokenizer(), None, None, "mean")  # type: ignore[arg-type]
    assert opening(encoder) == len(before)
