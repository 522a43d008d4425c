"""The tokens of a client's batch, from the gradient of the word embedding (Melis et al., S&P 2019, section 4.1).

The gradient's row of a word is the sum over its occurrences, and zero if it does not occur. It does not show the order of tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.attack import TextAttack, register
from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.lab.setting import TextSetting
from fedpriv.attacks.text.rank import longest, total_tokens
from fedpriv.attacks.text.rows import used_rows


@dataclass(frozen=True)
class Tokens:
    """The result of :func:`find_tokens`.

    Attributes:
        present: ``(V,)``; never true for padding.
        counts: ``(V,)``, estimates, at least 1 where ``present`` (:func:`estimated_counts`).
        exact: whether ``present`` is certain (:class:`fedpriv.attacks.text.rows.Rows`).
        how: how the tokens were found, as a clause.
    """

    present: Tensor
    counts: Tensor
    exact: bool
    how: str


def find_tokens(observation: Observation) -> Tokens:
    """The tokens of a message.

    Raises:
        Inapplicable: the word embedding was not sent (the error lists what the message reveals instead), or its gradient is zero.
    """
    if observation.text is None:
        raise Inapplicable("tokens are found in the gradient of a word embedding, and the net has other inputs")
    text = observation.text
    if text.words not in observation.shared:
        raise Inapplicable(f"the word embedding was not sent: {remaining_leakage(observation)}")
    rows = used_rows(observation, text.words)
    if rows.exact and not bool(rows.used.any()) and not observation.altered.variance.get(text.words):
        raise Inapplicable("the gradient of the word embedding is zero, which shows no word: every sentence has some")
    present = rows.used.clone()
    present[text.pad] = False
    counts = estimated_counts(rows.norms, present, text, observation.num_examples)
    if observation.kind == "gradient" and rows.exact and (total := total_tokens(observation)):
        counts = fitted_counts(counts, rows.norms, text, total)
    return Tokens(present, counts, rows.exact, rows.how)


def estimated_counts(norms: Tensor, present: Tensor, text: TextFacts, sentences: int | None) -> Tensor:
    """Estimate how often each word occurs ``(V,)``, from the norm of its row ``(V,)`` relative to the closing token's.

    The closing token occurs once per sentence. Within a sentence the gradients at two positions are nearly parallel, so norms
    add; between sentences they are nearly orthogonal, so squares add. Hence ``norm / closing`` for one sentence and
    ``n (norm / closing)^2`` for n. On Banking77 with a random BERT the overlap with the true counts (sum of minima over sum of
    maxima) was 1.0, 0.85, 0.78 and 0.73 for 1, 4, 16 and 64 sentences; counting every word once gives 0.97, 0.77, 0.53 and 0.31.
    Without a closing token, or if the number of sentences is unknown, every word counts once.
    """
    counts = present.long()
    closing = text.special[-1] if text.special else None
    if closing is not None and sentences is not None and bool(present[closing]):
        ratio = norms / norms[closing]
        estimate = (ratio if sentences == 1 else sentences * ratio.square()).round().long()
        counts = torch.where(present, estimate.clamp(min=1), 0)
        counts[list(text.special)] = sentences * present[list(text.special)].long()
    return counts


def fitted_counts(counts: Tensor, norms: Tensor, text: TextFacts, total: int) -> Tensor:
    """Adjust estimated counts ``(V,)`` to sum to a known ``total``, including special tokens; unchanged if that is impossible.

    Every word gets one; the rest is distributed in proportion to the squared norms ``(V,)``. In a pretrained encoder the closing
    token's row is small, and estimates relative to it are several times too large.
    """
    words = counts > 0
    words[list(text.special)] = False
    spare = total - int(counts[list(text.special)].sum()) - int(words.sum())
    if spare < 0 or not bool(words.any()):
        return counts
    power = torch.where(words, norms.double().square(), 0.0)
    wanted = (power / power.sum() * (spare + words.sum()) - 1).clamp(min=0)
    exact = wanted / wanted.sum().clamp_min(1e-30) * spare
    more = exact.floor().long()
    rest = spare - int(more.sum())
    more[(exact - more).topk(min(rest, len(more))).indices] += 1
    return torch.where(words, 1 + more, counts)


def remaining_leakage(observation: Observation) -> str:
    """What a message reveals without its word embedding, as a clause."""
    left = []
    if most := longest(observation):
        left.append(f"the longest sentence has {most} tokens (from the position embedding)")
    if total := total_tokens(observation):
        least = "" if observation.text is not None and observation.text.positions else "at least "
        left.append(f"all together have {least}{total} (from the rank of a linear layer's gradient)")
    with suppress(Inapplicable):
        left.append(f"the labels are {batch_labels(observation).tolist()}")
    return f"what is left: {'; '.join(left)}" if left else "nothing else is left of it: not its length, not its labels"


@register("tokens")
@dataclass(frozen=True)
class TokenSet(TextAttack):
    """The tokens of a batch, without their order, from the gradient of the word embedding; no optimisation."""

    control: ClassVar = TextSetting()
    max_batch: ClassVar = None
    optimises: ClassVar = False

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        """Labels are inferred from the head where it was sent."""
        began = time.process_time()
        results = [find_tokens(observation) for observation in observations]
        counts = torch.stack([tokens.counts for tokens in results])
        labels = torch.cat([inferred_labels(observation) for observation in observations])
        loss, notes = torch.full((len(results),), torch.nan), tuple(tokens.how for tokens in results)
        return TextReconstruction(None, counts, labels, loss, notes, time.process_time() - began)


def inferred_labels(observation: Observation) -> Tensor:
    """Labels ``(B,)`` inferred from the head; -1 if that is impossible."""
    try:
        return batch_labels(observation)
    except Inapplicable:
        return torch.full((observation.num_examples or 1,), -1)
