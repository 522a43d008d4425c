"""MOON (Li et al. 2021)."""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.moon import Moon as Objective


@register("moon")
class Moon(Method):
    """FedAvg whose clients contrast the received model with their own last one."""

    paper = "Li et al., CVPR 2021"
    objective_class = Objective
