"""FedSiam-DA (arXiv 2211.09421): Siamese local training and dual aggregation.

The equations are in :mod:`fedpriv.objectives.siamese` (alg. 1) and :mod:`fedpriv.aggregation.dual_mean` (eqs. 13-16).
"""

from fedpriv.aggregation.dual_mean import DualMean
from fedpriv.methods import register
from fedpriv.methods.base import Method
from fedpriv.objectives.siamese import Siamese


@register("fedsiam-da")
class FedSiamDA(Method):
    """Siamese training towards the global model and away from the client's past; a mean weighted by cosine similarity."""

    paper = "FedSiam-DA, arXiv 2211.09421"
    objective_class = Siamese
    aggregation_class = DualMean
