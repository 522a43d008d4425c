"""Transformers as text encoders: token ids to one vector per text, with full tuning, LoRA, or frozen."""

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
        pad: the id of padding, which is masked in attention.

    Attributes:
        by_sample: whether ``torch.func`` can process it sample by sample.
    """

    def __init__(self, transformer: PreTrainedModel, pad: int, pooling: Pooling) -> None:
        super().__init__()
        self.transformer = transformer
        self.pad, self.pooling = pad, pooling
        self.by_sample = _takes_whole_masks(transformer, pad)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids.ne(self.pad)
        # transformers branches on the values of a mask (B, L), which torch.func does not allow.
        outputs = self.transformer(input_ids=ids, attention_mask=_whole(mask) if self.by_sample else mask.long())
        if self.pooling == "pooler":
            return outputs.pooler_output  # type: ignore[no-any-return]
        hidden: Tensor = outputs.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = mask.to(hidden.dtype).unsqueeze(2)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)

    def lengths(self, ids: Tensor) -> Tensor:
        """Numbers of tokens ``(B,)``."""
        return ids.ne(self.pad).sum(1)

    def trim(self, ids: Tensor) -> Tensor:
        """The texts without columns of padding only."""
        filled = ids.ne(self.pad).any(0).nonzero()
        return ids[:, : int(filled[-1]) + 1] if len(filled) else ids[:, :1]


def _whole(mask: Tensor) -> Tensor:
    """Mask ``(B, L)`` -> ``(B, 1, L, L)``: each token attends to all that are not padding."""
    return mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)


@torch.no_grad()
def _takes_whole_masks(transformer: Any, pad: int) -> bool:
    """Whether outputs under a whole mask equal those under the usual one, which fails for causal and other special attention."""
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
    """A new text encoder in which only trained parameters require a gradient; the others are common to all clients and not sent.

    Args:
        rank, alpha: of LoRA (Hu et al. 2022): a layer W becomes W + (alpha / r) B A, with B initially zero.

    Raises:
        UsageError: the encoder has no pooler, or peft does not know its attention layers.
    """
    model: Any = encoder.model()
    if encoder.pooling == "pooler":
        if getattr(model, "pooler", None) is None:
            raise UsageError(f"{encoder.name} has no pooler; --set model.pooling=mean")
    elif getattr(model, "pooler", None) is not None:
        model.pooler = None  # it would be sent although it never has a gradient
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
        found: Tensor = encoder(encoder.trim(part.long()))
        return found

    return in_chunks(ids, chunk, encode, encoder.lengths(ids))
