"""FedDUAL (Sahoo et al. 2024): an adaptive loss at the clients, and a kernel-weighted mean of the last layers at the server."""

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
"""The options that each reading sets; the others have the halves' defaults."""


@params
class FedDualParams:
    """Options of FedDUAL.

    A reading sets options of the halves where they are not given. ``paper`` follows the equations to the letter, and its eps
    of 1e-5 makes one client win outright. ``scale_free`` differs in the unit of eps only. ``code`` is what the released program
    does: a mean of all but the output layer, which keeps its first random values.
    """

    reading: Literal["scale_free", "paper", "code"] = Field(
        "scale_free",
        description="the equations with eps relative, the equations, or the released code; other options go before it",
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
    """Adaptive loss at the clients, kernel-weighted mean of the last layers at the server."""

    paper = "Sahoo et al., arXiv:2412.04416 (FedDUAL)"
    Params = FedDualParams
    objective_class = AdaptiveKL
    aggregation_class = MeanShift
