"""Federated methods, one paper in each file; ``register`` makes a class known by name."""

from fedpriv.methods.base import Method
from fedpriv.registry import Registry, subclass_of

registry: Registry[type[Method]] = Registry("method", "fedpriv.methods", ["fedpriv.methods"], *subclass_of(Method))
register, methods, find_method = registry.register, registry.all, registry.find

__all__ = ["Method", "find_method", "methods", "register"]
