"""The linear probe: what it must find, what it cannot find, and that it changes nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpriv.data.dataset import Dataset
from fedpriv.data.sources import load_dataset
from fedpriv.errors import UsageError
from fedpriv.evaluation.linear_probe import Protocol, Samples, features, fit, probe, recalibrate, samples
from fedpriv.evaluation.published_probe import published_probe
from fedpriv.seeding import generator

SHORT = Protocol(epochs=8, drops=(5, 7))


def planted(count: int, classes: int = 4, seed: int = 0) -> Samples:
    """Images whose one bright pixel is their class, under noise."""
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=drawn)
    images = 0.05 * torch.rand(count, 1, 4, 4, generator=drawn)
    images[torch.arange(count), 0, 0, labels] += 4
    return Samples(lambda index: images[index], labels)


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(len(x), 3)


def test_a_separable_encoder_reaches_all_and_a_constant_one_the_largest_class() -> None:
    train, test = planted(400), planted(200, seed=1)
    results = probe(nn.Flatten(), train, test, 4, fractions=(1.0, 0.1))
    assert [result.accuracy for result in results] == [1.0, 1.0]
    assert [result.accuracy_logistic for result in results] == [1.0, 1.0]
    assert [result.samples for result in results] == [400, 40] and results[0].accuracy_as_is is None
    (nothing,) = probe(Constant(), train, test, 4)
    shares = torch.bincount(test.labels) / 200
    assert nothing.accuracy in [pytest.approx(float(share)) for share in shares]


def test_labels_that_have_nothing_to_do_with_the_images_are_not_learnt() -> None:
    """A leak from test to training would show here."""
    shuffled = Samples(planted(400).images, torch.randint(4, (400,), generator=torch.Generator().manual_seed(3)))
    unseen = Samples(planted(400, seed=1).images, torch.randint(4, (400,), generator=torch.Generator().manual_seed(4)))
    (result,) = probe(nn.Flatten(), shuffled, unseen, 4, protocol=SHORT)
    for accuracy in (result.accuracy, result.accuracy_logistic):
        assert accuracy is not None and abs(accuracy - 0.25) < 4 * (0.25 * 0.75 / 400) ** 0.5


def test_small_features_are_fitted_to_the_end_where_the_epochs_do_not_suffice() -> None:
    train, test = planted(200), planted(200, seed=1)
    faint = nn.Sequential(nn.Flatten(), nn.Linear(16, 16, bias=False))
    with torch.no_grad():
        faint[1].weight.copy_(1e-3 * torch.eye(16))
    (result,) = probe(faint, train, test, 4, protocol=SHORT)
    assert result.accuracy < 0.9 and result.accuracy_logistic == 1.0


def test_it_is_a_function_of_its_seed() -> None:
    train, test = planted(300), planted(100, seed=1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
    first, again, other = (fit(features(net, train), train.labels, 4, seed, SHORT).weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    first, second = (probe(net, train, test, 4, fractions=(0.5,), protocol=SHORT) for _ in range(2))
    assert first == second


def test_the_classifier_is_plain_sgd_with_momentum_and_two_drops() -> None:
    """Against the update written out, in full batches."""
    x = torch.rand(20, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20) % 3
    protocol = Protocol(epochs=6, drops=(3, 5), batch_size=20)
    trained = fit(x, labels, 3, 0, protocol)
    start = fit(x, labels, 3, 0, Protocol(epochs=0))
    weight, bias = start.weight.clone(), start.bias.clone()
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for epoch in range(6):
        lr = 0.01 * 0.1 ** ((epoch >= 3) + (epoch >= 5))
        error = torch.softmax(x @ weight.T + bias, 1) - nn.functional.one_hot(labels, 3)
        for value, slope, speed in zip((weight, bias), (error.T @ x / 20, error.mean(0)), velocity, strict=True):
            speed.mul_(0.9).add_(slope)
            value.sub_(lr * speed)
    torch.testing.assert_close(trained.weight, weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trained.bias, bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 1438), (0.1, 144), (0.01, 14)])
def test_fractions_keep_the_classes_in_proportion(fraction: float, count: int) -> None:
    from fedpriv.evaluation.linear_probe import choose_labelled

    labels = load_dataset("digits").train_labels.numpy()
    chosen = choose_labelled(labels, fraction).numpy()
    assert len(chosen) == len(set(chosen.tolist())) == count
    shares = np.bincount(labels[chosen], minlength=10) - fraction * np.bincount(labels)
    assert np.abs(shares).max() < 1 and np.array_equal(chosen, choose_labelled(labels, fraction).numpy())


@pytest.mark.parametrize(("fraction", "message"), [(0.0, "above 0"), (1.5, "at most 1"), (0.002, "leaves no sample of class")])
def test_fractions_that_cannot_be(fraction: float, message: str) -> None:
    train, test = samples(load_dataset("digits"), (1, 8, 8), torch.device("cpu"))
    with pytest.raises(UsageError, match=message):
        probe(nn.Flatten(), train, test, 10, fractions=(fraction,))


def test_recalibration_gives_the_statistics_of_the_images_and_touches_nothing_else() -> None:
    given = Samples(lambda index: 3 * torch.arange(1000.0)[index].view(-1, 1, 1, 1) + 5, torch.arange(1000) % 2)
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten())
    net[0].running_mean.fill_(-77.0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    norm = recalibrate(net, given, 0)[0]  # type: ignore[index]
    assert float(norm.running_mean) == pytest.approx(3 * 499.5 + 5, rel=1e-5)
    # The mean of the batches' variances is a little under that of all.
    assert float(norm.running_var) == pytest.approx(9 * 1000 * 1001 / 12, rel=0.03)
    assert norm.momentum == 0.1
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_spoilt_running_statistics_are_seen_as_is_and_mended() -> None:
    torch.manual_seed(0)
    train, test = planted(400), planted(200, seed=1)
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()).eval()
    net[0].running_var.fill_(1e8)
    (result,) = probe(net, train, test, 4, protocol=SHORT)
    assert result.accuracy == 1.0
    assert result.accuracy_as_is is not None and result.accuracy_as_is < 0.9


def test_features_before_the_pooling() -> None:
    given = planted(5)
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert features(net, given).shape == (5, 2)
    flat = features(net, given, "prepool")
    assert torch.equal(flat, net[0](given.images(torch.arange(5))).flatten(1).detach())
    with pytest.raises(UsageError, match="need an encoder with average pooling"):
        features(nn.Flatten(), given, "prepool")


def made(shape: tuple[int, int, int], value: int) -> Dataset:
    images, labels = torch.full((6, *shape), value, dtype=torch.uint8), torch.arange(6) % 2
    colours = {"mean": (0.5,) * shape[0], "std": (0.25,) * shape[0]}
    return Dataset("made", labels, labels, ("a", "b"), "mlp2", (images, images), **colours)


def test_another_data_set_is_resized_and_normalised_by_its_own_colours() -> None:
    train, _ = samples(made((3, 10, 20), 255), (3, 8, 8), torch.device("cpu"))
    images = train.images(torch.tensor([0, 3]))
    assert images.shape == (2, 3, 8, 8)
    torch.testing.assert_close(images, torch.full_like(images, 2.0))
    plain, _ = samples(made((3, 10, 20), 255), (3, 8, 8), torch.device("cpu"), normalised=False)
    torch.testing.assert_close(plain.images(torch.tensor([0])), torch.ones(1, 3, 8, 8))
    with pytest.raises(UsageError, match="takes images of 1 channel, made has 3"):
        samples(made((3, 8, 8), 0), (1, 8, 8), torch.device("cpu"))


class Dimmed(nn.Module):
    """BatchNorm whose statistics were spoilt, before a pooling that leaves all as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.pool, self.flat = nn.BatchNorm2d(1), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        self.norm.running_var.fill_(30)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return self.flat(self.pool(self.norm(x)))


