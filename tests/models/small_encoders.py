"""Small text encoders of several architectures, random or written into a folder as transformers writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModel

from fedpriv.models.text.pretrained import Encoder
from fedpriv.models.text.tiny import tiny_encoder

TEXTS = (
    "where is my card",
    "my card has not arrived yet, where is it and when will it come",
    "how do I change the pin",
    "change",
    "the exchange rate is wrong I think, it is not what the app said it would be",
)


def words() -> Any:
    """The tokenizer of those texts."""
    return tiny_encoder(TEXTS)[0]


def shape(kind: str, **others: Any) -> Any:
    """A config of that architecture, as small as can be, for :func:`words`."""
    tokenizer = words()
    usual = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 40,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    own: dict[str, dict[str, Any]] = {
        "GPT2": {"vocab_size": len(tokenizer), "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40},
        "T5": {"vocab_size": len(tokenizer), "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        "DistilBert": {"vocab_size": len(tokenizer), "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
        "ModernBert": {**usual, "cls_token_id": None, "sep_token_id": None},
    }
    picked = own.get(kind, usual) | {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": None}
    return getattr(transformers, f"{kind}Config")(**picked, **others)


def encoder(kind: str = "Bert", pooling: Any = "mean", **others: Any) -> Encoder:
    """A random encoder."""
    return Encoder(kind, words(), shape(kind, **others), None, pooling)


def folder(path: Path, kind: str = "Bert", seed: int = 0, dtype: torch.dtype = torch.float32, **others: Any) -> Path:
    """A folder with a random model and its tokenizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoModel.from_config(shape(kind, **others)).to(dtype).save_pretrained(path)
    words().save_pretrained(path)
    return path
