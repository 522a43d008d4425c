"""A tiny random BERT of two layers with its own vocabulary, for tests and demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedTokenizerBase

WORDS = 2000
"""Largest vocabulary: the most frequent words of the texts."""
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def made_up_texts(words: int) -> list[str]:
    """Texts from which the encoder gets a vocabulary of ``words`` tokens."""
    return [f"word{number}" for number in range(words - len(_SPECIAL))]


def tiny_encoder(texts: Sequence[str]) -> tuple[PreTrainedTokenizerBase, BertConfig]:
    """The tokenizer, whose vocabulary is that of the texts, and the config of the model."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(vocab_size=WORDS, special_tokens=list(_SPECIAL.values()), show_progress=False)
    words.train_from_iterator(texts, trainer)
    ends = [(token, words.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **_SPECIAL)  # type: ignore[no-untyped-call]
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    return tokenizer, config


def tokenizer_of(stored: str) -> PreTrainedTokenizerBase:
    """A tokenizer of :func:`tiny_encoder`, from what its ``backend_tokenizer.to_str()`` returned."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(stored), **_SPECIAL)  # type: ignore[no-untyped-call]
