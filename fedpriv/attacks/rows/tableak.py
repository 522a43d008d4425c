"""TabLeak: gradient matching over the mixed columns of a table (Vero, Balunović, Dimitrov & Vechev, ICML 2023, arXiv:2210.01785).

Numbers are descended as they are, or by a sigmoid over their range; categories by the softmax over their entries
(:class:`fedpriv.attacks.gradients.variables.Cells`). An ensemble of starts minimises the cosine distance of gradients by Adam
with the sign of the gradient. The rows of every start are matched to those of the best one, and pooled by the median of each
entry.

Differs from the paper: the pooled rows, or those of the best start if these explain the gradient better, are refined by exchanges
of single levels; no further starts are made once the rows explain the gradient.

The attacker knows the net, its weights and the client's cross-entropy; labels are inferred first, where it does not know them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.attack import RowAttack, register
from fedpriv.attacks.core.columns import RowEncoding
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, require_labels
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.gradients.distances import cosine
from fedpriv.attacks.gradients.matching import Objective, build_case
from fedpriv.attacks.gradients.variables import Cells
from fedpriv.attacks.image.dlg import labels_together
from fedpriv.attacks.inference.labels import batch_labels, bias_counts
from fedpriv.attacks.lab.setting import RowSetting
from fedpriv.attacks.optimise.lbfgs import LbfgsOptions
from fedpriv.attacks.optimise.search import STALLED, adam, batch_size, lbfgs
from fedpriv.attacks.rows.closed_form import require_encoding
from fedpriv.attacks.scoring.row_scores import match_rows

TOGETHER = 6
"""Starts that are descended at once; no more are made once their rows explain the gradient."""
EXPLAINED = 1e-5
"""Cosine distance at which rows explain a gradient without noise, up to rounding."""
NEAR = 1e-3
"""Cosine distance at which a start ends: its levels are clear, and its numbers descend faster by L-BFGS."""
DESCENT, LAST_DESCENT = 10, 200
"""Steps of L-BFGS on the numbers between exchanges of levels, and after the last one."""
SCALE = 1e3
"""Factor on the loss within L-BFGS, whose tolerances are absolute."""
CHUNK = 128
"""Exchanges that are evaluated at once."""


@register("tableak")
@dataclass(frozen=True)
class TabLeak(RowAttack):
    """Gradient matching over numbers and categories, an ensemble of starts pooled by the median (TabLeak); signed Adam.

    Attributes:
        steps: of signed Adam; 1,500 in the authors' code.
        lr: as in the authors' code, the same in all steps; if it falls as in Inverting Gradients, most starts end in wrong
            levels.
        starts: of the ensemble, at most.
        sweeps: largest number of exchanges of levels at the end (:func:`refined`).
    """

    control: ClassVar = RowSetting()
    audit_options: ClassVar = {"starts": 12}
    max_batch: ClassVar = 8
    head: ClassVar = "shared"
    one_step: ClassVar = True
    any_labels: ClassVar = True
    steps: int = 500
    lr: float = 0.06
    starts: int = 30
    sweeps: int = ranged(50)

    @staticmethod
    def check(observation: Observation) -> None:
        require_encoding(observation)
        require_labels(observation)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> RowReconstruction:
        """The loss is the cosine distance of the rows that are returned."""
        began = time.process_time()
        encoding = require_encoding(observations[0])
        case = build_case(observations, bounded=True, scale_free=True)
        cells = case.pixels
        assert isinstance(cells, Cells), "of messages on rows"
        raw, labels, losses = list[Tensor](), list[Tensor](), list[Tensor]()
        for number, observation in enumerate(observations):
            tries = list[tuple[Tensor, Tensor, Tensor]]()
            for guess in likely_labels(observation):
                matching = labels_together(case, cosine, guess.expand(case.n, -1), known_top=True)
                search = Search(matching.select(torch.tensor([number])), cells, encoding)
                rows, loss = search.run(self, torch.Generator().manual_seed(seed + number))
                tries.append((rows, guess, loss))
                if loss <= EXPLAINED:
                    break
            best = min(tries, key=lambda result: float(result[2]))
            for group, part in zip((raw, labels, losses), best, strict=True):
                group.append(part)
        return RowReconstruction(torch.cat(raw), torch.cat(labels), torch.stack(losses), encoding, time.process_time() - began)


def likely_labels(observation: Observation) -> list[Tensor]:
    """The labels ``(B,)`` behind a message, the likeliest first: those that the attacker is given, else those that the rules for
    counts infer.

    With few classes the rules differ now and then, and under wrong labels no rows explain a gradient.

    Raises:
        Inapplicable: no rule applies.
    """
    if observation.labels is not None:
        return [observation.labels.view(-1)]
    guesses = [batch_labels(observation)]
    with suppress(Inapplicable):
        by_bias = bias_counts(observation) if len(guesses[0]) > 1 else guesses[0].bincount(minlength=observation.classes)
        guesses.insert(0, torch.arange(len(by_bias)).repeat_interleave(by_bias))
    return guesses[:1] if all(torch.equal(guess, guesses[0]) for guess in guesses) else guesses


class Search:
    """The search for the rows ``(B, F)`` behind one message.

    Args:
        objective: of that message.
    """

    def __init__(self, objective: Objective, cells: Cells, encoding: RowEncoding) -> None:
        self.objective, self.cells, self.encoding = objective, cells, encoding

    def run(self, options: TabLeak, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The rows ``(B, F)``, and their loss ``()``."""
        ensemble = self.cells.low.new_zeros(0, *self.objective.layout.shapes["image"])
        for already in range(0, options.starts, TOGETHER):
            ensemble = torch.cat([ensemble, self.descended(options, min(TOGETHER, options.starts - already), generator)])
            best = ensemble[self.losses(ensemble).argmin()]
            both = self.encoding.project(torch.stack([self.pooled(ensemble, best), best]))
            losses = self.losses(both)
            rows, loss = self.refined(both[losses.argmin()], losses.min(), options.sweeps)
            if loss <= EXPLAINED:
                break
        return rows, loss

    def descended(self, options: TabLeak, count: int, generator: torch.Generator) -> Tensor:
        """The rows of ``count`` starts ``(count, B, F)``, categories as softmax."""
        starts = 2 * torch.rand(count, self.objective.layout.size, generator=generator) - 1
        points = [
            adam(self._repeated(len(some)), some, options.lr, options.steps, signed=True, enough=NEAR).x
            for some in torch.split(starts.to(self.cells.low), batch_size(self.objective))
        ]
        return self.cells.image(self.objective.layout.unpack(torch.cat(points))["image"])

    def pooled(self, ensemble: Tensor, best: Tensor) -> Tensor:
        """The median of all starts, whose rows are matched to those of the best one."""
        matched = [rows[match_rows(rows, best, self.encoding)] for rows in ensemble]
        return torch.stack(matched).median(0).values

    def losses(self, rows: Tensor) -> Tensor:
        """The losses ``(k,)`` of projected rows ``(k, B, F)``."""
        parts = []
        for some in torch.split(self.encoding.project(rows), CHUNK):
            objective = self._repeated(len(some))
            assert objective.together is not None
            parts.append(objective.together({"image": self.cells.unknown(some)}, objective.data).detach())
        return torch.cat(parts)

    def refined(self, rows: Tensor, loss: Tensor, sweeps: int) -> tuple[Tensor, Tensor]:
        """Descend the numbers, and exchange the level whose exchange lowers the loss most, as long as that helps.

        With a category's entries one-hot, the softmax has no slope, so that only numbers move.
        """
        for _ in range(sweeps):
            rows, loss = self._numbers_descended(rows, loss, DESCENT)
            exchanges = self._exchanges(rows)
            losses = self.losses(exchanges) if loss > EXPLAINED and len(exchanges) else loss[None]
            if not losses.min() < loss:
                break
            rows, loss = exchanges[losses.argmin()], losses.min()
        return self._numbers_descended(rows, loss, LAST_DESCENT)

    def _numbers_descended(self, rows: Tensor, loss: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        points = self.cells.unknown(rows).flatten()[None]
        options = LbfgsOptions(history=20, line_search=True)
        result = lbfgs(self._repeated(1), points, options, steps, EXPLAINED / 10, stalled=STALLED, scale=SCALE)
        if not result.loss[0] < loss:
            return rows, loss
        return self.encoding.project(self.cells.image(result.x.view(rows.shape))), result.loss[0]

    def _exchanges(self, rows: Tensor) -> Tensor:
        """All rows ``(k, B, F)`` with another level in one cell."""
        changed = []
        for at in self.encoding.categories:
            for row, level in (rows[:, at] == 0).nonzero().tolist():
                other = rows.clone()
                other[row, at], other[row, at.start + level] = 0.0, 1.0
                changed.append(other)
        return torch.stack(changed) if changed else rows.new_zeros(0, *rows.shape)

    def _repeated(self, count: int) -> Objective:
        return self.objective.select(torch.zeros(count, dtype=torch.long))
