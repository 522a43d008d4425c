"""What the nets of a run are shown, and how its nets are built: of images, of texts, of pairs of them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.config import ModelConfig, RunConfig, filled
from fedpriv.data import decoding
from fedpriv.data.dataset import Dataset
from fedpriv.data.pools import Images, Paired, Pool, Ready
from fedpriv.data.tokens import tokenise
from fedpriv.errors import UsageError
from fedpriv.methods import find_method
from fedpriv.methods.build import objective_of
from fedpriv.models.backbones import Backbone, find_backbone
from fedpriv.models.encoders import Encoder, find_encoder
from fedpriv.models.fusion import WIDTH, Branch, Fusion
from fedpriv.models.net import Net
from fedpriv.models.registry import Projector, assemble, build_model
from fedpriv.models.text import Tune, features, text_encoder

USUAL_TOKENS = 128
FEATURES_LR = 0.05
"""Learning rate on frozen features, where none is set: 0.01 needs twice the rounds on Banking77."""
TEXT_MODEL, PAIR_MODEL = "transformer", "fusion"
CHUNK = 128
"""Images per pass of a frozen backbone."""


@dataclass(frozen=True)
class Prepared:
    """The samples of a run as its nets get them.

    Attributes:
        config: with what the data and the encoder leave no choice in filled in.
        build: a new net, drawn from torch's global generator.
        encoder: of the texts, where there are any.
        said: what the user should know, a line each.
    """

    config: RunConfig
    train: Pool
    test: Pool
    build: Callable[[], Net]
    encoder: Encoder | None = None
    said: Sequence[str] = ()


def prepare(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    """Tokenise, compute what is computed once, and say how a net is built.

    Raises:
        UsageError: the net or the options are not for what the samples are, or an encoder is not to be had.
    """
    if dataset.texts is None:
        return _images(config, dataset, device)
    expected = TEXT_MODEL if dataset.images is None else PAIR_MODEL
    if config.model.name != expected:
        what = "texts" if dataset.images is None else "image-text pairs"
        raise UsageError(f"model {config.model.name} is not for {dataset.name}, which holds {what}; --model {expected}")
    return _texts(config, dataset, device) if dataset.images is None else _pairs(config, dataset, device)


def _images(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    model, data = config.model, config.data
    for option in ("encoder", "pooling", "tune", "adapter", "backbone"):
        if getattr(model, option) is not None:
            raise UsageError(f"model.{option} is for texts, and {dataset.name} holds images alone")
    if data.image_only or data.text_only:
        raise UsageError(f"data.image_only and data.text_only are for image-text pairs, and {dataset.name} holds images alone")

    def build() -> Net:
        return build_model(model.name or "", dataset.input_shape, len(dataset.classes), *_upper(model))

    train, test = (Images(images, dataset.mean, dataset.std, device) for images in (dataset.train_images, dataset.test_images))
    return Prepared(config, train, test, build)


def _upper(model: ModelConfig) -> tuple[int | None, bool | int, Projector]:
    """Projection, predictor and projector, as :func:`assemble` takes them."""
    return model.projection, model.predictor or False, model.projector


@dataclass(frozen=True)
class _Tokens:
    """The texts of a data set as ids ``(N, L)``, and their encoder."""

    encoder: Encoder
    train: Tensor
    test: Tensor
    longest: int
    said: Sequence[str]

    @property
    def width(self) -> int:
        """d of the encoder's features."""
        return int(self.encoder.config.hidden_size)

    def features(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """What the frozen encoder makes of them, ``(N, d)`` each."""
        train, test = (_text_features(self.encoder, ids, device) for ids in (self.train, self.test))
        return train, test


def _tokenised(config: RunConfig, dataset: Dataset) -> _Tokens:
    assert dataset.texts is not None
    encoder = find_encoder(config.model.encoder, dataset.texts[0], config.model.pooling)
    longest = min(config.data.max_tokens or USUAL_TOKENS, encoder.length)
    (train, cut), (test, cut_too) = (tokenise(texts, encoder.tokenizer, longest) for texts in dataset.texts)
    said = [f"{cut:,} training and {cut_too:,} test texts were cut to {longest} tokens"] if cut or cut_too else []
    return _Tokens(encoder, train, test, longest, said)


def _said(config: RunConfig, tokens: _Tokens, tune: Tune) -> RunConfig:
    """The config with what was found of its texts' encoder."""
    model = {"encoder": tokens.encoder.name, "pooling": tokens.encoder.pooling, "tune": tune}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "data": config.data.model_copy(update={"max_tokens": tokens.longest}),
        }
    )


