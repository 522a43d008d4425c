"""Transformers as text encoders: token ids in, one vector a text out; and what of them learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedpriv.errors import UsageError
from fedpriv.models.encoders import Encoder, Pooling
from fedpriv.samples import Inputs, in_chunks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tune = Literal["full", "lora", "head"]


class TextEncoder(nn.Module):
    """Token ids ``(B, L)`` -> ``(B, d)``.

    Args:
        pad: the id that fills short texts; it is attended to by nothing.

    Attributes:
        by_sample: whether ``torch.func`` can take it sample by sample.
    """

    def __init__(self, transformer: PreTrainedModel, pad: int, pooling: Pooling) -> None:
        super().__init__()
        self.transformer = transformer
        self.pad, self.pooling = pad, pooling
        self.by_sample = _takes_whole_masks(transformer, pad)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids.ne(self.pad)
        # transformers looks into a mask (B, L) to see whether it can do without, which torch.func cannot.
        outputs = self.transformer(input_ids=ids, attention_mask=_whole(mask) if self.by_sample else mask.long())
        if self.pooling == "pooler":
            return outputs.pooler_output  # type: ignore[no-any-return]
        hidden: Tensor = outputs.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = mask.to(hidden.dtype).unsqueeze(2)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)

    def lengths(self, ids: Tensor) -> Tensor:
        """``(B,)`` numbers of tokens."""
        return ids.ne(self.pad).sum(1)

    def trim(self, ids: Tensor) -> Tensor:
        """The same texts in as few columns as the longest of them fills."""
        filled = ids.ne(self.pad).any(0).nonzero()
        return ids[:, : int(filled[-1]) + 1] if len(filled) else ids[:, :1]


def _whole(mask: Tensor) -> Tensor:
    """``(B, L)`` -> ``(B, 1, L, L)``: each token attends to all that are there."""
    return mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)


@torch.no_grad()
def _takes_whole_masks(transformer: Any, pad: int) -> bool:
    """Whether it says the same under a whole mask as under its usual one: not where it is causal, or has a way of its own."""
    words = [word for word in range(4) if word != pad][:3]
    ids = torch.tensor([words, [words[0], pad, pad]])
    mask = ids.ne(pad)
    was, _ = transformer.training, transformer.eval()
    try:
        usual, whole = (
            transformer(input_ids=ids, attention_mask=one).last_hidden_state[mask] for one in (mask.long(), _whole(mask))
        )
    except (RuntimeError, ValueError, IndexError):
        return False
    finally:
        transformer.train(was)
    return torch.allclose(usual, whole, atol=1e-5)


def text_encoder(encoder: Encoder, tune: Tune, rank: int = 8, alpha: int = 16) -> TextEncoder:
    """A new text encoder in which only what learns requires a gradient; the rest is the same for all clients and not sent.

    Args:
        rank, alpha: of LoRA (Hu et al. 2022): a layer W becomes W + (alpha / r) B A, with B zero at first.

    Raises:
        UsageError: it has no pooler, or no attention layers that peft knows.
    """
    model: Any = encoder.model()
    if encoder.pooling == "pooler":
        if getattr(model, "pooler", None) is None:
            raise UsageError(f"{encoder.name} has no pooler; --set model.pooling=mean")
    elif getattr(model, "pooler", None) is not None:
        model.pooler = None  # it would cross the wire without ever having a gradient
    if tune == "lora":
        _add_lora(model, encoder.name, rank, alpha)
    else:
        model.requires_grad_(tune == "full")
    return TextEncoder(model, encoder.pad, encoder.pooling)


def _add_lora(model: Any, name: str, rank: int, alpha: int) -> None:
    from peft import LoraConfig, inject_adapter_in_model
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS

    targets = TARGETS.get(model.config.model_type)
    if targets is None:
        raise UsageError(f"peft does not know where LoRA goes in {name} ({model.config.model_type}); model.tune full or head")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets)), model)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in parameter_name)


@torch.no_grad()
def features(encoder: TextEncoder, ids: Tensor, chunk: int = 128) -> Tensor:
    """``(N, d)`` of token ids ``(N, L)``, in evaluation mode; texts of like length go together, so that little is padding."""
    encoder.eval()

    def encode(part: Inputs) -> Tensor:
        assert isinstance(part, Tensor)
        found: Tensor = encoder(encoder.trim(part.long()))
        return found

    return in_chunks(ids, chunk, encode, encoder.lengths(ids))
