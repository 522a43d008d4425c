"""MOON (Li et al., CVPR 2021): a model-contrastive term in the clients' loss (:mod:`fedpriv.objectives.moon`)."""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.moon import Moon as Objective


@register("moon")
class Moon(Method):
    """FedAvg with a contrastive loss: close to the received model, and away from the client's last one."""

    paper = "Li et al., CVPR 2021"
    objective_class = Objective
