"""Aggregations, the server part of a method: functions of a round's uploads, a matrix K x p, and the classes that use them."""

from fedpriv.aggregation.base import Aggregation, Memory, Merged, Uploads
from fedpriv.registry import Registry, subclass_of

registry: Registry[type[Aggregation]] = Registry(
    "aggregation", "fedpriv.aggregation", ["fedpriv.aggregation"], *subclass_of(Aggregation)
)
register, aggregations, find_aggregation = registry.register, registry.all, registry.find

__all__ = ["Aggregation", "Memory", "Merged", "Uploads", "aggregations", "find_aggregation", "register"]
