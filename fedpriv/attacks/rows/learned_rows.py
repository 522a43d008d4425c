"""Learning To Invert (Wu, Chen, Guo & Weinberger, UAI 2023, arXiv:2210.10880) for rows of a table.

The attacker has public rows of the same table, simulates the messages of clients that hold one of them each, under the observed
defence (:mod:`fedpriv.attacks.image.learned_inversion`), and trains a net to map messages to rows. What noise or pruning removed,
the net fills in from what such rows look like.

Differs from the paper, besides what differs for images: the net gives a distribution for each cell, over levels, or over a grid
of numbers, whose mean around the likeliest step is the cell. Where public rows are few, crossings of two are learned, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.attack import RowAttack, register
from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding
from fedpriv.attacks.core.observation import Observation, Public, ThreatModel
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.gradients.simulated_messages import check_simulation
from fedpriv.attacks.image.learned_inversion import LearningOptions, group_by_download, lesson_of
from fedpriv.attacks.lab.setting import RowSetting
from fedpriv.attacks.rows.closed_form import require_encoding
from fedpriv.attacks.scoring.row_scores import TOLERANCE


@register("learned-rows")
@dataclass(frozen=True)
class LearnedRows(LearningOptions, RowAttack):
    """A net that learns from public rows to turn messages into rows; works under noise where closed forms and matching fail.

    Attributes:
        rows: to learn from; where there are fewer public ones, the others are crossings of two of these.
    """

    control: ClassVar = RowSetting(rows=40, min_recovery=0.6, threat=ThreatModel(public=True))
    most_steps: ClassVar = 8
    rows: int = ranged(1500, 2)
    components: int = 64

    @staticmethod
    def check(observation: Observation) -> None:
        require_encoding(observation)
        if observation.public is None:
            raise Inapplicable("it needs public rows of the same table, with labels, and there are none")
        if (observation.num_examples or 1) > 1:
            raise Inapplicable(f"it learns messages of one row, and this one stands for {observation.num_examples}")
        if observation.loss is not None:
            raise Inapplicable(f"it simulates clients that learn labels, and the client minimised {observation.loss}")
        if not observation.shared:
            raise Inapplicable("no layer is shared: there is no message to learn from")
        check_simulation(observation)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> RowReconstruction:
        """The loss is that of the last training step."""
        began, n = time.process_time(), len(observations)
        for observation in observations:
            self.check(observation)
        encoding = require_encoding(observations[0])
        raw, loss = torch.empty(n, encoding.width), torch.empty(n)
        for group in group_by_download(observations):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                public = observations[group[0]].public
                assert public is not None
                known = crossed(public, self.rows, encoding)
                grids = Grids.of(encoding, known.images)
                lesson = lesson_of([replace(observations[i], public=known) for i in group], len(known.images), self.components)
                outputs, losses = lesson.learned(grids.weights(known.images), grids.loss, self)
            raw[group], loss[group] = grids.rows(outputs), losses[-1]
        return RowReconstruction(raw, torch.full((n,), -1), loss, encoding, time.process_time() - began)


def crossed(public: Public, count: int, encoding: RowEncoding) -> Public:
    """The first ``count`` public rows; where there are fewer, also rows that have each cell from either of two of them, and the
    label of one."""
    rows, labels = public.images[:count].float().cpu(), public.labels[:count].cpu()
    first, second = torch.randint(len(rows), (2, count - len(rows)))
    mixed = rows[first]
    for at in encoding.entries:
        swapped = torch.rand(len(mixed)) < 0.5
        mixed[swapped, at] = rows[second[swapped], at]
    return Public(torch.cat([rows, mixed]), torch.cat([labels, labels[first]]))


@dataclass(frozen=True)
class Grids:
    """The distributions of cells: a weight for each level of a category; for each step of a grid, and for a missing number, where
    there may be one.

    Attributes:
        steps: of each column's grid, as numbers of a row's entry; empty for categories.
    """

    encoding: RowEncoding
    steps: tuple[Tensor, ...]

    @classmethod
    def of(cls, encoding: RowEncoding, rows: Tensor) -> Grids:
        """Grids over the range of the numbers of rows ``(m, F)``, in steps of the tolerance of scores."""
        ends = [(float(rows[:, at.start].min()), float(rows[:, at.start].max()) + TOLERANCE) for at in encoding.entries]
        of_numbers = (isinstance(column, NumberColumn) for column in encoding.columns)
        steps = [torch.arange(*end, TOLERANCE) if grid else torch.empty(0) for grid, end in zip(of_numbers, ends, strict=True)]
        return cls(encoding, tuple(steps))

    @property
    def sizes(self) -> list[int]:
        """The number of weights of each column."""
        pairs = zip(self.encoding.columns, self.steps, strict=True)
        return [column.width if isinstance(column, CategoryColumn) else len(steps) + column.gaps for column, steps in pairs]

    def weights(self, rows: Tensor) -> Tensor:
        """The distributions ``(m, T)`` of rows ``(m, F)``: a number is shared by the two steps beside it."""
        parts = []
        for column, at, steps in zip(self.encoding.columns, self.encoding.entries, self.steps, strict=True):
            part = rows[:, at]
            if isinstance(column, NumberColumn):
                near, missing = (1 - (part[:, :1] - steps).abs() / TOLERANCE).clamp_min(0), part[:, 1:]
                part = torch.cat([near * (1 - missing), missing], 1) if column.gaps else near
            parts.append(part)
        return torch.cat(parts, 1)

    def loss(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """The mean cross-entropy ``()`` of a column, for outputs and distributions ``(b, T)``."""
        pairs = zip(torch.split(outputs, self.sizes, 1), torch.split(weights, self.sizes, 1), strict=True)
        return torch.stack([F.cross_entropy(given, true) for given, true in pairs]).mean()

    def rows(self, outputs: Tensor) -> Tensor:
        """The rows ``(n, F)`` of outputs ``(n, T)``: probabilities of levels; of numbers the mean over the likeliest three steps
        in succession, or missing, if that is likelier."""
        rows = outputs.new_zeros(len(outputs), self.encoding.width)
        parts = torch.split(outputs, self.sizes, 1)
        for column, at, steps, part in zip(self.encoding.columns, self.encoding.entries, self.steps, parts, strict=True):
            chances = part.softmax(1)
            if isinstance(column, CategoryColumn):
                rows[:, at] = chances
                continue
            windows, numbers = (F.pad(each, (1, 1)).unfold(-1, 3, 1) for each in (chances[:, : len(steps)], steps))
            best = windows.sum(2).argmax(1)
            likely = windows[torch.arange(len(rows)), best]
            rows[:, at.start] = (likely * numbers[best]).sum(1) / likely.sum(1)
            if column.gaps:
                missing = chances[:, -1] > likely.sum(1)
                rows[:, at.start + 1] = missing.to(rows)
                rows[missing, at.start] = 0.0
        return rows
