"""The result of an attack on rows of a table."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpriv.attacks.core.columns import Cell, RowEncoding


@dataclass(frozen=True)
class RowReconstruction:
    """Rows reconstructed from ``N`` observations of ``B`` rows each (``n = N * B``, observation by observation, in any order
    within each).

    Attributes:
        raw: the rows as the attack left them, encoded as the net takes them ``(n, F)``: categories need not be one-hot. NaN where
            it found none.
        labels: the attack's guesses ``(n,)``; -1 where it makes none.
        loss: the attack's final loss per observation ``(N,)``, not comparable between attacks.
        encoding: of the columns.
        cpu_seconds: of the whole attack.
    """

    raw: Tensor
    labels: Tensor
    loss: Tensor
    encoding: RowEncoding
    cpu_seconds: float = 0.0

    @property
    def cells(self) -> list[tuple[Cell, ...]]:
        """The cells of every row; ``None`` where the attack found no row."""
        return self.encoding.decode(self.raw)
