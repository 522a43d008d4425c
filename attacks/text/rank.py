"""The number of tokens in a message: of its longest sentence from the position embedding, in total from the rank of a gradient.

The weight gradient of a linear layer is a sum of one outer product per token, so its rank is the number of tokens as long as that
is below the layer's width (the observation behind DAGER, Petrov et al. 2024). With noise on the gradient the rank is full; where
rounding of weights hides some tokens, the rank of the others counts only where it ends in a clear drop.
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
"""Factor by which singular values must fall at the rank. Where tokens are lost in rounding they fall by about 2 at a time."""


def total_tokens(observation: Observation) -> int | None:
    """Tokens of all sentences together: the greatest rank among the shared linear layers that are not the head.

    Exact for one noiseless gradient of a net with absolute positions: in others, a word that is repeated may count once. ``None``
    where no rank is below its layer's width, or rounding hides where the tokens end. Where only low-rank adapters are shared,
    there must be fewer tokens than their rank.
    """
    message = as_gradient(observation)
    found = []
    for name, module in message.net.named_modules():
        weight = message.shared.get(f"{name}.weight")
        if f"{name}.weight" in message.altered.kept:  # pruning changes the rank
            continue
        if is_linear(module) and weight is not None and not name.startswith("top"):
            found.append(tokens_in(*stacked(observation, {f"{name}.weight": weight})))
    return max((each for each in found if each), default=None)


def is_linear(module: nn.Module) -> bool:
    """Whether it is a linear layer, also one of GPT-2's, whose weight is transposed."""
    return isinstance(module, nn.Linear) or is_transposed(module)


def is_transposed(module: nn.Module) -> bool:
    """Whether it is a linear layer whose weight is ``(inputs, outputs)``."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def stacked(observation: Observation, gradients: Mapping[str, Tensor]) -> tuple[Tensor, float]:
    """The rows of the gradients ``(m_i, d)`` of linear layers with the same input, ``(m, d)``, and the largest singular value
    that rounding may make of it (:func:`fedpriv.attacks.gradients.rank.noise_level`).

    Each is in units of its length or, in a change, of its error: else a layer of small gradients would bring more error to what
    another one shows.
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
    """The rank of :func:`stacked`; ``None`` where none is clear."""
    return rank(rows, noise, CLEAR)


def longest(observation: Observation) -> int | None:
    """Tokens of the longest sentence: rows of the position embedding that were used; ``None`` where it was not sent, or noise
    hides them."""
    text = observation.text
    if text is None or text.positions is None or text.positions not in observation.shared:
        return None
    rows = used_rows(observation, text.positions)
    # Used rows are counted, as some encoders never use the first ones (RoBERTa's positions begin after the id of padding).
    pruned = text.positions in observation.altered.kept  # rows may be missing, and the count too low
    return int(rows.used.sum()) or None if rows.exact or pruned else None


def lengths(observation: Observation) -> tuple[list[int], bool] | None:
    """Tokens of each sentence, descending, and whether they are certain; ``None`` where the message does not show them.

    Certain for one sentence, and for two where both their total and the longer are known. For more, the rest of the total is
    divided evenly, or all are assumed to be as long as the longest.
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
