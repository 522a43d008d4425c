"""A client's loss for several clients at a time: the same code, batched by ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedpriv.client.learner import TurnBatch
from fedpriv.interfaces import Loss, Step
from fedpriv.models.net import Outputs

Field = tuple[str, str]
"""A teacher, and one of its outputs."""


_USUAL = {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean", "label_smoothing": 0.0}
"""The default options of ``F.cross_entropy``."""


class ForOneClient(Exception):
    """A loss cannot be batched over clients: never, or not this time."""

    def __init__(self, what: str, always: bool = True) -> None:
        super().__init__(what)
        self.always = always


class BatchedLoss:
    """A loss computed for several clients with batches of equal :meth:`kind`."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._wanted: list[Field] = []
        self._may_be_plain = True
        """As long as the loss is a plain cross-entropy, vmap is avoided: it costs as much as a small net's layers."""

    @staticmethod
    def kind(loss: Loss, batch: TurnBatch) -> tuple[object, ...]:
        """Clients of equal kind can be batched."""
        shapes = tuple(view.shape for view in batch.views if isinstance(view, Tensor))
        return loss, batch.trains, batch.cached, shapes, frozenset(batch.memo)

    def ready(self, batches: Sequence[TurnBatch]) -> dict[Field, Tensor]:
        """The outputs of the clients' teachers on their batches, ``(K, B, ...)``, as far as the loss has used them before.

        Raises:
            ForOneClient: a teacher's outputs are not computed yet, which each client does by itself.
        """
        tables = {key: [batch.teachers.known(key[0]) for batch in batches] for key in self._wanted}
        if any(table is None for column in tables.values() for table in column):
            raise ForOneClient("a teacher whose outputs are not computed yet", always=not batches[0].teachers.caches)
        return {
            (name, field): torch.stack(
                [getattr(table, field).index_select(0, batch.index) for batch, table in zip(batches, column, strict=True)]
            )
            for (name, field), column in tables.items()
        }

    def __call__(self, batches: Sequence[TurnBatch], views: Sequence[Outputs], ready: Mapping[Field, Tensor]) -> Tensor:
        """The K losses.

        Args:
            views: the outputs ``(K, B, ...)`` on each view of the batches.

        Raises:
            ForOneClient: the loss reads memo or parameters of a client, or its control flow depends on the data.
        """
        first = batches[0]
        labels = torch.stack([batch.labels for batch in batches])
        shown = [{name: tensor for name, tensor in vars(view).items() if tensor is not None} for view in views]

        def of_one(labels: Any, shown: Sequence[Mapping[str, Any]], ready: Mapping[Field, Tensor]) -> Tensor:
            outputs = [Outputs(**{"prediction": None, **fields}) for fields in shown]
            notes, received = _Names(first.memo), first.received
            return self._loss(
                Step(labels, outputs[0], notes, received, first.trains, lambda name: _Taught(name, ready), outputs, notes)
            )

        if self._may_be_plain:
            try:
                stands = [{name: _StandIn(tensor) for name, tensor in view.items()} for view in shown]
                found: object = of_one(_StandIn(labels), stands, {})
                if isinstance(found, _StandIn):
                    return found.stacked
            except (TypeError, AttributeError, _Missing):  # the loss does something else with them
                pass
            self._may_be_plain = False
        while True:
            try:
                with _PlainCrossEntropy():
                    losses: Tensor = vmap(of_one)(labels, shown, dict(ready))
                return losses
            except _Missing as missing:
                self._wanted.append(missing.field)
                ready = self.ready(batches)
            except RuntimeError as error:
                raise ForOneClient(str(error)) from None


def _usual(function: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether it is ``F.cross_entropy`` with default options."""
    return function is F.cross_entropy and all(_USUAL[name] == value for name, value in kwargs.items())


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits ``(..., B, C)`` and labels ``(..., B)`` -> means over the batches ``(...)``."""
    return -F.log_softmax(logits, -1).gather(-1, labels[..., None]).mean((-2, -1))


class _PlainCrossEntropy(TorchFunctionMode):
    """``F.cross_entropy`` of logits ``(B, C)`` and labels ``(B,)``, written out.

    vmap would decompose it in Python, by a module whose import takes two seconds.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return _cross_entropy(*args) if _usual(function, kwargs) else function(*args, **kwargs)


class _StandIn:
    """Stands for one client's tensor in a loss and holds all clients'; supports only ``F.cross_entropy``."""

    def __init__(self, stacked: Tensor) -> None:
        self.stacked = stacked

    __eq__ = __hash__ = __bool__ = None  # type: ignore[assignment]  # or it would be compared as an object

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        match args:
            case (cls(stacked=logits), cls(stacked=labels)) if _usual(function, kwargs or {}):
                if (logits.ndim, labels.ndim) == (3, 2):
                    return cls(_cross_entropy(logits, labels))
        return NotImplemented


class _Missing(Exception):
    """A loss reads a field of a teacher's outputs that was not prepared."""

    def __init__(self, field: Field) -> None:
        self.field = field


class _Taught(Outputs):
    """The prepared fields of a teacher's outputs."""

    def __init__(self, name: str, ready: Mapping[Field, Tensor]) -> None:
        self._name, self._ready = name, ready

    def __getattr__(self, field: str) -> Tensor:
        if (self._name, field) not in self._ready:
            raise _Missing((self._name, field))
        return self._ready[self._name, field]


class _Names(Mapping[str, Tensor]):
    """A client's own tensors; a loss for several clients may read only their names."""

    def __init__(self, of: Mapping[str, Tensor]) -> None:
        self._of = of

    def __getitem__(self, name: str) -> Tensor:
        raise ForOneClient(f"{name} of a client")

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)
