"""How often a batch holds each of its sentences, and with which labels, from the gradient of the head.

For sentences with features ``f_s`` the gradient of the head's weight is ``sum_s c_s f_s^T / B``, where ``c_s = m_s p_s - n_s``
for a sentence that occurs ``m_s`` times, with predicted probabilities ``p_s`` and label counts ``n_s``. The features are known,
so ``c_s`` follows by least squares, and ``m_s`` is the number for which ``n_s`` are integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.core.functional import functional_call
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.text.case import TextCase

WHOLE = 0.05
"""Largest distance of a label count from an integer."""


@torch.no_grad()
def repeated(case: TextCase, sentences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The padded batch ``(B, L)`` made of these different sentences, and its labels ``(B,)``.

    Raises:
        Inapplicable: the net does not end in a linear layer that was sent, or no counts explain its gradient.
    """
    if not sentences:
        raise Inapplicable("no sentence was found")
    if not isinstance(case.net.top, nn.Linear) or "top.weight" not in case.observed:
        raise Inapplicable("the labels are in the gradient of a last linear layer, which was not sent")
    ids = pad_sequence(list(sentences), batch_first=True, padding_value=case.text.pad)
    fed: list[Tensor] = []
    hook = case.net.top.register_forward_pre_hook(lambda module, args: fed.append(args[0]))
    try:
        chances = functional_call(case.net, case.weights, (ids,)).softmax(-1).double()
    finally:
        hook.remove()
    sums = case.samples * torch.linalg.lstsq(fed[0].double().T, case.observed["top.weight"].double().T).solution
    rows, labels = list[int](), list[int]()
    for row, (chance, some) in enumerate(zip(chances, sums, strict=True)):
        for occurs in range(1, case.samples - len(sentences) + 2):
            counts = occurs * chance - some
            if float((counts - counts.round()).abs().max()) < WHOLE and float(counts.min()) > -WHOLE:
                own = torch.repeat_interleave(torch.arange(len(counts)), counts.round().long()).tolist()
                rows += [row] * len(own)
                labels += own
                break
    if len(rows) != case.samples:
        raise Inapplicable(
            f"the sentences found occur {len(rows)} times by the head's gradient, and the batch has {case.samples}"
        )
    return ids[rows], torch.tensor(labels)
