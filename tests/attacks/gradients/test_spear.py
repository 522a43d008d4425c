"""The inputs of a batch from the sparse columns of a gradient, against the images that made it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.linear import SharedLinear, is_rectified
from fedpriv.attacks.gradients.rank import noise_level, rank
from fedpriv.attacks.gradients.spear import SpearOptions, unmix
from fedpriv.attacks.image.direct import Spear
from fedpriv.attacks.scoring.scores import match, mse
from tests.attacks.client import change, gradient, observe, pictures
from tests.attacks.sent import clipped, noisy, only

MEAN, STD = 0.5, 0.3


def rectifier(hidden: int = 200, activation: type[nn.Module] = nn.ReLU) -> SplitNet:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(36, hidden), activation(), nn.Linear(hidden, 32), nn.ReLU())
    return SplitNet(body, nn.Linear(32, 5))


def sent(n: int, schedule: Schedule | None = None, hidden: int = 200) -> tuple[Observation, Tensor]:
    """The message of one or several steps, in float32, and its images."""
    net, images, labels = rectifier(hidden), pictures(n).float(), torch.arange(n) % 5
    inputs = (images - MEAN) / STD
    known: dict[str, Any] = {"num_examples": n, "mean": (MEAN,), "std": (STD,)}
    if schedule is None:
        return observe(net, gradient(net, inputs, labels), **known), images
    return observe(net, change(net, inputs, labels, schedule), kind="change", schedule=schedule, **known), images


def worst(recovered: Tensor, images: Tensor) -> float:
    return float(mse(recovered[match(recovered, images)], images).max())


@pytest.mark.parametrize("n", [1, 2, 8, 12])
def test_every_image_of_a_batch_is_exact_and_the_attack_knows(n: int) -> None:
    message, images = sent(n)
    result = Spear().run([replace(only(message, "body.1"), num_examples=None)])  # it counts the samples by itself
    assert len(result.images) == n and worst(result.images, images) < 1e-9
    assert float(result.loss) < 0.01 and result.labels.tolist() == [-1] * n


def test_columns_of_the_oracle() -> None:
    """The factorisation of a gradient made of known columns and inputs."""
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*size, generator=draw) for size in ((6, 30), (150, 30), (150,)))
    columns = torch.randn(6, 150, generator=draw) * (x @ weight.T + bias > 0)
    result = unmix(SharedLinear("layer", columns.T @ x, columns.sum(0)), weight, bias, SpearOptions())
    assert result.rank == 6 and bool((result.agreement > 0.99).all())
    assert float(torch.cdist(x.double(), result.inputs).min(1).values.max()) < 1e-4


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(lr=0.05, batch_size=8),
        Schedule(lr=0.01, steps=6, batch_size=8, momentum=0.5, weight_decay=1e-5),
        Schedule(lr=0.05, steps=4, batch_size=4, momentum=0.5),
    ],
)
def test_spear_recovers_images_after_local_steps(schedule: Schedule) -> None:
    message, images = sent(8, schedule)
    assert worst(Spear().run([message]).images, images) < 1e-4


def test_a_clipped_gradient_has_the_same_images() -> None:
    message, images = sent(6)
    assert worst(Spear().run([clipped(message, 0.01)]).images, images) < 1e-9


def test_faint_noise_is_no_protection_and_strong_noise_is() -> None:
    message, images = sent(4)
    spread = float(message.shared["body.1.weight"].std())
    assert worst(Spear().run([noisy(message, 1e-3 * spread)]).images, images) < 1e-4
    result = Spear(starts=640).run([noisy(message, spread)])
    assert worst(result.images, images) > 0.01 and float(result.loss) > 0.05


def test_a_random_gradient_of_low_rank_has_no_sparse_columns() -> None:
    """The negative control of the search: the right rank, but no sparse columns."""
    message, images = sent(6)
    draw = torch.Generator().manual_seed(0)
    gradient = torch.randn(200, 6, generator=draw) @ torch.randn(6, 36, generator=draw)
    shared = dict(message.shared) | {"body.1.weight": gradient, "body.1.bias": torch.randn(200, generator=draw)}
    result = Spear(starts=640).run([replace(message, shared=shared)])
    assert float(result.loss) > 0.05 and worst(result.images, images) > 0.01


def test_it_says_where_it_cannot_be_mounted() -> None:
    message, _ = sent(4)
    masked = only(message, "top")
    smooth = rectifier(activation=nn.Tanh)
    other = observe(smooth, gradient(smooth, pictures(2).float(), torch.tensor([0, 1])), num_examples=2)
    pruned = replace(message, altered=Altered(kept={"body.1.weight": torch.ones(200, 36, dtype=torch.bool)}))
    many, _ = sent(40)
    for refused, why in ((masked, "features"), (other, "no ReLU follows"), (pruned, "not sent"), (many, "more of them")):
        with pytest.raises(Inapplicable, match=why):
            Spear().run([refused])


def test_whether_a_relu_follows_is_seen_without_the_head() -> None:
    message, _ = sent(2)
    body = {name: t for name, t in message.weights.items() if name.startswith("body")}
    assert is_rectified(replace(message, weights=body), "body.1") and not is_rectified(message, "top")


def test_rank_under_errors_of_a_known_size() -> None:
    draw = torch.Generator().manual_seed(0)
    low = torch.randn(60, 5, generator=draw) @ torch.randn(5, 40, generator=draw)
    noisy = low + 1e-3 * torch.randn(60, 40, generator=draw)
    assert rank(noisy) is None and rank(noisy, noise_level(1e-3, noisy.shape)) == 5


def test_whether_a_relu_follows_is_seen_with_batchnorm_before() -> None:
    """BatchNorm's running statistics are not parameters."""
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 64), nn.ReLU())
    victim = SplitNet(net, nn.Linear(64, 10)).eval()
    sent_by = gradient(victim, pictures(2).float(), torch.tensor([0, 1]))
    assert is_rectified(observe(victim, sent_by, num_examples=2), "body.2")