def _texts(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    for option in ("data.image_only", "data.text_only", "model.backbone"):
        section, _, name = option.partition(".")
        if getattr(getattr(config, section), name):
            raise UsageError(f"{option} is for image-text pairs, and {dataset.name} holds texts alone")
    if config.data.augment not in (None, "none"):
        raise UsageError(f"data.augment {config.data.augment} is for images, and {dataset.name} holds texts")
    tokens, classes = _tokenised(config, dataset), len(dataset.classes)
    tune = config.model.tune or ("full" if tokens.encoder.source is None else "head")
    if tune == "head":
        config = _on_frozen_features(config, tokens.width)
    elif config.model.adapter is not None:
        raise UsageError(f"model.adapter is a layer on a frozen encoder's features, and with model.tune={tune} it learns itself")
    config = _said(config, tokens, tune)
    model = config.model
    if tune == "head":
        train, test = tokens.features(device)

        def build() -> Net:
            made, width = _adapter(tokens.width, model.adapter)
            return assemble(made, width, (tokens.width,), classes, *_upper(model))

    else:
        train, test = tokens.train, tokens.test

        def build() -> Net:
            made = text_encoder(tokens.encoder, tune, model.lora_rank, model.lora_alpha)
            return assemble(made, tokens.width, (tokens.longest,), classes, *_upper(model))

    return Prepared(config, Ready(train, device), Ready(test, device), build, tokens.encoder, tokens.said)


def _pairs(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    tokens, classes = _tokenised(config, dataset), len(dataset.classes)
    backbone = find_backbone(config.model.backbone, dataset.input_shape, config.model.pretrained)
    frozen = tokens.encoder.source is not None and config.model.pretrained
    tune = config.model.tune or ("head" if frozen else "full")
    if tune == "head" and config.data.augment not in (None, "none"):
        raise UsageError("model.tune=head computes features once, so data.augment must be none")
    config = _said(config, tokens, tune)
    model = config.model
    images: list[Pool] = [Images(part, dataset.mean, dataset.std, device) for part in (dataset.train_images, dataset.test_images)]
    texts = (tokens.train, tokens.test)
    if tune != "full":
        images = [Ready(_image_features(backbone, pool, device), device) for pool in images]
    if tune == "head":
        texts = tokens.features(device)

    def build() -> Net:
        image = backbone.build() if tune == "full" else nn.Identity()
        text = nn.Identity() if tune == "head" else text_encoder(tokens.encoder, tune, model.lora_rank, model.lora_alpha)
        fusion = Fusion(Branch(image, backbone.width), Branch(text, tokens.width))
        return assemble(fusion, 2 * WIDTH, dataset.input_shape, classes, *_upper(model))

    train, test = (Paired(pool, Ready(ids, device)) for pool, ids in zip(images, texts, strict=True))
    return Prepared(config, train, test, build, tokens.encoder, tokens.said)


def _on_frozen_features(config: RunConfig, width: int) -> RunConfig:
    """What suits a net on features: no projector unless something needs one, and a step size for inputs of length five or so."""
    method = find_method(config.method.name)
    layered = method.shared == {"encoder"}
    suggestions: dict[str, Any] = {"train.lr": FEATURES_LR}
    if layered:
        suggestions["model.adapter"] = width
    elif "projector" not in objective_of(config).needs:
        suggestions["model.projection"] = None
    return filled(config, suggestions)


def _adapter(width: int, hidden: int | None) -> tuple[nn.Module, int]:
    """The part of the encoder that learns, and the width of its features."""
    if hidden is None:
        return nn.Identity(), width
    return nn.Sequential(OrderedDict[str, nn.Module](fc1=nn.Linear(width, hidden), relu1=nn.ReLU())), hidden


def _text_features(encoder: Encoder, ids: Tensor, device: torch.device) -> Tensor:
    frozen = text_encoder(encoder, "head")
    said = repr((encoder.name, encoder.pooling)).encode() + ids.numpy().tobytes()
    return computed_once(frozen, said, lambda: features(frozen.to(device), ids.to(device)))


def _image_features(backbone: Backbone, pool: Pool, device: torch.device) -> Tensor:
    frozen = backbone.build().to(device).eval()

    @torch.no_grad()
    def compute() -> Tensor:
        parts = (pool.pick(slice(start, start + CHUNK)) for start in range(0, len(pool), CHUNK))
        return torch.cat([frozen(part) for part in parts])

    first = pool.pick(slice(0, len(pool)))
    assert isinstance(first, Tensor)
    return computed_once(frozen, first.cpu().numpy().tobytes(), compute)


def computed_once(frozen: nn.Module, inputs: bytes, compute: Callable[[], Tensor]) -> Tensor:
    """Features ``(N, d)`` of a frozen encoder, kept for good beside the decoded images.

    Args:
        inputs: what they are computed of, for the name of the file.
    """
    digest = hashlib.sha256(inputs)
    for name, tensor in frozen.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().numpy().tobytes())
    path = decoding.cache_folder() / f"features-{digest.hexdigest()[:24]}.safetensors"
    cached = decoding.read_cache(path)
    if cached is None:
        cached = {"features": compute().cpu()}
        decoding.write_cache(path, cached)
    return cached["features"]
