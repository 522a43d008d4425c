"""What would go from client to client in the one net of a process is found, and nothing else is taken for it."""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_encoders import encoder
from torch import Tensor, nn
from torch.nn.utils import spectral_norm, weight_norm

from fedpriv.models.net import Net
from fedpriv.models.pairs.fusion import WIDTH, Branch, Fusion
from fedpriv.models.registry import assemble
from fedpriv.models.snapshot import State
from fedpriv.models.state import changed_by_data, find_hidden_state, perturb, random_images, samples_interact
from fedpriv.models.text.transformer import TextEncoder, text_encoder
from fedpriv.parameters import ParameterSpace
from tests.models.test_stacked import with_encoder


class Linear(nn.Module):
    """What the nets below have in common: ``h = W x``, from which they take what they remember."""

    m: Any

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.fc(x.flatten(1))
        return self.remember(h) if self.training else h

    def remember(self, h: Tensor) -> Tensor:
        return h


class Attribute(Linear):
    """A running mean in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.m = torch.zeros(16)

    def remember(self, h: Tensor) -> Tensor:
        self.m = 0.9 * self.m + 0.1 * h.detach().mean(0)
        centred: Tensor = h - self.m
        return centred


class AllZero(Attribute):
    """Of which nothing is seen at first."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)


class Assigned(Attribute):
    """The same in a buffer, which is a new tensor after each pass."""

    def __init__(self) -> None:
        super().__init__()
        del self.m
        self.register_buffer("m", torch.zeros(16))


class NotPersistent(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("m", torch.zeros(16), persistent=False)

    def remember(self, h: Tensor) -> Tensor:
        centred: Tensor = h - self.m.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return centred


class InTheRow(Linear):
    """As it should be."""

    running_m: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_m", torch.zeros(16))

    def remember(self, h: Tensor) -> Tensor:
        centred: Tensor = h - self.running_m.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return centred


class Codebook(Linear):
    """Counts the samples by their nearest code (van den Oord et al. 2017, A.1), of which a mean over clients is no count."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(4, 16))
        self.register_buffer("m", torch.zeros(4))

    def remember(self, h: Tensor) -> Tensor:
        nearest = torch.cdist(h.detach(), self.codes).argmin(1)
        self.m.mul_(0.9).add_(torch.bincount(nearest, minlength=4), alpha=0.1)
        return h


class Extremes(Linear):
    """The largest values so far, as observers of quantisation keep; they change no output."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("m", torch.full((16,), -torch.inf))

    def remember(self, h: Tensor) -> Tensor:
        torch.maximum(self.m, h.detach().amax(0), out=self.m)
        return h


class Masked(Linear):
    """Constants: a mask of negative infinities, and a table in float64."""

    mask: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((16,), -torch.inf).masked_fill(torch.arange(16) > 3, 0.0))
        self.register_buffer("table", torch.arange(16, dtype=torch.float64))

    def remember(self, h: Tensor) -> Tensor:
        masked: Tensor = (h + self.mask).softmax(1) * self.table.float()
        return masked


class Counter(Linear):
    """Decides something after a hundred passes only."""

    def __init__(self) -> None:
        super().__init__()
        self.m = 0

    def remember(self, h: Tensor) -> Tensor:
        self.m += 1
        return h if self.m < 100 else h / 2


