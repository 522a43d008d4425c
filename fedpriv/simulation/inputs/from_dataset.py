"""Prepares a data set as inputs of the net: images and rows of tables; texts and pairs are in modules of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedpriv.config import RunConfig
from fedpriv.config.model import PAIR_MODEL, TEXT_MODEL
from fedpriv.data.dataset import Dataset
from fedpriv.data.pools import Images, Ready
from fedpriv.errors import UsageError
from fedpriv.methods.build import objective_of
from fedpriv.models.net import Net
from fedpriv.models.registry import Shape, build_model
from fedpriv.models.user_net import build_user_net, is_user_net, unimportable_note
from fedpriv.scores.tasks import task_of
from fedpriv.simulation.inputs.pairs import prepare_pairs
from fedpriv.simulation.inputs.prepared import Prepared, upper
from fedpriv.simulation.inputs.texts import prepare_texts


def prepare(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    """The inputs of a run's nets: token ids, features of frozen encoders, images or rows.

    Raises:
        UsageError: the net or the options do not fit the samples, or an encoder is not available.
    """
    if dataset.vectors is not None:
        return _rows(config, dataset, device)
    if dataset.texts is None:
        return _images(config, dataset, device)
    what, expected = ("texts", TEXT_MODEL) if dataset.images is None else ("image-text pairs", PAIR_MODEL)
    if config.model.name != expected:
        raise UsageError(f"model {config.model.name} is not for {dataset.name}, which holds {what}; --model {expected}")
    objective = objective_of(config)
    if not objective.labels:
        raise UsageError(f"objective {objective.name} needs two views of an image, but {dataset.name} holds {what}")
    if config.eval.probe != "none":
        raise UsageError(f"eval.probe is for encoders of images, but {dataset.name} holds {what}")
    if config.model.head_on != "projection":
        raise UsageError(
            f"model.head_on {config.model.head_on} is for images and rows of a table, and {dataset.name} holds texts"
        )
    return (prepare_texts if dataset.images is None else prepare_pairs)(config, dataset, device)


def _images(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    model, data = config.model, config.data
    for option in ("encoder", "pooling", "tune", "adapter", "backbone"):
        if getattr(model, option) is not None:
            raise UsageError(f"model.{option} is for texts, and {dataset.name} holds images alone")
    if model.name in (TEXT_MODEL, PAIR_MODEL):
        raise UsageError(f"model {model.name} is for texts, and {dataset.name} holds images alone; `fedpriv models` lists others")
    if data.image_only or data.text_only:
        raise UsageError(f"data.image_only and data.text_only are for image-text pairs, and {dataset.name} holds images alone")

    notes: tuple[str, ...] = ()
    if is_user_net(model.name):
        if model.projection not in (None, type(model)().projection):
            raise UsageError(f"model.projection {model.projection}: model {model.name} is taken as it is; leave it out")
        if model.head_on != "projection":
            raise UsageError(f"model.head_on {model.head_on}: model {model.name} is taken as it is; leave it out")
        config = config.model_copy(update={"model": model.model_copy(update={"projection": None})})
        notes = () if (note := unimportable_note(model.name)) is None else (note,)
    elif model.roles is not None:
        raise UsageError(f"model.roles is for a net of your own, such as my_nets:Net, and not for {model.name}")
    build = image_net(config, dataset.input_shape, len(dataset.classes))
    train, test = (Images(images, dataset.mean, dataset.std, device) for images in (dataset.train_images, dataset.test_images))
    return Prepared(config, train, test, build, notes=notes)


def _rows(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    assert dataset.vectors is not None
    model, data, objective = config.model, config.data, objective_of(config)
    unsupported = {
        **{f"model.{name}": getattr(model, name) for name in ("encoder", "pooling", "tune", "adapter", "backbone")},
        **{f"data.{name}": getattr(data, name) for name in ("image_only", "text_only", "image_size", "max_tokens")},
        "data.augment": None if data.augment == "none" else data.augment,
        "eval.probe": None if config.eval.probe == "none" else config.eval.probe,
    }
    if not objective.labels:
        raise UsageError(f"objective {objective.name} needs two views of an image, but {dataset.name} holds rows of a table")
    for key, value in unsupported.items():
        if value:
            raise UsageError(
                f"{key} {value} is for images or texts, and {dataset.name} holds rows of a table; it holds texts where a single "
                "column of texts is left beside the label and the clients"
            )
    if model.name in (TEXT_MODEL, PAIR_MODEL):
        raise UsageError(f"model {model.name} is for texts, and {dataset.name} holds rows of a table; --model mlp")
    train, test = (Ready(part, device) for part in dataset.vectors)
    outputs = task_of(len(dataset.classes), dataset.target).outputs
    return Prepared(config, train, test, image_net(config, dataset.input_shape, outputs))


def image_net(config: RunConfig, input_shape: Shape, classes: int) -> Callable[[], Net]:
    """A factory of the nets of a run on images or rows."""
    model = config.model

    def build() -> Net:
        if is_user_net(model.name):
            return build_user_net(model.name or "", input_shape, classes, model.roles, model.predictor or False)
        return build_model(model.name or "", input_shape, classes, *upper(model))

    return build
