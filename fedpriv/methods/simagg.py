"""SimAgg (Khan et al. 2022): FedAvg's clients, and a server that weighs each tensor by its closeness to the mean."""

from collections.abc import Mapping
from typing import Any, ClassVar

from fedpriv.aggregation.simagg import SimAgg as SimAggAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("simagg")
class SimAgg(Method):
    """Plain local SGD; each tensor of an upload weighs by its closeness to the plain mean and by the samples."""

    paper = "Khan et al., BrainLes 2021"
    aggregation_class = SimAggAggregation
    suggests: ClassVar[Mapping[str, Any]] = {"train.selection": "window"}
