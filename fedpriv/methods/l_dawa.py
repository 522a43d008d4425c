"""L-DAWA (Rehman et al. 2023): clients train without labels, and the server weighs each of their layers by its cosine."""

from fedpriv.aggregation.dawa import LDawa as LDawaAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.simclr import SimClr


@register("l-dawa")
class LDawa(Method):
    """SimCLR at the clients; each layer of an upload is weighted by its cosine with the global layer."""

    paper = "Rehman et al., ICCV 2023"
    objective_class = SimClr
    aggregation_class = LDawaAggregation
