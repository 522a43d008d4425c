from __future__ import annotations

import pytest

from fedpriv.data.tokens import tokenise
from fedpriv.errors import UsageError
from fedpriv.models.text.tiny import tiny_encoder

TEXTS = ("where is my card", "my card is late, where is it", "card")
TOKENIZER, _ = tiny_encoder(TEXTS)
CLS, SEP, PAD = (TOKENIZER.convert_tokens_to_ids(word) for word in ("[CLS]", "[SEP]", "[PAD]"))


def test_as_the_tokenizer_has_them_filled_up_with_its_padding() -> None:
    ids, cut = tokenise(TEXTS, TOKENIZER, 64)
    assert cut == 0 and ids.shape == (3, 10)
    for row, text in zip(ids.tolist(), TEXTS, strict=True):
        own = TOKENIZER(text)["input_ids"]
        assert row == own + [PAD] * (10 - len(own))
        assert own[0] == CLS and own[-1] == SEP


def test_what_is_too_long_is_cut_and_counted_and_still_ends_as_a_text() -> None:
    ids, cut = tokenise(TEXTS, TOKENIZER, 6)
    assert cut == 1 and ids.shape == (3, 6)  # "where is my card" fills it exactly
    assert ids[1].tolist() == [*TOKENIZER(TEXTS[1])["input_ids"][:5], SEP]
    assert tokenise(TEXTS, TOKENIZER, 5)[1] == 2 and tokenise(TEXTS, TOKENIZER, 10)[1] == 0


def test_nothing_is_said_of_lengths_on_the_way(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    TOKENIZER.model_max_length = 4
    tokenise(TEXTS, TOKENIZER, 8)
    assert caplog.text == "" and capfd.readouterr().err == ""


def test_a_text_that_nothing_is_left_of() -> None:
    plain, _ = tiny_encoder(TEXTS)
    plain.backend_tokenizer.post_processor = None
    with pytest.raises(UsageError, match=r"finds no tokens in the text '\\u200b'; remove it"):
        tokenise(["card", "\u200b"], plain, 8)
