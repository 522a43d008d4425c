"""Prepares a data set as inputs of the net: images and rows of tables; texts and pairs are in modules of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.pools import Images, Ready
from fedpriv.errors import UsageError
from fedpriv.models.net import Net
from fedpriv.models.registry import Shape, build_model
from fedpriv.models.user_net import build_user_net, is_user_net, unimportable_note
from fedpriv.scores.tasks import task_of
from fedpriv.simulation.inputs.pairs import prepare_pairs
from fedpriv.simulation.inputs.prepared import Prepared, upper
from fedpriv.simulation.inputs.suits import check_suits, holds
from fedpriv.simulation.inputs.texts import prepare_texts


def prepare(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    """The inputs of a run's nets: token ids, features of frozen encoders, images or rows.

    Raises:
        UsageError: the net or the options do not fit the samples, or an encoder is not available.
    """
    check_suits(config, holds(dataset), dataset.name)
    if dataset.vectors is not None:
        return _rows(config, dataset, device)
    if dataset.texts is None:
        return _images(config, dataset, device)
    return (prepare_texts if dataset.images is None else prepare_pairs)(config, dataset, device)


def _images(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    model, notes = config.model, tuple[str, ...]()
    if is_user_net(model.name):
        if model.projection not in (None, type(model)().projection):
            raise UsageError(f"model.projection {model.projection}: model {model.name} is taken as it is; leave it out")
        if model.head_on != "projection":
            raise UsageError(f"model.head_on {model.head_on}: model {model.name} is taken as it is; leave it out")
        config = config.with_values("model", projection=None)
        notes = () if (note := unimportable_note(model.name)) is None else (note,)
    elif model.roles is not None:
        raise UsageError(f"model.roles is for a net of your own, such as my_nets:Net, and not for {model.name}")
    build = image_net(config, dataset.input_shape, len(dataset.classes))
    train, test = (Images(images, dataset.mean, dataset.std, device) for images in (dataset.train_images, dataset.test_images))
    return Prepared(config, train, test, build, notes=notes)


def _rows(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    assert dataset.vectors is not None
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
