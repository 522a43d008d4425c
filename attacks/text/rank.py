"""The number of tokens in a message: of its longest sentence from the position embedding, in total from the rank of a gradient.

The weight gradient of a linear layer is a sum of one outer product per token, so its rank is the number of tokens as long as that
is below the layer's width (the observation behind DAGER, Petrov et al. 2024). With noise on the gradient the rank is full.
"""

from __future__ import annotations

from torch import nn

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.gradients.rank import rank
from fedpriv.attacks.text.rows import used_rows


def total_tokens(observation: Observation) -> int | None:
    """Tokens of all sentences together: the greatest rank among the shared linear layers that are not the head.

    Exact for one noiseless gradient; ``None`` where no rank is below its layer's width. Where only low-rank adapters are shared,
    there must be fewer tokens than their rank.
    """
    message = as_gradient(observation)
    found = []
    for name, module in message.net.named_modules():
        weight = message.shared.get(f"{name}.weight")
        if f"{name}.weight" in message.altered.kept:  # pruning changes the rank
            continue
        if isinstance(module, nn.Linear) and weight is not None and not name.startswith("top"):
            found.append(rank(weight))
    return max((each for each in found if each), default=None)


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
