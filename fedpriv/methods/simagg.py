"""SimAgg (Khan et al., BrainLes 2021): FedAvg's clients, and similarity weights (:mod:`fedpriv.aggregation.simagg`)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from fedpriv.aggregation.simagg import SimAgg as SimAggAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("simagg")
class SimAgg(Method):
    """Each tensor of an upload is weighted by its closeness to the plain mean and by the client's number of samples."""

    paper = "Khan et al., BrainLes 2021"
    aggregation_class = SimAggAggregation
    suggests: ClassVar[Mapping[str, Any]] = {"train.selection": "window"}
