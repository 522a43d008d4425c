"""FedAtt (Ji et al. 2019): FedAvg's clients, and a server that steps towards the uploads with attention to their distance."""

from fedpriv.aggregation.fedatt import FedAtt as FedAttAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("fedatt")
class FedAtt(Method):
    """Plain local SGD; the server steps towards each tensor of the uploads, those further away weighing more."""

    paper = "Ji et al., IJCNN 2019"
    aggregation_class = FedAttAggregation