class Queue(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.m = deque[Tensor](maxlen=3)

    def remember(self, h: Tensor) -> Tensor:
        self.m.append(h.detach().mean(0))
        return h - torch.stack([*self.m]).mean(0)


class Generator(Linear):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.m = torch.Generator().manual_seed(0)

    def remember(self, h: Tensor) -> Tensor:
        return h + torch.rand(h.shape, generator=self.m)


class Shown(Linear):
    """Stores what is looked at only."""

    def __init__(self) -> None:
        super().__init__()
        self.m, self.all = torch.zeros(1), list[float]()

    def remember(self, h: Tensor) -> Tensor:
        self.m = h
        self.all.append(float(h.mean()))
        return h


class MaxNorm(Linear):
    """Its weight gets other memory, and would not be that of the row any more."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.ones(1, 16))

    def remember(self, h: Tensor) -> Tensor:
        self.m.data = torch.renorm(self.m.data, 2, 0, 1.0)
        scaled: Tensor = h * self.m
        return scaled


class MaxNormInPlace(MaxNorm):
    def remember(self, h: Tensor) -> Tensor:
        self.m.data.copy_(torch.renorm(self.m.data, 2, 0, 1.0))
        scaled: Tensor = h * self.m
        return scaled


class FirstBatch(Linear):
    """Takes its scale, which is in the row, from the first batch, and remembers that it did in a number, which is not."""

    def __init__(self) -> None:
        super().__init__()
        self.m, self.scale = False, nn.Parameter(torch.ones(16))

    def remember(self, h: Tensor) -> Tensor:
        if not self.m:
            self.scale.data.copy_(h.detach().std(0))
            self.m = True
        return h / self.scale


class Decaying(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.m = 1.0

    def remember(self, h: Tensor) -> Tensor:
        self.m *= 0.9
        scaled: Tensor = h * self.m
        return scaled


class ByNumPy(Linear):
    """Draws from a generator of NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.m = np.random.Generator(np.random.MT19937(0))

    def remember(self, h: Tensor) -> Tensor:
        return h.mul(0.5 + float(self.m.random()))


class ByPython(ByNumPy):
    def __init__(self) -> None:
        super().__init__()
        self.m = random.Random(0)


class Array(Attribute):
    """A running mean in an array."""

    def __init__(self) -> None:
        super().__init__()
        self.m = np.zeros(16, np.float32)

    def remember(self, h: Tensor) -> Tensor:
        self.m *= 0.9
        self.m += 0.1 * h.detach().mean(0).numpy()
        return h - torch.from_numpy(self.m)


class Sparse(Linear):
    """Holds a sparse tensor, one without numbers, and NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.m, self.best, self.table = torch.eye(16).to_sparse(), float("nan"), torch.tensor([float("nan"), 1.0])
        self.shape = torch.empty(3, device="meta")

    def remember(self, h: Tensor) -> Tensor:
        product: Tensor = (self.m @ h.T).T
        return product


class Sizes(Linear):
    """Stores numbers that follow from the batch, one of them in training only and one to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.entropy = 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.all = len(x)
        return super().forward(x)

    def remember(self, h: Tensor) -> Tensor:
        self.m, self.entropy = len(h), float(h.mean())
        return h.div(self.m)


class Expanded(nn.Module):
    """Shows a view of a child's parameter that cannot be written."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 16)
        self.shown: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.shown = self.fc.bias.expand(len(x), -1)
        h: Tensor = self.fc(x.flatten(1)) + self.shown
        return h


class OwnBatchNorm(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked(by: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.Flatten(), by(nn.Linear(64, 16)))


@pytest.mark.parametrize(
    "layer",
    [
        *(Attribute, AllZero, Assigned, NotPersistent, Counter, Queue, Generator),
        *(MaxNorm, FirstBatch, Decaying, ByNumPy, ByPython, Array, Codebook, Extremes),
    ],
)
def test_what_no_row_has_is_found(layer: Callable[[], nn.Module]) -> None:
    assert found(with_encoder(layer())) == "encoder.0.m"


@pytest.mark.parametrize(
    "layer",
    [
        InTheRow,
        Masked,
        Shown,
        MaxNormInPlace,
        Sparse,
        Sizes,
        Expanded,
        lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 16)),
        lambda: nn.Sequential(nn.Flatten(), OwnBatchNorm(64), nn.Linear(64, 16)),
        lambda: nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, 16)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout()),
        lambda: hooked(weight_norm),
        lambda: hooked(spectral_norm),
        lambda: hooked(nn.utils.parametrizations.spectral_norm),
        lambda: hooked(nn.utils.parametrizations.orthogonal),
    ],
)
def test_what_goes_nowhere_or_is_in_the_row_is_not(layer: Callable[[], nn.Module]) -> None:
    assert found(with_encoder(layer())) is None


class OwnText(TextEncoder):
    """Does something of its own with the features of texts."""

    def __init__(self, remember: nn.Module) -> None:
        super().__init__(encoder().model(), encoder().pad, "mean")
        self.last = remember

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.last(super().forward(ids))
        return vectors


class Scaled(nn.Module):
    """Ever smaller outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.m = 1.0

    def forward(self, h: Tensor) -> Tensor:
        self.m *= 0.9
        return h * self.m


class Centred(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


FEATURES = nn.Identity()


def of_texts(text: nn.Module) -> Net:
    return assemble(text, 16, (40,), 4)


def of_pairs(image: nn.Module, text: nn.Module) -> Net:
    return assemble(Fusion(Branch(image, 16), Branch(text, 16)), 2 * WIDTH, (1, 8, 8), 4)


def norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16))


