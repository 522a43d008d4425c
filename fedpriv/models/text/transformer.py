"""Transformers as text encoders, from token ids to one vector for each text: fully trained, trained by LoRA, or frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import Encoder, Pooling
from fedpriv.samples import Inputs, in_chunks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tune = Literal["full", "lora", "head"]


class TextEncoder(nn.Module):
    """Token ids ``(B, L)`` -> ``(B, d)``.

    Args:
        pad: the id of padding, which attention masks.

    Attributes:
        by_sample: whether ``torch.func`` can compute per-sample gradients.
    """

    def __init__(self, transformer: PreTrainedModel, pad: int, pooling: Pooling) -> None:
        super().__init__()
        self.transformer = transformer
        self.pad, self.pooling = pad, pooling
        self.by_sample = _takes_full_masks(transformer, pad)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids.ne(self.pad)
        # transformers branches on the values of a mask (B, L), which torch.func does not allow.
        outputs = self.transformer(input_ids=ids, attention_mask=_full_mask(mask) if self.by_sample else mask.long())
        if self.pooling == "pooler":
            return outputs.pooler_output  # type: ignore[no-any-return]
        hidden: Tensor = outputs.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = mask.to(hidden.dtype).unsqueeze(2)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)

    def lengths(self, ids: Tensor) -> Tensor:
        """The numbers of tokens of texts ``(B,)``."""
        return ids.ne(self.pad).sum(1)

    def trim(self, ids: Tensor) -> Tensor:
        """The texts without the columns that contain only padding."""
        filled = ids.ne(self.pad).any(0).nonzero()
        return ids[:, : int(filled[-1]) + 1] if len(filled) else ids[:, :1]


def _full_mask(mask: Tensor) -> Tensor:
    """Mask ``(B, L)`` -> ``(B, 1, L, L)``: each token attends to all tokens except padding."""
    return mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)


@torch.no_grad()
def _takes_full_masks(transformer: Any, pad: int) -> bool:
    """Whether outputs are the same with the full mask; they are not for causal and other special attention."""
    words = [word for word in range(4) if word != pad][:3]
    ids = torch.tensor([words, [words[0], pad, pad]])
    mask = ids.ne(pad)
    was, _ = transformer.training, transformer.eval()
    try:
        expected, actual = (
            transformer(input_ids=ids, attention_mask=attention).last_hidden_state[mask]
            for attention in (mask.long(), _full_mask(mask))
        )
    except (RuntimeError, ValueError, IndexError):
        return False
    finally:
        transformer.train(was)
    return torch.allclose(expected, actual, atol=1e-5)


def text_encoder(encoder: Encoder, tune: Tune, rank: int = 8, alpha: int = 16) -> TextEncoder:
    """Build a text encoder in which only trained parameters require a gradient; the others are never sent.

    Args:
        tune: what is trained: all parameters, LoRA's (Hu et al. 2022), or none (``head``).
        rank, alpha: LoRA's r and alpha: a layer W becomes W + (alpha / r) B A, with B initially zero.

    Raises:
        UsageError: the encoder has no pooler, or peft does not know its attention layers.
    """
    model: Any = encoder.model()
    if encoder.pooling == "pooler":
        if getattr(model, "pooler", None) is None:
            raise UsageError(f"{encoder.name} has no pooler; --set model.pooling=mean")
    elif getattr(model, "pooler", None) is not None:
        model.pooler = None  # unused, so it would be sent without ever being trained
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
        raise UsageError(f"peft has no LoRA target for {name} ({model.config.model_type}); use model.tune full or head")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets)), model)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in parameter_name)


@torch.no_grad()
def features(encoder: TextEncoder, ids: Tensor, chunk: int = 128) -> Tensor:
    """Features ``(N, d)`` of token ids ``(N, L)``, in evaluation mode; texts are batched by length, to reduce padding."""
    encoder.eval()

    def encode(part: Inputs) -> Tensor:
        assert isinstance(part, Tensor)
        vectors: Tensor = encoder(encoder.trim(part.long()))
        return vectors

    return in_chunks(ids, chunk, encode, encoder.lengths(ids))
