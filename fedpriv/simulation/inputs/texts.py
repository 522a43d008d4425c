"""Texts: token ids for a trained encoder, or features of a frozen one."""

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

DEFAULT_TOKENS = 128
FEATURES_LR = 0.05
"""Default learning rate on frozen features; 0.01 needs twice the rounds on Banking77."""
NO_PROJECTOR = "model.projector has no effect: on a frozen encoder's features there is a projector if model.projection is set"


@dataclass(frozen=True)
class Tokens:
    """The texts of a data set as ids ``(N, L)``, and their encoder.

    Attributes:
        longest: number of tokens to which texts are truncated.
        notes: for the user, a line each.
    """

    encoder: Encoder
    train: Tensor
    test: Tensor
    longest: int
    notes: Sequence[str]

    @property
    def width(self) -> int:
        """Width d of the encoder's features."""
        return int(self.encoder.config.hidden_size)

    def build(self, config: RunConfig, tune: Tune) -> TextEncoder:
        """A new encoder."""
        return text_encoder(self.encoder, tune, config.model.lora_rank, config.model.lora_alpha)

    def features(self, config: RunConfig, device: torch.device) -> tuple[Tensor, Tensor]:
        """A frozen encoder's features ``(N, d)`` of the training and of the test texts; a random encoder depends on the seed."""
        with global_rng(config.seed, "frozen", "text"):
            frozen = self.build(config, "head")
        return text_features(frozen, self.train, device), text_features(frozen, self.test, device)

    def filled_in(self, config: RunConfig, tune: Tune) -> RunConfig:
        """The config with the encoder's properties filled in."""
        config = config.with_values("model", encoder=self.encoder.name, pooling=self.encoder.pooling, tune=tune)
        return config.with_values("data", max_tokens=self.longest)


def tokenised(config: RunConfig, dataset: Dataset) -> Tokens:
    """Find the encoder, and tokenise all texts."""
    assert dataset.texts is not None
    encoder = find_encoder(config.model.encoder, dataset.texts[0], config.model.pooling)
    longest = longest_of(config, encoder)
    (train, cut), (test, cut_of_test) = (tokenise(texts, encoder.tokenizer, longest) for texts in dataset.texts)
    note = f"{cut:,} training and {cut_of_test:,} test texts were cut to {longest} tokens"
    return Tokens(encoder, train, test, longest, [note] if cut or cut_of_test else [])


def longest_of(config: RunConfig, encoder: Encoder) -> int:
    """Maximum number of tokens of a text."""
    return min(config.data.max_tokens or DEFAULT_TOKENS, encoder.length)


def prepare_texts(config: RunConfig, dataset: Dataset, device: torch.device) -> Prepared:
    """Prepare texts.

    Raises:
        UsageError: an encoder is not available.
    """
    tokens = tokenised(config, dataset)
    given = config.model.model_fields_set
    config, build = text_net(config, tokens, len(dataset.classes))
    unused = config.model.projection is None and given & {"projector", "projection"} == {"projector"}
    notes = (*tokens.notes, NO_PROJECTOR) if unused else tokens.notes
    train, test = tokens.features(config, device) if config.model.tune == "head" else (tokens.train, tokens.test)
    return Prepared(config, Ready(train, device), Ready(test, device), build, tokens.encoder, notes)


def text_net(config: RunConfig, tokens: Tokens, classes: int) -> tuple[RunConfig, Callable[[], Net]]:
    """The config with keys that the encoder determines, and a factory of the run's nets.

    Raises:
        UsageError: an option does not fit the encoder.
    """
    tune = config.model.tune or ("full" if tokens.encoder.source is None else "head")
    if tune == "head":
        config = on_frozen_features(config, tokens.width)
    elif config.model.adapter is not None:
        raise UsageError(f"model.adapter is a layer on a frozen encoder, but model.tune={tune} trains the encoder")
    config = tokens.filled_in(config, tune)
    model = config.model

    def build() -> Net:
        if tune == "head":
            adapter, width = _adapter(tokens.width, model.adapter)
            return assemble(adapter, width, (tokens.width,), classes, *upper(model))
        return assemble(tokens.build(config, tune), tokens.width, (tokens.longest,), classes, *upper(model))

    return config, build


def on_frozen_features(config: RunConfig, width: int | None) -> RunConfig:
    """The config with defaults for a net on features: no projector unless needed, and a learning rate for inputs of norm about 5.

    Args:
        width: of the features; ``None``: unknown.
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
