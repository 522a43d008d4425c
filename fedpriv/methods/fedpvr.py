"""FedPVR (Li et al., CVPR 2023): SCAFFOLD for the last layers only, where the clients' gradients differ most."""

from __future__ import annotations

from fedpriv.methods import register
from fedpriv.methods.scaffold import Scaffold


@register("fedpvr")
class FedPVR(Scaffold):
    """Control variates for the last layers, which are trained without momentum; the other layers as in FedAvg."""

    paper = "Li et al., CVPR 2023"
    defaults = {"layers": 2, "plain": True}  # noqa: RUF012
