"""Whether the options of a run suit what its samples are."""

from __future__ import annotations

from typing import Literal, TypeAlias

from fedpriv.config import RunConfig
from fedpriv.config.model import PAIR_MODEL, TEXT_MODEL
from fedpriv.data.dataset import Dataset
from fedpriv.errors import UsageError
from fedpriv.methods.build import objective_of

Holds: TypeAlias = Literal["images", "texts", "image-text pairs", "rows of a table"]
"""What a data set holds; arrays are as rows of a table."""


def holds(dataset: Dataset) -> Holds:
    """What a data set holds."""
    if dataset.vectors is not None or dataset.cells:
        return "rows of a table"
    if dataset.texts is None:
        return "images"
    return "texts" if dataset.images is None else "image-text pairs"


def check_suits(config: RunConfig, what: Holds, who: str) -> None:
    """Check that the options of a run are for such samples.

    Args:
        config: with every open key filled in that does not depend on the net's inputs.
        who: holds the samples, for the message.

    Raises:
        UsageError: an option is for other samples.
    """
    objective = objective_of(config)
    if what != "images" and not objective.labels:
        raise UsageError(f"objective {objective.name} needs two views of an image, but {who} holds {what}")
    if "image" not in what and config.data.pixels != "standardised":
        raise UsageError(f"data.pixels {config.data.pixels} is for images, and {who} holds {what}")
    (_check_images if what == "images" else _check_rows if what == "rows of a table" else _check_texts)(config, what, who)


def _check_images(config: RunConfig, what: Holds, who: str) -> None:
    model, data = config.model, config.data
    for option in ("encoder", "pooling", "tune", "adapter", "backbone"):
        if getattr(model, option) is not None:
            raise UsageError(f"model.{option} is for texts, and {who} holds images alone")
    if model.name in (TEXT_MODEL, PAIR_MODEL):
        raise UsageError(f"model {model.name} is for texts, and {who} holds images alone; `fedpriv models` lists others")
    if data.image_only or data.text_only:
        raise UsageError(f"data.image_only and data.text_only are for image-text pairs, and {who} holds images alone")


def _check_texts(config: RunConfig, what: Holds, who: str) -> None:
    model, data, expected = config.model, config.data, TEXT_MODEL if what == "texts" else PAIR_MODEL
    if model.name != expected:
        raise UsageError(f"model {model.name} is not for {who}, which holds {what}; --model {expected}")
    if config.eval.probe != "none":
        raise UsageError(f"eval.probe is for encoders of images, but {who} holds {what}")
    if model.head_on != "projection":
        raise UsageError(f"model.head_on {model.head_on} is for images and rows of a table, and {who} holds texts")
    if what == "image-text pairs":
        return
    for option, value in {
        "data.image_only": data.image_only,
        "data.text_only": data.text_only,
        "model.backbone": model.backbone,
    }.items():
        if value:
            raise UsageError(f"{option} is for image-text pairs, and {who} holds texts alone")
    if data.augment not in (None, "none"):
        raise UsageError(f"data.augment {data.augment} is for images, and {who} holds texts")


def _check_rows(config: RunConfig, what: Holds, who: str) -> None:
    model, data = config.model, config.data
    unsupported = {
        **{f"model.{name}": getattr(model, name) for name in ("encoder", "pooling", "tune", "adapter", "backbone")},
        **{f"data.{name}": getattr(data, name) for name in ("image_only", "text_only", "image_size", "max_tokens")},
        "data.augment": None if data.augment == "none" else data.augment,
        "eval.probe": None if config.eval.probe == "none" else config.eval.probe,
    }
    for key, value in unsupported.items():
        if value:
            raise UsageError(
                f"{key} {value} is for images or texts, and {who} holds rows of a table; it holds texts where a single "
                "column of texts is left beside the label and the clients"
            )
    if model.name in (TEXT_MODEL, PAIR_MODEL):
        raise UsageError(f"model {model.name} is for texts, and {who} holds rows of a table; --model mlp")
