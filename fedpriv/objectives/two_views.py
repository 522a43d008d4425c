"""What the objectives have in common that compare two views of each image, without labels."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from fedpriv.interfaces import Step
from fedpriv.objectives import Objective


class TwoViews(Objective):
    """A loss of the projections of two views; a subclass defines :meth:`compare`."""

    trained_roles = frozenset({"encoder", "projector"})
    labels = False
    views = 2
    decomposes = False
    smallest_batch = 2
    suggests: ClassVar[Mapping[str, Any]] = {"data.augment": "simclr"}

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """The loss of the two views' projections, each ``(B, D)``."""
        raise NotImplementedError

    def loss(self, step: Step) -> Tensor:
        first, second = (view.projection for view in step.views)
        return self.compare(first, second)
