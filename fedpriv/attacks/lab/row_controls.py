"""The positive and the negative control of attacks on rows: they must recover undefended rows, and find nothing in noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from fedpriv.attacks.attack import RowAttack
from fedpriv.attacks.core.columns import made_up_rows
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import mounting
from fedpriv.attacks.core.threads import one_thread
from fedpriv.attacks.lab.control import Control, behind_a_message, cached_controls, noise_like, run_control
from fedpriv.attacks.lab.setting import RowSetting
from fedpriv.attacks.scoring.row_scores import in_order, score_rows, typical_row

UNDEFENDED = RowSetting()
CHANCE = 0.2
"""How far the share of cells in the negative control may lie above that of guesses: random cells are right by chance."""
NOISE_ROWS = 8
"""Smallest number of rows of a negative control, so that their cells tell a leak from chance."""


@cache
def row_controls(attack: RowAttack, setting: RowSetting, seed: int = 0) -> tuple[Control, ...]:
    """The positive and the negative control, from the cache if they are in it; only the negative one where the setting requires
    no recovery."""

    def compute() -> list[Control]:
        positive = [positive_control(attack, setting, seed)] if setting.min_recovery else []
        return [*positive, negative_control(attack, setting, seed)]

    return cached_controls(attack, setting, seed, compute=compute)


@one_thread()
@mounting()
def positive_control(attack: RowAttack, setting: RowSetting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack recovers as many cells of undefended rows as the setting requires, and at least half of those that
    the typical row has wrong."""

    def check() -> tuple[bool, str]:
        messages, rows = _undefended(attack, setting, seed)
        share = _share_right(attack.run(messages, seed).raw, rows, setting, len(messages))
        typical = _share_right(typical_row(setting.encoding).to(rows).expand_as(rows), rows, setting, len(messages))
        needed = max(setting.min_recovery, (1 + typical) / 2)
        cells = f"{share:.0%} of the cells of {len(rows)} undefended rows{behind_a_message(setting.per_message)}"
        return share >= needed, f"{attack.name} recovered {cells} (at least {needed:.0%} needed)"

    return run_control("positive", attack.name, "undefended rows", check)


@one_thread()
@mounting()
def negative_control(attack: RowAttack, setting: RowSetting = UNDEFENDED, seed: int = 0) -> Control:
    """Check that the attack recovers no row from random gradients, whose tensors have the norms of the true ones, and hardly more
    cells than guesses have right.

    The guesses are the typical row, and other rows with the columns' means and deviations, matched as those of the attack.
    """

    def check() -> tuple[bool, str]:
        messages, rows = _undefended(attack, replace(setting, rows=max(setting.rows, NOISE_ROWS)), seed)
        generator = torch.Generator().manual_seed(seed)
        noise = [replace(message, shared=noise_like(message, generator)) for message in messages]
        share = _share_right(attack.run(noise, seed).raw, rows, setting, len(messages))
        others = made_up_rows(setting.encoding, len(rows), torch.Generator().manual_seed(seed + 1))
        typical = typical_row(setting.encoding).to(rows).expand_as(rows)
        chance = max(_share_right(guess, rows, setting, len(messages)) for guess in (others, typical))
        cells = f"{share:.0%} of the cells of {len(rows)} rows from random gradients{behind_a_message(setting.per_message)}"
        sentence = f"{attack.name} recovered {cells} (guesses without them: {chance:.0%})"
        return share <= chance + CHANCE, sentence

    return run_control("negative", attack.name, "random gradients", check)


def _undefended(attack: RowAttack, setting: RowSetting, seed: int) -> tuple[list[Observation], Tensor]:
    """Messages, and the rows ``(n, F)`` behind them."""
    rows, labels = setting.truth(seed)
    return setting.observations(rows, labels, seed, attack.alter if attack.is_malicious() else None), rows


def _share_right(raw: Tensor, rows: Tensor, setting: RowSetting, messages: int) -> float:
    """The share of right cells, after the rows of each message are matched to the true ones."""
    return score_rows(in_order(raw, rows, setting.encoding, messages)[0], rows, setting.encoding).cells.share
