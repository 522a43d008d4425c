"""Tokenises texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenise(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int) -> tuple[Tensor, int]:
    """Token ids ``(N, L)`` int32 with the tokenizer's padding, L at most ``longest``, and the number of truncated texts.

    Raises:
        UsageError: a text has no tokens, as all its characters are dropped by the tokenizer.
    """
    tokens_of = tokenizer(list(texts), verbose=False)["input_ids"]  # the caller reports the number of truncated texts
    if [] in tokens_of:
        raise UsageError(f"the tokenizer finds no tokens in the text {texts[tokens_of.index([])]!r}; remove it or replace it")
    cut = sum(len(ids) > longest for ids in tokens_of)
    if cut:
        tokens_of = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
    width = max(map(len, tokens_of))
    ids = torch.full((len(tokens_of), width), int(tokenizer.pad_token_id), dtype=torch.int32)
    for row, tokens in zip(ids, tokens_of, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    return ids, cut
