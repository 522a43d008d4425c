"""Objectives, the client part of a method: losses and optimisation steps, one in each file."""

from fedpriv.objectives.base import Objective
from fedpriv.registry import Registry, subclass_of

registry: Registry[type[Objective]] = Registry("objective", "fedpriv.objectives", ["fedpriv.objectives"], *subclass_of(Objective))
register, objectives, find_objective = registry.register, registry.all, registry.find

__all__ = ["Objective", "find_objective", "objectives", "register"]
