"""The frozen models of a client's local update, and what they say of its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from fedpriv.client.model import ClientModel
from fedpriv.models.net import Outputs
from fedpriv.samples import Inputs


class Teachers:
    """Constant models by name.

    Args:
        inputs: the client's data.
        caches: whether these are the same in every epoch, so that a teacher need look at them only once.
        features: the features of all of them by the version of the encoder that made them.
    """

    def __init__(self, model: ClientModel, inputs: Inputs, caches: bool, features: Mapping[int, Tensor]) -> None:
        self._model, self._inputs, self.caches, self._features = model, inputs, caches, features
        self._frozen: dict[str, tuple[Tensor, int | None]] = {}
        self._tables: dict[str, Outputs] = {}

    def freeze(self, name: str, row: Tensor, version: int | None) -> None:
        """Keep the model ``row``, whose encoder is of a version (``None``: of none whose features are kept)."""
        self._frozen[name] = row, version
        self._tables.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frozen)

    def outputs(self, name: str, index: Tensor, batch: Inputs) -> Outputs:
        """A teacher's outputs on a batch, the samples at positions ``(B,)`` of the data."""
        if not self.caches:
            frozen = self._model.frozen
            frozen.row.copy_(self._frozen[name][0])
            return frozen.from_features(frozen.features(batch))
        table = self._tables[name] if name in self._tables else self._table(name)
        return table.map(lambda tensor: tensor[index])

    def known(self, name: str) -> Outputs | None:
        """A teacher's outputs on all of the data, where it has looked at them already."""
        return self._tables.get(name)

    def _table(self, name: str) -> Outputs:
        row, version = self._frozen[name]
        frozen = self._model.frozen
        frozen.row.copy_(row)
        known = None if version is None else self._features.get(version)
        features = frozen.features(self._inputs) if known is None else known
        self._tables[name] = frozen.from_features(features)
        return self._tables[name]
