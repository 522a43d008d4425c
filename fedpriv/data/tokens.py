"""From texts to token ids, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenise(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int) -> tuple[Tensor, int]:
    """``(N, L)`` int32 token ids, filled up with the tokenizer's padding, L at most ``longest``; and how many texts were cut.

    Raises:
        UsageError: of a text nothing is left, such as one of signs that the tokenizer drops.
    """
    found = tokenizer(list(texts), verbose=False)["input_ids"]  # which texts are too long is said once, for all of them
    if [] in found:
        raise UsageError(f"the tokenizer finds no tokens in the text {texts[found.index([])]!r}; remove it or replace it")
    cut = sum(len(ids) > longest for ids in found)
    if cut:
        found = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
    width = max(map(len, found))
    ids = torch.full((len(found), width), int(tokenizer.pad_token_id), dtype=torch.int32)
    for row, tokens in zip(ids, found, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    return ids, cut
