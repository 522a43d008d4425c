"""FedPer (Arivazhagan et al. 2019): the encoder is shared, the head is personal, both are trained together."""

from fedpriv.methods.base import Method
from fedpriv.methods.registry import register


@register("fedper")
class FedPer(Method):
    """Shared encoder, personal projector and head, trained together."""

    paper = "Arivazhagan et al., arXiv:1912.00818"
    shared = frozenset({"encoder"})
    round_zero = True