def test_the_published_protocol_trains_with_the_batch_s_statistics_and_tests_with_those_of_all_batches() -> None:
    """Against the loop written out."""
    train, test, net = planted(60), planted(50, seed=1), Dimmed()
    before = copy.deepcopy(net.state_dict())
    protocol = Protocol(epochs=8, drops=(6,), batch_size=20, nesterov=True)
    (result,) = published_probe(net, train, test, 4, seed=0, protocol=protocol)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
    norm, classifier = copy.deepcopy(net.norm), fit(torch.zeros(60, 16), train.labels, 4, 0, Protocol(epochs=0))
    classifier.requires_grad_(True)
    optimiser = torch.optim.SGD(classifier.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    draw = generator(0, "probe", "shuffle")
    for epoch in range(8):
        optimiser.param_groups[0]["lr"] = 0.001 if epoch >= 6 else 0.01
        for index in torch.split(torch.randperm(60, generator=draw), 20):
            optimiser.zero_grad()
            with torch.no_grad():
                x = norm.train()(train.images(index)).flatten(1)
            nn.functional.cross_entropy(classifier(x), train.labels[index]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    scores = classifier(norm.eval()(test.images(torch.arange(50))).flatten(1))
    assert result.accuracy == pytest.approx(float((scores.argmax(1) == test.labels).double().mean()))
    assert result.accuracy > 0.9 and (result.accuracy_as_is, result.accuracy_logistic) == (None, None)


def test_a_last_batch_of_one_sample_is_left_out_where_batchnorm_sees_a_single_pixel() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    protocol = Protocol(epochs=1, drops=(), batch_size=20, nesterov=True)
    (result,) = published_probe(net, planted(61), planted(50, seed=1), 4, seed=0, protocol=protocol)
    assert 0 <= result.accuracy <= 1 and result.samples == 61


def test_without_batchnorm_it_is_the_usual_probe_with_nesterov() -> None:
    train, test = planted(200), planted(100, seed=1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
    protocol = Protocol(epochs=4, drops=(3,), nesterov=True)
    usual = probe(net, train, test, 4, (1.0, 0.5), 0, protocol=protocol, logistic=False)
    assert published_probe(net, train, test, 4, (1.0, 0.5), 0, "pooled", protocol) == usual
