"""Late fusion of images and texts: 512 features from each modality's encoder, concatenated (SimProx, sec. IV)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv.samples import Inputs, Pairs, laid_out

WIDTH = 512
"""Number of features of each modality."""
DROPOUT = 0.1


class Branch(nn.Module):
    """The encoder of a modality, followed by Linear, ReLU and dropout to ``WIDTH`` features.

    Args:
        encoder: inputs -> ``(B, d)``; ``nn.Identity()`` if the inputs are features of a frozen encoder.
    """

    def __init__(self, encoder: nn.Module, d: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.fc = nn.Linear(d, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.dropout(torch.relu(self.fc(self.encoder(x))))
        return features


class Fusion(nn.Module):
    """Pairs -> ``(B, 2 * WIDTH)``; the features of a missing modality are zeros."""

    def __init__(self, image: Branch, text: Branch) -> None:
        super().__init__()
        self.image, self.text = image, text

    def forward(self, pairs: Inputs) -> Tensor:
        assert isinstance(pairs, Pairs)
        features = [None if x is None else branch(x) for branch, x in zip((self.image, self.text), pairs, strict=True)]
        present = next(part for part in features if part is not None)
        return torch.cat([torch.zeros_like(present) if part is None else part for part in features], 1)

    def trim(self, pairs: Inputs) -> Inputs:
        """Images in the fastest memory order for convolutions, and texts without columns of padding."""
        assert isinstance(pairs, Pairs)
        image, text = pairs
        if image is not None and image.ndim == 4:
            image = laid_out(image)
        trim = getattr(self.text.encoder, "trim", None)
        return Pairs(image, text if text is None or trim is None else trim(text))
