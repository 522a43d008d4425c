"""Image-text pairs: each modality as its encoder's input, or as features of a frozen encoder."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedpriv.config import RunConfig
from fedpriv.data.dataset import Dataset
from fedpriv.data.pools import Images, Paired, Pool, Ready
from fedpriv.errors import UsageError
from fedpriv.models.net import Net
from fedpriv.models.pairs.fusion import WIDTH, Branch, Fusion
from fedpriv.models.pairs.image_encoders import Backbone, find_backbone
from fedpriv.models.registry import Shape, assemble
from fedpriv.seeding import global_rng
from fedpriv.simulation.inputs.cached_features import image_features
from fedpriv.simulation.inputs.prepared import Prepared, upper
from fedpriv.simulation.inputs.texts import Tokens, tokenised


def prepare_pairs(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    """Prepare pairs for a net with late fusion.

    The image encoder is trained if the whole text encoder is; with LoRA it is frozen.

    Raises:
        UsageError: an option does not fit pairs, or an encoder is not available.
    """
    tokens = tokenised(config, dataset)
    config, build, backbone = pair_net(config, tokens, dataset.input_shape, len(dataset.classes))
    frozen = config.model.tune != "full"
    images = _images(config, dataset, device, backbone if frozen else None)
    texts = tokens.features(config, device) if config.model.tune == "head" else (tokens.train, tokens.test)
    train, test = (Paired(pool, Ready(ids, device)) for pool, ids in zip(images, texts, strict=True))
    return Prepared(config, train, test, build, tokens.encoder, tokens.notes)


def pair_net(
    config: RunConfig, tokens: Tokens, input_shape: Shape, classes: int
) -> tuple[RunConfig, Callable[[], Net], Backbone]:
    """The config with keys that the encoders determine, a factory of the run's nets, and the image encoder.

    Raises:
        UsageError: an option does not fit pairs, or an encoder is not available.
    """
    if config.model.adapter is not None:
        raise UsageError("model.adapter is for texts only; for pairs, each modality has a trained layer on its features")
    backbone = find_backbone(config.model.backbone, input_shape, config.model.pretrained)
    stored = tokens.encoder.source is not None and config.model.pretrained
    tune = config.model.tune or ("head" if stored else "full")
    if tune != "full" and config.data.augment not in (None, "none"):
        raise UsageError(
            f"data.augment {config.data.augment}: with model.tune={tune} the images' features are computed once; "
            "--set data.augment=none, or --tune full"
        )
    config = tokens.filled_in(config, tune)

    def build() -> Net:
        image = backbone.build() if tune == "full" else nn.Identity()
        text = nn.Identity() if tune == "head" else tokens.build(config, tune)
        fusion = Fusion(Branch(image, backbone.width), Branch(text, tokens.width))
        return assemble(fusion, 2 * WIDTH, input_shape, classes, *upper(config.model))

    return config, build, backbone


def _images(config: RunConfig, dataset: Dataset, device: torch.device, backbone: Backbone | None) -> list[Pool]:
    """Training and test images, or features of a frozen backbone; the weights of a random backbone depend on the run's seed."""
    splits = (dataset.train_images, dataset.test_images)
    images: list[Pool] = [Images(part, dataset.mean, dataset.std, device) for part in splits]
    if backbone is None:
        return images
    with global_rng(config.seed, "frozen", "image"):
        frozen = backbone.build()
    return [Ready(image_features(frozen, pool, device), device) for pool in images]
