"""Rows in closed form from the weight and bias gradient of the first linear layer; no optimisation.

For one row, every row of the weight gradient over its entry of the bias gradient is the row (Phong et al. 2018;
:mod:`fedpriv.attacks.gradients.analytic`). For several rows the following are tried, the cheapest first:

* neurons that only one row activates, whose quotient is that row;
* the span of the gradient, whose only vectors with one-hot categories are the rows (:mod:`fedpriv.attacks.rows.span`);
* behind a ReLU, the sparse columns of the gradient (SPEAR, :mod:`fedpriv.attacks.gradients.spear`).

Where the attacker knows the whole net, the mixture of the rows' gradients that is the message tells which of them are in it, how
often, and with which labels (:mod:`fedpriv.attacks.rows.counts`).

A mixture of rows gives itself away, as its categories are not one-hot. A change of several local steps has the same span and, as
far as rows activate the same neurons in all steps, the same quotients.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.attack import RowAttack, register
from fedpriv.attacks.core.columns import RowEncoding
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.options import ranged
from fedpriv.attacks.core.reconstruction import Inapplicable, filled, require_labels
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.gradients.analytic import invertible_layers, require_invertible_layers, row_ratios, single_sample, why_empty
from fedpriv.attacks.gradients.linear import is_rectified
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.gradients.spear import SpearOptions, rectified_layer, unmix
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.lab.setting import RowSetting
from fedpriv.attacks.rows.counts import label_counts
from fedpriv.attacks.rows.span import determined_by, rows_in_span

SLACK = 1e-2
"""Largest error of an entry of an exact row."""
LEAST_SHARE = 0.1
"""Smallest share of the most frequent row's weight in the gradient that a row behind the message has."""
SAME = 1e-2
"""Rows whose entries differ by no more than this are one."""


