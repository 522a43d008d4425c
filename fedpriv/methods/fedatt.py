"""FedAtt (Ji et al., IJCNN 2019): FedAvg's clients, and attentive aggregation (:mod:`fedpriv.aggregation.fedatt`)."""

from fedpriv.aggregation.fedatt import FedAtt as FedAttAggregation
from fedpriv.methods import register
from fedpriv.methods.base import Method


@register("fedatt")
class FedAtt(Method):
    """The server steps towards the uploads, tensor by tensor; the more distant an upload, the larger its weight."""

    paper = "Ji et al., IJCNN 2019"
    aggregation_class = FedAttAggregation
