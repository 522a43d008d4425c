"""TabLeak: gradient matching over the mixed columns of a table (Vero, Balunović, Dimitrov & Vechev, ICML 2023, arXiv:2210.01785).

Numbers are descended as they are, or by a sigmoid over their range; categories by the softmax over their entries
(:class:`fedpriv.attacks.gradients.variables.Cells`). An ensemble of starts minimises the cosine distance of gradients by Adam with
the sign of the gradient. The rows of every start are matched to those of the best one, and pooled by the median of each entry.

The attacker knows the net, its weights and the client's cross-entropy; labels are inferred first, where it does not know them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.attacks.attack import RowAttack, register
from fedpriv.attacks.core.columns import RowEncoding
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.gradients.distances import cosine
from fedpriv.attacks.gradients.matching import Case, Objective, build_case
from fedpriv.attacks.gradients.variables import Cells
from fedpriv.attacks.image.dlg import labels_together
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.lab.setting import RowSetting
from fedpriv.attacks.optimise.lbfgs import LbfgsOptions
from fedpriv.attacks.optimise.search import adam, batch_size, lbfgs
from fedpriv.attacks.rows.closed_form import require_encoding
from fedpriv.attacks.scoring.row_scores import match_rows


MILESTONES = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the steps at which the learning rate falls to a tenth, as in Inverting Gradients."""
DESCENT = 30
"""Steps of L-BFGS on the numbers between exchanges of levels."""
CHUNK = 128
"""Exchanges that are evaluated at once."""


@register("tableak")
@dataclass(frozen=True)
class TabLeak(RowAttack):
    """Gradient matching over numbers and categories, an ensemble of starts pooled by the median (TabLeak); signed Adam.

    Attributes:
        steps: of signed Adam; 1,500 in the authors' code.
        lr: as in the authors' code; falls to a tenth at 3/8, 5/8 and 7/8 of the steps.
        starts: of the ensemble.
        sweeps: largest number of exchanges of levels at the end (:func:`refined`).
    """

    control: ClassVar = RowSetting()
    max_batch: ClassVar = 8
    head: ClassVar = "shared"
    one_step: ClassVar = True
    any_labels: ClassVar = True
    steps: int = 1500
    lr: float = 0.06
    starts: int = 30
    sweeps: int = ranged(50)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> RowReconstruction:
        """See :meth:`fedpriv.attacks.attack.Attack.run`. The loss is the cosine distance of the rows that are returned."""
        began = time.process_time()
        encoding = require_encoding(observations[0])
        case = build_case(observations, bounded=True, scale_free=True)
        labels = case.labels
        if labels is None:
            labels = torch.stack([batch_labels(observation) for observation in observations])
        matching = labels_together(case, cosine, labels, known_top=True)
        raw, losses = list[Tensor](), list[Tensor]()
        for number in range(case.n):
            search = Search(matching.select(torch.tensor([number])), case.pixels, encoding)
            rows, loss = search.run(self, torch.Generator().manual_seed(seed + number))
            raw.append(rows)
            losses.append(loss)
        return RowReconstruction(torch.cat(raw), labels.flatten(), torch.stack(losses), encoding, time.process_time() - began)


class Search:
    """The search for the rows ``(B, F)`` behind one message.

    Args:
        objective: of that message.
    """

    def __init__(self, objective: Objective, cells: Cells, encoding: RowEncoding) -> None:
        self.objective, self.cells, self.encoding = objective, cells, encoding

    def run(self, options: TabLeak, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The rows ``(B, F)``, and their loss ``()``."""
        ensemble = self.descended(options, generator)
        best = ensemble[self.losses(ensemble).argmin()]
        both = torch.stack([self.pooled(ensemble, best), best])
        both = self.encoding.project(both)
        losses = self.losses(both)
        return self.refined(both[losses.argmin()], losses.min(), options.sweeps)

    def descended(self, options: TabLeak, generator: torch.Generator) -> Tensor:
        """The rows of every start ``(starts, B, F)``, categories as softmax."""
        starts = 2 * torch.rand(options.starts, self.objective.layout.size, generator=generator) - 1
        points = [
            adam(
                self._repeated(len(some)), some, options.lr, options.steps, signed=True, milestones=MILESTONES, enough=-math.inf
            ).x
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
            points = self.cells.unknown(rows).flatten()[None]
            result = lbfgs(self._repeated(1), points, LbfgsOptions(history=20, line_search=True), DESCENT, scale=1e3)
            if result.loss[0] < loss:
                rows, loss = self.encoding.project(self.cells.image(result.x.view(rows.shape))), result.loss[0]
            exchanges = self._exchanges(rows)
            if not len(exchanges):
                break
            losses = self.losses(exchanges)
            if not losses.min() < loss:
                break
            rows, loss = exchanges[losses.argmin()], losses.min()
        return rows, loss

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
