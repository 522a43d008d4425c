"""The weight-by-bias quotient, against the images that made the gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedpriv.attacks.attack import image_attack
from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients import linear
from fedpriv.attacks.gradients.analytic import row_ratios, single_sample
from fedpriv.attacks.gradients.linear import SharedLinear, single_sample_input
from fedpriv.attacks.lab.attempts import attempt
from fedpriv.attacks.lab.nets import one_for_each
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.scoring.scores import match, mse
from fedpriv.objectives.simclr import nt_xent
from tests.attacks.client import CLASSES, SHAPE, OfRows, change, gradient, mlp, observe, pictures
from tests.attacks.sent import noisy, pruned


def test_single_sample_is_exact_with_hidden_head() -> None:
    net, image = mlp(), pictures(1)
    mean, std = (0.4,), (0.3,)
    sent = gradient(net, (image - 0.4) / 0.3, torch.tensor([2]))
    hidden = {name: g for name, g in sent.items() if name.startswith("body")}
    first, second = row_ratios(observe(net, hidden, mean=mean, std=std))
    assert first.is_image and first.values.shape == (1, *SHAPE)
    torch.testing.assert_close(first.values[0], image[0], rtol=1e-7, atol=1e-7)
    assert first.support[0] > 1 and first.plausible[0] and first.in_range[0] == 1
    # The second layer gives its input: the features behind the first ReLU.
    features = net.body[:3]((image - 0.4) / 0.3)  # type: ignore[index]
    assert not second.is_image and second.layer == "body.3"
    torch.testing.assert_close(second.values[0], features[0], rtol=1e-7, atol=1e-7)
    for candidate, left in single_sample(observe(net, hidden, mean=mean, std=std)):
        assert left < 1e-12 and candidate.plausible[0]


def test_row_ratios_of_a_batch_give_images_of_exclusive_neurons() -> None:
    net, images = mlp(hidden=400), pictures(4)
    with torch.no_grad():  # rarely active neurons, as a trained first layer has
        net.body[1].bias -= 0.45  # type: ignore[index, union-attr, operator]
    recovered = row_ratios(observe(net, gradient(net, images, torch.arange(4)), num_examples=4))[0]
    sure = recovered.values[recovered.support > 1]
    distance = torch.cdist(sure.flatten(1), images.flatten(1))
    assert len(sure) >= 3  # each once, without duplicates ...
    assert (distance.min(dim=1).values < 1e-6).all()  # ... and what two neurons agree on is an image, not a mixture
    assert len(distance.argmin(dim=1).unique()) == len(sure)
    assert recovered.plausible[: len(sure)].all() and (recovered.support[: len(sure)] > 1).all()  # the sure ones come first


@pytest.mark.parametrize("n", [1, 3])
def test_layer_inputs_in_rows_are_not_the_image(n: int) -> None:
    """The row ratio is a mixture of rows."""
    torch.manual_seed(0)
    net, images = SplitNet(OfRows(), nn.Linear(16, 5)).double(), pictures(n)
    message = observe(net, gradient(net, images, torch.arange(n)), num_examples=n)
    assert not row_ratios(message)[0].is_image and not single_sample(message)[0][0].is_image
    for name in ("analytic", "spear"):
        with pytest.raises(Inapplicable, match=r"'body\.third' is features"):
            image_attack(name)().run([message])


def test_messages_of_one_net_at_equal_weights_are_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images, labels = mlp(), pictures(2), torch.tensor([1, 2])
    probed, probe = list[Observation](), linear._layer_inputs
    monkeypatch.setattr(linear, "_layer_inputs", lambda seen: (probed.append(seen), probe(seen))[1])
    first = observe(net, gradient(net, images[:1], labels[:1]), num_examples=1)
    again = replace(
        first, shared=gradient(net, images[1:2], labels[1:2]), weights={n: t.clone() for n, t in first.weights.items()}
    )
    image_attack("analytic")().run([first, again])
    assert len(probed) == 1
    moved = replace(first, weights={name: tensor + 1 for name, tensor in first.weights.items()})
    assert [row_ratios(seen)[0].is_image for seen in (first, moved, first)] == [True] * 3 and len(probed) == 3


def test_analytic_needs_no_labels_and_label_attacks_refuse() -> None:
    net, images = mlp(hidden=400), pictures(2)
    views = torch.cat([images, images.flip(3)])
    with torch.no_grad():
        net.body[1].bias -= 0.45  # type: ignore[index, union-attr, operator]
    first, second = net.body(views).chunk(2)
    sent = {f"body.{name}": p for name, p in net.body.named_parameters()}
    slopes = torch.autograd.grad(nt_xent(first, second, 0.5), list(sent.values()))
    seen = replace(observe(net, dict(zip(sent, slopes, strict=True)), num_examples=2), loss="simclr")
    recovered = row_ratios(seen)[0]
    sure = recovered.values[recovered.support > 1]
    distance = torch.cdist(sure.flatten(1), views.flatten(1))
    assert len(distance.argmin(dim=1).unique()) >= 3 and (distance.min(dim=1).values < 1e-6).all()
    for name in ("dlg", "inverting-gradients", "head-free", "joint-head", "random-head", "unrolled"):
        with pytest.raises(Inapplicable, match="the attack needs a cross-entropy on labels, and the client minimised simclr"):
            image_attack(name)().run([seen])


def test_least_squares_resists_noise_better_than_one_row() -> None:
    net, image = mlp(), pictures(1)
    sent = gradient(net, image, torch.tensor([1]))
    torch.manual_seed(1)
    noisy = {name: g + 1e-4 * torch.randn_like(g) for name, g in sent.items()}
    row = row_ratios(observe(net, noisy))[0]
    strongest = row.values[row.strength.argmax()]
    together, left = single_sample(observe(net, noisy))[0]
    error = (together.values[0] - image[0]).norm()
    assert error < (strongest - image[0]).norm() and left > 1e-12


def test_total_least_squares_resists_noise_best() -> None:
    draw = torch.Generator().manual_seed(0)
    out, inputs = torch.randn(300, generator=draw), torch.rand(64, generator=draw)
    error = 0.3 * float(torch.outer(out, inputs).std())
    weight = torch.outer(out, inputs) + error * torch.randn(300, 64, generator=draw)
    bias = out + error * torch.randn(300, generator=draw)
    recovered = single_sample_input(SharedLinear("first", weight, bias, error=error))
    by_bias = bias @ weight / (bias.square().sum() - 300 * error**2)
    assert (recovered - inputs).norm() < 0.9 * (by_bias - inputs).norm()
    exact = single_sample_input(SharedLinear("first", torch.outer(out, inputs), out))
    torch.testing.assert_close(exact, inputs)


def defended(message: Observation, how: str) -> Observation:
    """A message after a mild, known defence."""
    shared = message.shared
    sizes = torch.cat([tensor.flatten() for tensor in shared.values()]).abs()
    if how == "pruning":
        return pruned(message, lambda _: float(sizes.quantile(0.3)))
    if how == "rounding":
        steps = {name: float(tensor.abs().max()) / 2**6 for name, tensor in shared.items()}
        variance = {name: step**2 / 12 for name, step in steps.items()}
        return replace(
            message, shared={n: (t / steps[n]).round() * steps[n] for n, t in shared.items()}, altered=Altered(variance=variance)
        )
    return noisy(message, 0.01 * float(sizes.square().mean().sqrt()))


@pytest.mark.parametrize("how", ["noise", "rounding", "pruning"])
def test_mild_defence_gives_each_image_once_from_its_best_row(how: str) -> None:
    images = pictures(12)
    inputs = (images - 0.5) / 0.3
    net = one_for_each(inputs.float(), 0, CLASSES).double()
    sent = gradient(net, inputs, torch.arange(12) % CLASSES)
    recovered = row_ratios(defended(observe(net, sent, num_examples=12, mean=(0.5,), std=(0.3,)), how))[0]
    first = recovered.values[:12]
    assert float(mse(first[match(first, images)], images).max()) < 1e-2
    assert int(recovered.plausible.sum()) == 12


def test_the_rounding_of_a_small_step_gives_each_image_once() -> None:
    images, schedule = pictures(12).float(), Schedule(lr=1e-4, batch_size=12)
    net = one_for_each(images, 0, CLASSES)
    sent = change(net, images, torch.arange(12) % CLASSES, schedule)
    recovered = row_ratios(observe(net, sent, kind="change", schedule=schedule, num_examples=12))[0]
    first = recovered.values[:12]
    assert float(mse(first[match(first, images)], images).max()) < 1e-2 and int(recovered.plausible.sum()) == 12


def test_pure_noise_gives_no_plausible_candidate() -> None:
    net, draw = mlp(hidden=400), torch.Generator().manual_seed(0)
    noise = {n: torch.randn(p.shape, generator=draw, dtype=p.dtype) for n, p in net.named_parameters()}
    known = {"altered": Altered(variance=dict.fromkeys(noise, 1.0)), "mean": (0.5,), "std": (0.3,), "num_examples": None}
    for recovered in row_ratios(observe(net, noise, **known)):
        assert not recovered.plausible.any()


def test_random_numbers_give_nothing() -> None:
    net = mlp()
    torch.manual_seed(0)
    noise = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    for recovered in row_ratios(observe(net, noise)):
        assert not recovered.plausible.any()
    for candidate, left in single_sample(observe(net, noise)):
        assert left > 0.5 and not candidate.plausible[0]


def test_works_on_weight_changes_of_a_batch() -> None:
    schedule = Schedule(lr=0.01, steps=6, batch_size=2, momentum=0.5, weight_decay=1e-4)
    net, images = mlp(hidden=400), pictures(4)
    with torch.no_grad():
        net.body[1].bias -= 0.45  # type: ignore[index, union-attr, operator]
    sent = change(net, images, torch.arange(4), schedule)
    recovered = row_ratios(observe(net, sent, kind="change", schedule=schedule, num_examples=4))[0]
    sure = recovered.values[recovered.support > 1]
    assert len(sure) >= 2
    assert (torch.cdist(sure.flatten(1), images.flatten(1)).min(dim=1).values < 0.05).all()


def test_a_net_without_a_leaky_layer_is_refused() -> None:
    torch.manual_seed(0)
    net = SplitNet(nn.Sequential(nn.Flatten(), nn.Linear(36, 8, bias=False), nn.ReLU()), nn.Linear(8, 5)).double()
    sent = gradient(net, pictures(1), torch.tensor([0]))
    with pytest.raises(Inapplicable, match="bias"):
        row_ratios(observe(net, {name: g for name, g in sent.items() if name.startswith("body")}))


@pytest.mark.parametrize("name", ["analytic", "analytic-features", "spear"])
def test_layers_with_several_vectors_per_image_are_refused(name: str) -> None:
    body = nn.Sequential(nn.Unflatten(2, (2, 3)), nn.Flatten(3), nn.Linear(18, 4), nn.ReLU(), nn.Flatten())
    net = SplitNet(body, nn.Linear(8, 5)).double()
    sent = gradient(net, pictures(1), torch.tensor([0]))
    hidden = observe(net, {name: g for name, g in sent.items() if name.startswith("body")})
    with pytest.raises(Inapplicable, match="no shared linear layer with a bias is fed one vector per sample"):
        image_attack(name)().run([hidden])


def _of_zero_head(weight_decay: float = 0.0) -> Observation:
    """One step of a net whose last layer is zero, so that no gradient reaches the first layer."""
    net, image = mlp(), pictures(1)
    with torch.no_grad():
        for parameter in net.top.parameters():
            parameter.zero_()
    schedule = Schedule(lr=0.1, weight_decay=weight_decay, weight_decay_bias=weight_decay)
    sent = {
        name: -0.1 * (g + weight_decay * net.state_dict()[name]) for name, g in gradient(net, image, torch.tensor([2])).items()
    }
    return replace(observe(net, sent), kind="change", schedule=schedule)


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_a_gradient_of_zero_shows_no_image(weight_decay: float) -> None:
    """Not even a grey one, which would count as a failure; weight decay is no gradient."""
    nothing = _of_zero_head(weight_decay)
    for name in ("analytic", "analytic-features"):
        with pytest.raises(Inapplicable, match=r"gradient of 'body\.1' is zero, which shows nothing of any sample"):
            image_attack(name)().run([nothing])


def test_messages_that_show_nothing_are_no_failure_on_others() -> None:
    """Empty messages are skipped, and do not count as failures."""
    net, image, label = mlp(), pictures(1), torch.tensor([2])
    full = replace(
        _of_zero_head(), shared={n: -0.1 * g for n, g in gradient(net, image, label).items()}, weights=dict(net.state_dict())
    )
    attacker = Attacker(image_attack("analytic")(), ThreatModel())
    outcome = attempt(attacker, [_of_zero_head(), full], torch.cat([image, image]), label.repeat(2), 0)
    assert outcome.recovered is not None and outcome.recovered.successes == 1 and outcome.raw is not None
    assert bool(outcome.raw[0].isnan().all()) and not bool(outcome.raw[1].isnan().any())
    (why,) = outcome.reasons
    assert why.text == "in 1 of 2 messages the gradient of 'body.1' is zero, which shows nothing of any sample"
