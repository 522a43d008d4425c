"""FedDUAL (Sahoo et al., arXiv:2412.04416): an adaptive loss at the clients, and dynamic aggregation at the server.

The equations are in :mod:`fedpriv.objectives.adaptive_kl` (eqs. 3-9) and :mod:`fedpriv.aggregation.mean_shift` (eqs. 10-13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_core import ArgsKwargs

from fedpriv.aggregation.mean_shift import MeanShift
from fedpriv.methods import register
from fedpriv.methods.base import Method, params
from fedpriv.objectives.adaptive_kl import AdaptiveKL

READINGS: Mapping[str, Mapping[str, Any]] = {
    "scale_free": {},
    "paper": {"eps_mode": "absolute", "eps": 1e-5},
    "code": {
        "eps_mode": "absolute",
        "eps": 1e-5,
        "server_object": "lossgrad_sum",
        "dyn_layers": "last2_tensors",
        "normaliser": "additive",
        "iterations": 1000,
        "beta_mode": "half",
        "kl_grad": False,
    },
}
"""The options that each reading of the paper changes."""


@params
class FedDualParams:
    """Options of FedDUAL.

    A reading sets the options that the user leaves out. ``paper`` follows the equations literally; its eps of 1e-5 gives all
    weight to one client. ``scale_free`` differs from ``paper`` only in eps, which is a multiple of the median distance. ``code``
    does what the released program does: all layers are averaged except the output layer, which keeps its random initial values.
    """

    reading: Literal["scale_free", "paper", "code"] = Field(
        "scale_free",
        description="the equations with a relative eps, the equations as printed, or the released code; options that are given "
        "take precedence",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_read(cls, values: Any) -> Any:
        given = dict(values.kwargs or {}) if isinstance(values, ArgsKwargs) else values
        if not isinstance(given, Mapping):
            return values
        names = cls.__dataclass_fields__  # type: ignore[attr-defined]
        preset = READINGS.get(given.get("reading", "scale_free"), {})
        return {**{name: value for name, value in preset.items() if name in names}, **given}


@register("feddual")
class FedDual(Method):
    """Adaptive loss at the clients; the server merges the last layers by a kernel-weighted mean."""

    paper = "Sahoo et al., arXiv:2412.04416 (FedDUAL)"
    Params = FedDualParams
    objective_class = AdaptiveKL
    aggregation_class = MeanShift
