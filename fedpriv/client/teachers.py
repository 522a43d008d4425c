"""The frozen models (teachers) of a local update, and their outputs on the client's data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from fedpriv.client.model import ClientModel
from fedpriv.models.net import Outputs
from fedpriv.samples import Inputs


class Teachers:
    """Frozen models by name.

    Args:
        inputs: the client's data.
        caches: whether the data are the same in every epoch, so that a teacher's outputs are computed only once.
        features: features of all of the data, by the version of their encoder.
    """

    def __init__(self, model: ClientModel, inputs: Inputs, caches: bool, features: Mapping[int, Tensor]) -> None:
        self._model, self._inputs, self.caches, self._features = model, inputs, caches, features
        self._frozen: dict[str, tuple[Tensor, int | None]] = {}
        self._tables: dict[str, Outputs] = {}

    def freeze(self, name: str, row: Tensor, version: int | None) -> None:
        """Store the model ``row``, and the version of its encoder (``None``: a version without stored features)."""
        self._frozen[name] = row, version
        self._tables.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frozen)

    def outputs(self, name: str, index: Tensor, batch: Inputs) -> Outputs:
        """A teacher's outputs on a batch, which holds the samples at positions ``(B,)`` of the data."""
        if not self.caches:
            frozen = self._model.frozen
            frozen.row.copy_(self._frozen[name][0])
            return frozen.from_features(frozen.features(batch))
        table = self._tables[name] if name in self._tables else self._table(name)
        return table.map(lambda tensor: tensor[index])

    def known(self, name: str) -> Outputs | None:
        """A teacher's outputs on all of the data, if they were computed already."""
        return self._tables.get(name)

    def _table(self, name: str) -> Outputs:
        row, version = self._frozen[name]
        frozen = self._model.frozen
        frozen.row.copy_(row)
        stored = None if version is None else self._features.get(version)
        features = frozen.features(self._inputs) if stored is None else stored
        self._tables[name] = frozen.from_features(features)
        return self._tables[name]
