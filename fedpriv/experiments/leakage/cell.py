"""One cell of a leakage experiment: images, a victim, the defences of its message, and the attack."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from fedpriv.attacks.core.observation import ThreatModel

LABEL_RULES = ("idlg-label", "bias-label")
"""Attackers that only infer the label (:mod:`fedpriv.attacks.inference.labels`); those of the registry reconstruct images."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ImagesSpec(_Section):
    """Test images of a data set: the first ``n`` in an order drawn by the seed, so that a larger ``n`` adds to a smaller one."""

    dataset: str = "cifar10"
    n: PositiveInt = 50
    seed: NonNegativeInt = 0


class VictimSpec(_Section):
    """The LeNet of DLG, parameters U(-0.5, 0.5), and a client's turn on ``batch`` images: ``steps`` full-batch steps of SGD.

    The message of one step is the gradient, that of several the change of the weights.
    """

    layers: Literal[1, 2, 3] = Field(1, description="linear layers at the end")
    masked: NonNegativeInt = Field(0, description="number of them, from the last, that are not sent")
    convolutions: Literal[0, 1, 2] = Field(0, description="number of the three convolutions, from the last, that are not sent")
    bias: bool = Field(True, description="whether the linear layers that are sent have a bias")
    activation: Literal["sigmoid", "relu"] = "sigmoid"
    steps: PositiveInt = 1
    lr: PositiveFloat = Field(0.1, description="learning rate of the local steps; without effect for one step")
    batch: PositiveInt = Field(1, description="images of the client, all in every step")
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _hides_what_is_there(self) -> Self:
        if self.masked > self.layers:
            raise ValueError(f"{self.masked} masked of {self.layers} linear layers; at most all of them")
        if self.convolutions and self.masked < self.layers:
            raise ValueError("convolutions can be hidden only with all linear layers: masked must equal layers")
        return self


class AttackerSpec(_Section):
    """An attack of ``fedpriv attacks`` (or a label rule), its options, and what it knows besides the message."""

    name: str
    options: dict[str, Any] = {}
    top: Literal["unknown", "initial", "current"] = "unknown"
    seed: NonNegativeInt = 0

    @property
    def threat(self) -> ThreatModel:
        return ThreatModel(top=self.top)


class Cell(_Section):
    """The victim and the attacker. ``defence``: transforms of the upload, as in ``wire.transforms`` of a run's config."""

    images: ImagesSpec = ImagesSpec()
    victim: VictimSpec = VictimSpec()
    defence: tuple[dict[str, Any], ...] = ()
    attacker: AttackerSpec

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.images.n % self.victim.batch:
            raise ValueError(f"{self.images.n} images cannot be dealt in batches of {self.victim.batch}")
        return self