@pytest.mark.parametrize(
    ("net", "name"),
    [
        (lambda: of_texts(OwnText(Scaled())), "encoder.last.m"),
        (lambda: of_pairs(Counter(), FEATURES), "encoder.image.encoder.m"),
        (lambda: of_pairs(Attribute(), text_encoder(encoder(), "full")), "encoder.image.encoder.m"),
        (lambda: of_pairs(FEATURES, OwnText(Scaled())), "encoder.text.encoder.last.m"),
        (lambda: of_pairs(Linear(), OwnText(Scaled())), "encoder.text.encoder.last.m"),
    ],
)
def test_what_no_row_has_is_found_in_nets_of_texts_and_of_pairs(net: Callable[[], Net], name: str) -> None:
    assert found(net()) == name


@pytest.mark.parametrize(
    ("kind", "tune"),
    [("Bert", "full"), ("Bert", "lora"), ("Roberta", "full"), ("GPT2", "lora"), ("T5", "full"), ("ModernBert", "full")],
)
def test_text_encoders_carry_nothing(kind: str, tune: Any) -> None:
    for net in (of_texts(text_encoder(encoder(kind), tune)), of_pairs(norm(), text_encoder(encoder(kind), tune))):
        assert found(net) is None and random_images(net) is None and not samples_interact(net, training=False)
    assert found(of_pairs(FEATURES, FEATURES)) is None


def test_samples_interact_in_nets_of_texts_and_pairs() -> None:
    centred = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), Centred())
    for mixed in (of_texts(OwnText(Centred())), of_pairs(FEATURES, OwnText(Centred())), of_pairs(centred, FEATURES)):
        assert samples_interact(mixed) and samples_interact(mixed, training=False)
    normed = of_pairs(norm(), FEATURES)
    assert samples_interact(normed) and not samples_interact(normed, training=False)
    assert changed_by_data(normed.train())[0] == "encoder.image.encoder.2.running_mean"


def found(net: Net) -> str | None:
    """With a check that the net is left as it was."""
    net.encoder.eval()
    draws = torch.get_rng_state()
    state, memory = State(net), [parameter.data_ptr() for parameter in net.parameters()]
    modes = [module.training for module in net.modules()]
    name = find_hidden_state(net, ParameterSpace.of(net))
    assert not [*state.changed(), *state.replaced()] and modes == [module.training for module in net.modules()]
    assert memory == [parameter.data_ptr() for parameter in net.parameters()]
    assert torch.equal(draws, torch.get_rng_state())
    return name


def test_restore_with_an_expanded_view_of_a_parameter() -> None:
    net = with_encoder(Expanded())
    net(torch.rand(2, *net.input_shape))
    state, before = State(net), [parameter.detach().clone() for parameter in net.parameters()]
    perturb(net.parameters())
    state.restore()
    assert all(map(torch.equal, before, net.parameters()))
