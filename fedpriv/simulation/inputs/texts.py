"""Texts: token ids for a trained encoder, or the features of a frozen one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.config import RunConfig, filled
from fedpriv.data.dataset import Dataset
from fedpriv.data.pools import Ready
from fedpriv.data.tokens import tokenise
from fedpriv.errors import UsageError
from fedpriv.methods import find_method
from fedpriv.methods.build import objective_of
from fedpriv.models.net import Net
from fedpriv.models.registry import assemble
from fedpriv.models.text.pretrained import Encoder, find_encoder
from fedpriv.models.text.transformer import TextEncoder, Tune, text_encoder
from fedpriv.seeding import global_rng
from fedpriv.simulation.inputs.cached_features import text_features
from fedpriv.simulation.inputs.prepared import Prepared, upper

TEXT_MODEL = "transformer"
USUAL_TOKENS = 128
FEATURES_LR = 0.05
"""Default learning rate on frozen features; 0.01 needs twice the rounds on Banking77."""
NO_PROJECTOR = "model.projector has no effect: on a frozen encoder's features there is a projector if model.projection is set"


@dataclass(frozen=True)
class Tokens:
    """The texts of a data set as ids ``(N, L)``, and their encoder.

    Attributes:
        longest: maximum number of tokens, to which texts are truncated.
        said: what the user should know, a line each.
    """

    encoder: Encoder
    train: Tensor
    test: Tensor
    longest: int
    said: Sequence[str]

    @property
    def width(self) -> int:
        """d of the encoder's features."""
        return int(self.encoder.config.hidden_size)

    def build(self, config: RunConfig, tune: Tune) -> TextEncoder:
        """A new encoder."""
        return text_encoder(self.encoder, tune, config.model.lora_rank, config.model.lora_alpha)

    def features(self, config: RunConfig, device: torch.device) -> tuple[Tensor, Tensor]:
        """The frozen encoder's features of training and test texts, ``(N, d)`` each; a random encoder depends on the seed."""
        with global_rng(config.seed, "frozen", "text"):
            frozen = self.build(config, "head")
        return text_features(frozen, self.train, device), text_features(frozen, self.test, device)

    def stated(self, config: RunConfig, tune: Tune) -> RunConfig:
        """The config with the encoder's properties filled in."""
        found = {"encoder": self.encoder.name, "pooling": self.encoder.pooling, "tune": tune}
        data = config.data.model_copy(update={"max_tokens": self.longest})
        return config.model_copy(update={"model": config.model.model_copy(update=found), "data": data})


def tokenised(config: RunConfig, dataset: Dataset) -> Tokens:
    """Find the encoder and tokenise, once for the whole run."""
    assert dataset.texts is not None
    encoder = find_encoder(config.model.encoder, dataset.texts[0], config.model.pooling)
    longest = longest_of(config, encoder)
    (train, cut), (test, cut_too) = (tokenise(texts, encoder.tokenizer, longest) for texts in dataset.texts)
    said = [f"{cut:,} training and {cut_too:,} test texts were cut to {longest} tokens"] if cut or cut_too else []
    return Tokens(encoder, train, test, longest, said)


def longest_of(config: RunConfig, encoder: Encoder) -> int:
    """Maximum number of tokens of a text."""
    return min(config.data.max_tokens or USUAL_TOKENS, encoder.length)


def prepare_texts(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    """Prepare texts.

    Raises:
        UsageError: an option is for images, or an encoder is not available.
    """
    for option in ("data.image_only", "data.text_only", "model.backbone"):
        section, _, name = option.partition(".")
        if getattr(getattr(config, section), name):
            raise UsageError(f"{option} is for image-text pairs, and {dataset.name} holds texts alone")
    if config.data.augment not in (None, "none"):
        raise UsageError(f"data.augment {config.data.augment} is for images, and {dataset.name} holds texts")
    tokens = tokenised(config, dataset)
    asked = config.model.model_fields_set
    config, build = text_net(config, tokens, len(dataset.classes))
    idle = config.model.projection is None and asked & {"projector", "projection"} == {"projector"}
    said = (*tokens.said, NO_PROJECTOR) if idle else tokens.said
    train, test = tokens.features(config, device) if config.model.tune == "head" else (tokens.train, tokens.test)
    return Prepared(config, Ready(train, device), Ready(test, device), build, tokens.encoder, said)


def text_net(config: RunConfig, tokens: Tokens, classes: int) -> tuple[RunConfig, Callable[[], Net]]:
    """The config with what follows from the encoder, and a factory of the run's nets; the texts themselves do not matter.

    Raises:
        UsageError: an option does not fit the encoder.
    """
    tune = config.model.tune or ("full" if tokens.encoder.source is None else "head")
    if tune == "head":
        config = on_frozen_features(config, tokens.width)
    elif config.model.adapter is not None:
        raise UsageError(f"model.adapter is a layer on a frozen encoder, but model.tune={tune} trains the encoder")
    config = tokens.stated(config, tune)
    model = config.model

    def build() -> Net:
        if tune == "head":
            adapter, width = _adapter(tokens.width, model.adapter)
            return assemble(adapter, width, (tokens.width,), classes, *upper(model))
        return assemble(tokens.build(config, tune), tokens.width, (tokens.longest,), classes, *upper(model))

    return config, build


def on_frozen_features(config: RunConfig, width: int | None) -> RunConfig:
    """Defaults for a net on features: no projector unless needed, and a learning rate for inputs of norm about five.

    Args:
        width: of the features; ``None``: not known.
    """
    suggestions: dict[str, Any] = {"train.lr": FEATURES_LR}
    if find_method(config.method.name).shared == {"encoder"}:
        suggestions["model.adapter"] = width
    elif "projector" not in objective_of(config).required_roles:
        suggestions["model.projection"] = None
    return filled(config, suggestions)


def _adapter(width: int, hidden: int | None) -> tuple[nn.Module, int]:
    """The trained layer on a frozen encoder's features, and its width."""
    if hidden is None:
        return nn.Identity(), width
    return nn.Sequential(OrderedDict[str, nn.Module](fc1=nn.Linear(width, hidden), relu1=nn.ReLU())), hidden
