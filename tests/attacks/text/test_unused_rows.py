"""Which words a client has, by the rows of its embedding, whatever its optimiser and rounding do to the rows of other words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.text_reconstruction import counts_of
from fedpriv.attacks.text.rank import longest
from fedpriv.attacks.text.rows import why_estimated
from fedpriv.attacks.text.tokens import find_tokens
from fedpriv.attacks.text.victims import PAD, SMALL
from fedpriv.audit.record.local_steps import LocalSteps
from fedpriv.config import TrainConfig
from fedpriv.interfaces import phase
from tests.attacks.text_client import TEXT, message, trained, whole

MOST_WORDS = [16] * 24
"""Lengths of sentences that hold most of the small vocabulary."""


def stepped(lengths: list[int], train: TrainConfig, steps: int) -> tuple[Observation, Tensor]:
    """The change after steps of torch's own optimiser on all sentences, and the mask of their words ``(V,)``."""
    observation, ids, labels = message(lengths)
    net = whole(observation)
    kind = {
        "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop, "nadam": torch.optim.NAdam
    }[train.optimizer]  # fmt: skip
    optimiser = kind(net.parameters(), lr=train.lr, weight_decay=train.weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(net(ids), labels).backward()
        optimiser.step()
        if train.local_lr_schedule is not None:
            scheduler.step()
    change = {name: p.detach() - observation.weights[name] for name, p in net.named_parameters()}
    method: Any = SimpleNamespace(
        phases=lambda round: [phase(epochs=steps)], objective=SimpleNamespace(batches_per_step=1, smallest_batch=1)
    )
    idle = LocalSteps(train, method, 1, ["encoder.word"], len(lengths), 1).without_gradient()
    true = counts_of(ids, SMALL.words, PAD) > 0
    return replace(observation, kind="change", shared=change, zero_gradient_change=idle), true


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "nadam"])
@pytest.mark.parametrize("within", [None, "cosine"])
@pytest.mark.parametrize("decay", [1e-4, 1e-3])
@pytest.mark.parametrize("lengths", [[8, 6], MOST_WORDS], ids=["few words", "most words"])
def test_after_adaptive_steps_with_weight_decay(optimizer: Any, within: Any, lengths: list[int], decay: float) -> None:
    """Adam's weight decay moves every row by the learning rate in every step; RMSprop's and NAdam's do alike."""
    train = TrainConfig(optimizer=optimizer, lr=1e-3, weight_decay=decay, batch_size=100, local_lr_schedule=within)
    seen, true = stepped(lengths, train, steps=4)
    tokens = find_tokens(seen)
    assert torch.equal(tokens.present, true) and tokens.exact
    assert why_estimated(seen, TEXT.words) is None


def test_failure_is_inconclusive_if_unused_rows_moved() -> None:
    train = TrainConfig(optimizer="adam", lr=1e-3, weight_decay=1e-3, batch_size=100)
    seen, true = stepped([8, 6], train, steps=4)
    seen = replace(seen, zero_gradient_change=None)
    assert not bool((find_tokens(seen).present & true).any())
    assert "estimate" in str(why_estimated(seen, TEXT.words))
    declared = replace(seen, altered=Altered(variance={TEXT.words: 1e-6}))
    assert why_estimated(declared, TEXT.words) is None, "noise that was declared is a defence"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_weights_that_were_sent_with_16_bits(dtype: torch.dtype, decay: float) -> None:
    """Rounding changes all rows, by up to half a unit in the last place."""
    seen, ids, _ = trained(MOST_WORDS, Schedule(lr=0.5, steps=5, batch_size=24, momentum=0.5, weight_decay=decay))
    shared = {n: (seen.weights[n] + t).to(dtype).float() - seen.weights[n] for n, t in seen.shared.items()}
    rounded = replace(seen, shared=shared, altered=Altered(variance=dict.fromkeys(shared, 1e-10)))
    assert longest(rounded) == MOST_WORDS[0]
    present, true = find_tokens(rounded).present, counts_of(ids, SMALL.words, PAD) > 0
    assert not bool((present & ~true).any()), "no other word is named"
    assert float((present & true).sum() / true.sum()) > (0.99 if dtype is torch.float16 else 0.5)


def test_a_quantised_change() -> None:
    """Weight decay changes an entry by far less than a quantisation step, and is rounded up to one at random."""
    seen, ids, _ = trained([16] * 4, Schedule(lr=0.05, steps=40, batch_size=4, momentum=0.5, weight_decay=1e-2))
    draw, shared, variance = torch.Generator().manual_seed(0), {}, {}
    for name, change in seen.shared.items():
        step = change.abs().max() / 127
        shared[name] = (change / step + torch.rand(change.shape, generator=draw)).floor() * step
        variance[name] = float(step) ** 2 / 6
    quantised = replace(seen, shared=shared, altered=Altered(variance=variance))
    moved, true = shared[TEXT.words].any(1), counts_of(ids, SMALL.words, PAD) > 0
    assert float((moved & true).sum() / moved.sum()) < 0.5, "most of the rows that changed are of other words"
    assert longest(quantised) == 16
    present = find_tokens(quantised).present
    assert float((present & true).sum() / present.sum()) > 0.95 < float((present & true).sum() / true.sum())
