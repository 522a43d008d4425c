"""FedSiam-DA (arXiv 2211.09421): Siamese local training and dual aggregation."""

from fedpriv.aggregation.dual_mean import DualMean
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.siamese import Siamese


@register("fedsiam-da")
class FedSiamDA(Method):
    """Training towards a copy of the global model that is trained too, and away from the client's past; a mean by cosines."""

    paper = "FedSiam-DA, arXiv 2211.09421"
    objective_class = Siamese
    aggregation_class = DualMean
