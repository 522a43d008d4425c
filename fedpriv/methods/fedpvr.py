"""FedPVR (Li et al. 2023): SCAFFOLD on the last layers only, where clients' gradients differ most."""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.scaffold import Scaffold


@register("fedpvr")
class FedPVR(Scaffold):
    """Control variates for the last layers only, which are trained without momentum; the others as in FedAvg."""

    paper = "Li et al., CVPR 2023"
    defaults = {"layers": 2, "plain": True}  # noqa: RUF012
