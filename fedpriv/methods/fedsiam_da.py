"""FedSiam-DA (arXiv 2211.09421): Siamese local training and dual aggregation."""

from fedpriv.aggregation.dual_mean import DualMean
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.siamese import Siamese


@register("fedsiam-da")
class FedSiamDA(Method):
    """Pulled to a copy of the global model that learns too, pushed from the client's past; a mean weighted by cosines."""

    paper = "FedSiam-DA, arXiv 2211.09421"
    objective_class = Siamese
    aggregation_class = DualMean
