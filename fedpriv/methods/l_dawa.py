"""L-DAWA (Rehman et al., ICCV 2023): self-supervised clients, and layer-wise divergence-aware weights at the server.

The equations are in :mod:`fedpriv.objectives.simclr` and :mod:`fedpriv.aggregation.dawa` (eqs. 2-6).
"""

from fedpriv.aggregation.dawa import LDawa as LDawaAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.simclr import SimClr


@register("l-dawa")
class LDawa(Method):
    """SimCLR at the clients; the server weights each layer of an upload by its cosine similarity to the global layer."""

    paper = "Rehman et al., ICCV 2023"
    objective_class = SimClr
    aggregation_class = LDawaAggregation