@register("closed-form")
@dataclass(frozen=True)
class ClosedForm(RowAttack):
    """Rows read off the first shared linear layer where it is fed the row: quotients, the gradient's span, sparse columns.

    Attributes:
        starts: largest number of starts of the search for sparse columns.
        most: largest number of rows behind a message for that search.
    """

    control: ClassVar = RowSetting()
    max_batch: ClassVar = 20
    optimises: ClassVar = False
    simulates: ClassVar = False
    starts: int = SpearOptions.starts
    most: int = ranged(16, 1, 1000)

    empty = staticmethod(why_empty)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> RowReconstruction:
        """The loss is the share of rows that are not exact ones. If fewer rows are found than there are, the rest is NaN; if the
        number is not known, those are returned that are exact.
        """
        began = time.process_time()
        encoding = require_encoding(observations[0])
        batches = [self._reconstruct(observation, seed) for observation in observations]
        raw = pad_sequence([rows for rows, _ in batches], batch_first=True, padding_value=torch.nan)
        labels = pad_sequence([labels for _, labels in batches], batch_first=True, padding_value=-1)
        loss = torch.stack([1 - exact(rows, encoding).float().mean() if len(rows) else torch.tensor(1.0) for rows, _ in batches])
        return RowReconstruction(raw.flatten(0, 1), labels.flatten(), loss, encoding, time.process_time() - began)

    @classmethod
    def most_rows(cls, observation: Observation) -> int | None:
        """Half of the entries that are independent (measured on four tables)."""
        encoding = require_encoding(observation)
        return max(1, min(cls.max_batch, (encoding.width - len(encoding.categories)) // 2))

    @staticmethod
    def check(observation: Observation) -> None:
        require_encoding(observation)
        layer, kind = require_invertible_layers(observation)[0]
        if not kind.is_image:
            raise Inapplicable(f"the input of {layer.name!r} is features, not the row")

    @staticmethod
    def harder(observation: Observation) -> str | None:
        gradient = as_gradient(observation)
        first = invertible_layers(gradient)[0][0].name
        encoding, samples = require_encoding(observation), observation.num_examples
        if samples == 1 or (samples is not None and samples <= determined_by(encoding)) or is_rectified(gradient, first):
            return None
        return f"no ReLU follows {first!r}, so that every row behind a message moves every neuron"

    def _reconstruct(self, observation: Observation, seed: int) -> tuple[Tensor, Tensor]:
        """The rows ``(m, F)`` behind a message, and their labels ``(m,)``."""
        self.check(observation)
        encoding, n = require_encoding(observation), observation.num_examples
        if why_empty(observation):
            return torch.full((n or 1, encoding.width), torch.nan), torch.full((n or 1,), -1)
        if n == 1:
            return single_sample(observation)[0][0].values, single_label(observation)
        candidates = row_ratios(observation)[0]
        rows, labels = counted(observation, candidates.values[candidates.plausible])
        others = [candidates.values[~candidates.plausible]]
        for find in (self._in_span, self._sparse):
            # Too many rows are exact where some are sums and differences of others; the span has all of them.
            if len(rows) == n or (find == self._sparse and n is not None and len(rows) > n):
                break
            with suppress(Inapplicable):
                recovered = find(observation, encoding, seed)
                is_exact = exact(recovered, encoding)
                rows, labels = counted(observation, distinct([rows, recovered[is_exact]]))
                others.insert(0, recovered[~is_exact])
        if n is None:
            return rows, labels
        return filled(torch.cat([rows, *others]), n), torch.cat([labels, labels.new_full((n,), -1)])[:n]

    def _in_span(self, observation: Observation, encoding: RowEncoding, seed: int) -> Tensor:
        gradient = as_gradient(observation)
        layer = invertible_layers(gradient)[0][0]
        error = gradient.altered.variance.get(f"{layer.name}.weight", 0.0) ** 0.5
        return rows_in_span(layer, encoding, error)

    def _sparse(self, observation: Observation, encoding: RowEncoding, seed: int) -> Tensor:
        layer, error = rectified_layer(observation)
        weight, bias = (observation.weights[f"{layer.name}.{kind}"] for kind in ("weight", "bias"))
        return unmix(layer, weight, bias, SpearOptions(self.starts, self.most), error, seed).inputs.to(layer.weight)


def require_encoding(observation: Observation) -> RowEncoding:
    """The columns of the rows behind a message.

    Raises:
        Inapplicable: they are not known, as for samples of another kind.
    """
    if observation.encoding is None:
        raise Inapplicable("it reads rows of a table, and what the net's inputs are is not known")
    return observation.encoding


def exact(rows: Tensor, encoding: RowEncoding) -> Tensor:
    """Which rows ``(n, F)`` are some cells' encoding, up to rounding ``(n,)``."""
    return encoding.valid(rows, SLACK).all(1)


def single_label(observation: Observation) -> Tensor:
    """The label behind a message of one row ``(1,)``; -1 where no rule applies."""
    with suppress(Inapplicable):
        require_labels(observation)
        return batch_labels(observation)
    return torch.tensor([-1])


def counted(observation: Observation, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of ``(m, F)`` that are behind a message, as often as they are, and their labels.

    Where the attacker cannot tell, that is all of them, with labels of -1.
    """
    unknown = rows, torch.full((len(rows),), -1)
    if not len(rows):
        return unknown
    try:
        counts = label_counts(observation, rows)
    except Inapplicable:
        return unknown
    row, label = (counts >= LEAST_SHARE * counts.max()).nonzero().T
    times = counts[row, label].round().long().clamp_min(1)
    order = counts[row, label].argsort(descending=True)
    row, label = row[order].repeat_interleave(times[order]), label[order].repeat_interleave(times[order])
    return rows[row], label


def distinct(groups: Sequence[Tensor]) -> Tensor:
    """The rows of all groups ``(m, F)`` in order, without repetitions."""
    rows = torch.cat(list(groups))
    near = (rows[:, None] - rows).abs().amax(2) <= SAME
    return rows[~near.tril(-1).any(1)]
