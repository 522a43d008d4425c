"""The losses of several clients at a time: in one call if the loss is declared stackable, otherwise by ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedpriv.client.learner import LocalBatch
from fedpriv.errors import FedprivError
from fedpriv.interfaces import CLASS_WEIGHTS, Loss, Step, is_stackable
from fedpriv.models.net import Outputs
from fedpriv.objectives.cross_entropy import mean_cross_entropy

Field = tuple[str, str]
"""The name of a teacher, and of one of its outputs."""

_DEFAULTS = {
    "weight": None,
    "size_average": None,
    "ignore_index": -100,
    "reduce": None,
    "reduction": "mean",
    "label_smoothing": 0.0,
}
"""The default options of ``F.cross_entropy``."""


class NotBatchable(Exception):
    """A loss cannot be batched over clients: never (``always``), or not this time."""

    def __init__(self, what: str, always: bool = True) -> None:
        super().__init__(what)
        self.always = always


class BatchedLoss:
    """A loss computed for several clients with batches of equal :meth:`kind`."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._stackable, self._checked = is_stackable(loss), False
        self._wanted: list[Field] = []

    @staticmethod
    def kind(loss: Loss, batch: LocalBatch) -> tuple[object, ...]:
        """The kind of a client's loss and batch; those of equal kind can be batched."""
        shapes = tuple([view.shape for view in batch.views if isinstance(view, Tensor)])
        return loss, batch.trains, batch.cached, shapes, frozenset(batch.memo)

    def ready(self, batches: Sequence[LocalBatch]) -> dict[Field, Tensor]:
        """The outputs of the clients' teachers on their batches, ``(K, B, ...)``: those that the loss has read before.

        Raises:
            NotBatchable: a teacher's outputs are not computed yet; each client computes its own.
        """
        tables = {key: [batch.teachers.known(key[0]) for batch in batches] for key in self._wanted}
        if any(table is None for column in tables.values() for table in column):
            raise NotBatchable("a teacher whose outputs are not computed yet", always=not batches[0].teachers.caches)
        return {
            (name, field): torch.stack(
                [getattr(table, field).index_select(0, batch.index) for batch, table in zip(batches, column, strict=True)]
            )
            for (name, field), column in tables.items()
        }

    def __call__(self, batches: Sequence[LocalBatch], views: Sequence[Outputs], ready: Mapping[Field, Tensor]) -> Tensor:
        """The K losses.

        Args:
            views: the outputs ``(K, B, ...)`` on each view of the batches.

        Raises:
            NotBatchable: the loss reads a client's memo or parameters, or its control flow depends on the data.
        """
        labels = torch.stack([batch.labels for batch in batches])
        losses_of = self._in_one_call if self._stackable else self._mapped
        while True:
            try:
                return losses_of(batches[0], labels, views, ready)
            except _NotReady as missing:
                self._wanted.append(missing.field)
                ready = self.ready(batches)

    def _in_one_call(self, first: LocalBatch, labels: Tensor, views: Sequence[Outputs], ready: Mapping[Field, Tensor]) -> Tensor:
        """The K losses, of a loss that is declared stackable.

        Raises:
            FedprivError: it is not stackable.
        """

        def wrong(what: str) -> FedprivError:
            name = getattr(self._loss, "__qualname__", self._loss)
            return FedprivError(f"the loss {name} is declared stackable, but it {what}; declare it without @stackable")

        names = _Names(first.memo, lambda name: wrong(f"reads a client's {name}"))

        def losses_of(labels: Tensor, views: Sequence[Outputs], ready: Mapping[Field, Tensor]) -> Tensor:
            return self._loss(
                Step(
                    labels,
                    views[0],
                    names,
                    first.received,
                    first.trains,
                    lambda name: _TeacherOutputs(name, ready),
                    views,
                    names,
                    first.memo.get(CLASS_WEIGHTS),
                )
            )

        losses = losses_of(labels, views, ready)
        if not self._checked:
            of_first = {field: tensor[0] for field, tensor in ready.items()}
            with torch.no_grad():
                alone = losses_of(labels[0], [view.map(lambda tensor: tensor[0]) for view in views], of_first)
            if losses.shape != labels.shape[:1] or not torch.allclose(losses[0], alone, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise wrong("gives several clients other losses than each alone")
            self._checked = True
        return losses

    def _mapped(self, first: LocalBatch, labels: Tensor, views: Sequence[Outputs], ready: Mapping[Field, Tensor]) -> Tensor:
        """The K losses, of any other loss."""
        fields_of_views = [{name: tensor for name, tensor in vars(view).items() if tensor is not None} for view in views]

        def loss_of_client(labels: Tensor, views: Sequence[Mapping[str, Any]], ready: Mapping[Field, Tensor]) -> Tensor:
            outputs = [Outputs(**{"prediction": None, **fields}) for fields in views]
            names = _Names(first.memo, lambda name: NotBatchable(f"a client's {name}"))
            return self._loss(
                Step(
                    labels,
                    outputs[0],
                    names,
                    first.received,
                    first.trains,
                    lambda name: _TeacherOutputs(name, ready),
                    outputs,
                    names,
                    first.memo.get(CLASS_WEIGHTS),  # the same for all clients
                )
            )

        try:
            with _PlainCrossEntropy():
                losses: Tensor = vmap(loss_of_client)(labels, fields_of_views, dict(ready))
        except RuntimeError as error:
            raise NotBatchable(str(error)) from None
        return losses


class _PlainCrossEntropy(TorchFunctionMode):
    """``F.cross_entropy`` of logits ``(B, C)`` and labels ``(B,)`` with default options, written out.

    vmap would decompose it, by a module whose import takes two seconds.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        default = all(name in _DEFAULTS and _DEFAULTS[name] == value for name, value in kwargs.items())
        if function is F.cross_entropy and default and [tensor.ndim for tensor in args] == [2, 1]:
            return mean_cross_entropy(*args)
        return function(*args, **kwargs)


class _NotReady(Exception):
    """A loss reads a field of a teacher's outputs that was not prepared."""

    def __init__(self, field: Field) -> None:
        self.field = field


class _TeacherOutputs(Outputs):
    """The prepared fields of a teacher's outputs."""

    def __init__(self, name: str, ready: Mapping[Field, Tensor]) -> None:
        self._name, self._ready = name, ready

    def __getattr__(self, field: str) -> Tensor:
        if (self._name, field) not in self._ready:
            raise _NotReady((self._name, field))
        return self._ready[self._name, field]


class _Names(Mapping[str, Tensor]):
    """The names of a client's tensors; a loss for several clients cannot read the tensors themselves.

    Args:
        refusal: name -> the error if a tensor is read.
    """

    def __init__(self, of: Mapping[str, Tensor], refusal: Callable[[str], Exception]) -> None:
        self._of, self._refusal = of, refusal

    def __getitem__(self, name: str) -> Tensor:
        raise self._refusal(name)

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)
