"""The number of tokens in a message, from the rank of gradients (as in DAGER, Petrov et al., NeurIPS 2024) and position rows.

The weight gradient of a linear layer is a sum of one outer product per token, so its rank is the number of tokens if that is
below the layer's width. Under noise the rank is full; if rounding hides some tokens, the rank is used only if the singular
values drop clearly. The position embedding's used rows give the length of the longest sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.gradients.multistep import as_gradient, rounding
from fedpriv.attacks.gradients.rank import noise_level, rank
from fedpriv.attacks.text.rows import used_rows

CLEAR = 3.0
"""Factor by which singular values must drop at the rank. If rounding hides tokens, they fall by about 2 at a time."""


def total_tokens(observation: Observation) -> int | None:
    """The number of tokens of all sentences: the highest rank among the shared linear layers before the head.

    Exact for a noiseless gradient of a net with absolute positions; without absolute positions, a repeated word may count once.
    ``None`` if all ranks are full or rounding hides the drop. If only low-rank adapters are shared, there must be fewer tokens
    than their rank.
    """
    message = as_gradient(observation)
    ranks = []
    for name, module in message.net.named_modules():
        weight = message.shared.get(f"{name}.weight")
        if f"{name}.weight" in message.altered.kept:  # pruning changes the rank
            continue
        if is_linear(module) and weight is not None and not name.startswith("top"):
            ranks.append(tokens_in(*stacked(observation, {f"{name}.weight": weight})))
    return max((each for each in ranks if each), default=None)


def is_linear(module: nn.Module) -> bool:
    """Whether it is a linear layer, including GPT-2's with a transposed weight."""
    return isinstance(module, nn.Linear) or is_transposed(module)


def is_transposed(module: nn.Module) -> bool:
    """Whether it is a linear layer whose weight is ``(inputs, outputs)``."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def stacked(observation: Observation, gradients: Mapping[str, Tensor]) -> tuple[Tensor, float]:
    """The concatenated gradients ``(m_i, d)`` of linear layers with the same input, and their noise level.

    Each gradient is scaled by its norm or, in a weight change, by its rounding error, so that layers with small gradients do not
    add more error than signal.

    Returns:
        rows ``(m, d)``, and the largest singular value due to rounding (:func:`fedpriv.attacks.gradients.rank.noise_level`).
    """
    there = {name: weight for name, weight in gradients.items() if bool(weight.any())}
    if not there:
        return torch.zeros(1, 1), 0.0
    errors = {name: rounding(observation, name) for name in there}
    if not all(errors.values()):
        return torch.cat([weight / weight.norm() for weight in there.values()]), 0.0
    rows = torch.cat([weight / errors[name] for name, weight in there.items()])
    return rows, noise_level(1.0, tuple(rows.shape))


def tokens_in(rows: Tensor, noise: float) -> int | None:
    """The rank of :func:`stacked` rows; ``None`` if it is not clear."""
    return rank(rows, noise, CLEAR)


def longest(observation: Observation) -> int | None:
    """The length of the longest sentence: used rows of the position embedding; ``None`` if not sent or hidden by noise."""
    text = observation.text
    if text is None or text.positions is None or text.positions not in observation.shared:
        return None
    rows = used_rows(observation, text.positions)
    # Counted, not the last used row: RoBERTa's positions begin after the padding id.
    pruned = text.positions in observation.altered.kept  # rows may be missing
    return int(rows.used.sum()) or None if rows.exact or pruned else None


def lengths(observation: Observation) -> tuple[list[int], bool] | None:
    """The number of tokens of each sentence, descending, and whether they are certain; ``None`` if the message hides them.

    Certain for one sentence, and for two if the total and the longer length are known. For more, the rest of the total is split
    evenly, or all are assumed to be as long as the longest.
    """
    n, most, total = observation.num_examples or 1, longest(observation), total_tokens(observation)
    if n == 1:
        known = most or total
        return None if known is None else ([known], True)
    if most is None:
        return None if total is None else (_evenly(total, n), False)
    if total is None or not most + n - 1 <= total <= most * n:
        return [most] * n, False
    return [most, *_evenly(total - most, n - 1)], n == 2


def _evenly(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]
