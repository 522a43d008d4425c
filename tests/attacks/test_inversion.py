"""Attacks on the gradient of any net, as a notebook has it."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import matplotlib as mpl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks import Inapplicable, invert
from fedpriv.attacks.attack import ATTACKS, ImageAttack
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Reconstruction, SingleReconstruction, together
from fedpriv.attacks.image.direct import Analytic
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import reference_victim
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.lab.trial import NO_CONTROL


class Own(nn.Module):
    """A small net in which the layers stand in another order than they are called."""

    def __init__(self, softmax: bool = False) -> None:
        super().__init__()
        self.out = nn.Linear(16, 10)
        self.hidden = nn.Linear(3 * 8 * 8, 16)
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(torch.sigmoid(self.hidden(x.flatten(1))))
        return logits.log_softmax(1) if self.softmax else logits


@pytest.fixture
def net() -> Own:
    torch.manual_seed(0)
    return Own()


IMAGES, LABELS = default_images(2, side=8)
SHAPE = (3, 8, 8)


def gradient_of(net: nn.Module, count: int = 1) -> dict[str, Tensor]:
    loss = F.cross_entropy(net(IMAGES[:count]), LABELS[:count])
    return dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))


@pytest.mark.parametrize("listed", [False, True])
def test_an_image_and_its_label_from_a_gradient(net: Own, listed: bool) -> None:
    gradient = gradient_of(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    given = list(gradient.values()) if listed else gradient
    result = invert(net, given, input_shape=SHAPE, classes=10, attack="idlg")
    assert result.scores(IMAGES[:1], LABELS[:1]).mse.item() < 1e-4 and result.labels.tolist() == LABELS[:1].tolist()
    assert result.images.shape == (1, *SHAPE) and "idlg" in repr(result)
    assert net.training and all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_counts_in_the_mode_of_the_net(training: bool) -> None:
    """In the other mode the loss at the image itself is far from 0, and no attack finds it.

    Where an image is normalised by itself, its contrast and brightness hardly count, so it is not compared by its error.
    """
    victim = reference_victim(0, height=8, width=8, batch_norm=True)
    torch.manual_seed(0)
    net = nn.Sequential(OrderedDict(body=victim.body, top=victim.top)).train(training)
    state = copy.deepcopy(net.state_dict())
    gradient = gradient_of(net)
    net.load_state_dict(state)  # the step moved the running statistics
    budget = {"steps": 40, "restarts": 0}
    result = invert(net, gradient, input_shape=SHAPE, attack="idlg", options=budget)
    assert result.loss < 1e-6 and result.scores(IMAGES[:1]).ssim.item() > 0.9
    assert invert(net.train(not training), gradient, input_shape=SHAPE, attack="idlg", options=budget).loss > 1e-2


def test_nothing_from_noise(net: Own) -> None:
    draw = torch.Generator().manual_seed(1)
    noise = {name: torch.randn(tensor.shape, generator=draw) * tensor.std() for name, tensor in gradient_of(net).items()}
    result = invert(net, noise, input_shape=SHAPE, attack="analytic")
    assert result.scores(IMAGES[:1]).mse.item() > 0.01


def test_a_change_of_several_steps(net: Own) -> None:
    own = Own()
    own.load_state_dict(net.state_dict())
    optimiser = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(own(IMAGES[:1]), LABELS[:1]).backward()
        optimiser.step()
    after = dict(own.named_parameters())
    change = {name: (after[name] - parameter).detach() for name, parameter in net.named_parameters()}
    schedule = {"lr": 0.1, "steps": 3, "momentum": 0.5}
    result = invert(net, change, input_shape=SHAPE, attack="analytic", **schedule)  # type: ignore[arg-type]
    assert result.scores(IMAGES[:1]).mse.item() < 1e-4


@pytest.mark.parametrize("of_biases", [None, 0.0])
def test_biases_decay_as_in_the_clients_optimiser(net: Own, of_biases: float | None) -> None:
    """``torch.optim.SGD`` has one penalty for all tensors, unless they are in groups of their own."""
    own = copy.deepcopy(net)
    rest = [own.hidden.weight, own.out.weight]
    groups = [{"params": rest}, {"params": [own.hidden.bias, own.out.bias], "weight_decay": of_biases}]
    optimiser = torch.optim.SGD(own.parameters() if of_biases is None else groups, lr=0.1, weight_decay=0.5)
    F.cross_entropy(own(IMAGES[:1]), LABELS[:1]).backward()
    optimiser.step()
    after = dict(own.named_parameters())
    change = {name: (after[name] - parameter).detach() for name, parameter in net.named_parameters()}
    decay = {"weight_decay": 0.5, "weight_decay_bias": of_biases}
    result = invert(net, change, input_shape=SHAPE, attack="analytic", lr=0.1, **decay)  # type: ignore[arg-type]
    assert result.scores(IMAGES[:1]).mse.item() < 1e-4


def test_several_images_are_scored_in_their_order(net: Own) -> None:
    result = invert(net, gradient_of(net, 2), input_shape=SHAPE, attack="idlg", n=2, labels=LABELS)
    swapped = [result.scores(IMAGES[order]).mse for order in ([0, 1], [1, 0])]
    assert torch.equal(swapped[0], swapped[1].flip(0)) and result.threat.labels
    with pytest.raises(ValueError, match=r"original has shape \(1, 3, 8, 8\), and the reconstructions \(2, 3, 8, 8\)"):
        result.scores(IMAGES[:1])


def test_labels_may_be_integers_of_any_kind(net: Own) -> None:
    short = {"steps": 1, "restarts": 0}
    result = invert(net, gradient_of(net), input_shape=SHAPE, attack="dlg", labels=LABELS[:1].int(), options=short)
    assert torch.equal(result.labels, LABELS[:1])


class Remembers(Own):
    """Keeps what it computed, to be looked at."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = [torch.sigmoid(self.hidden(x.flatten(1)))]
        logits: Tensor = self.out(self.seen[0])
        return logits


class Normed(Own):
    """Its weight is computed before every pass, and kept."""

    def __init__(self) -> None:
        super().__init__()
        with pytest.warns(FutureWarning, match="weight_norm"):
            self.hidden = nn.utils.weight_norm(self.hidden)


@pytest.mark.parametrize("kind", [Remembers, Normed])
def test_invert_works_on_a_net_that_stores_activations(kind: type[Own]) -> None:
    torch.manual_seed(0)
    net = kind()
    gradient = gradient_of(net)
    result = invert(net, gradient, input_shape=SHAPE, attack="idlg", options={"steps": 30, "restarts": 0})
    assert result.scores(IMAGES[:1]).mse.item() < 1e-3
    draw = torch.Generator().manual_seed(1)
    noise = {name: torch.randn(tensor.shape, generator=draw) * tensor.std() for name, tensor in gradient.items()}
    nothing = invert(net, noise, input_shape=SHAPE, attack="idlg", options={"steps": 5, "restarts": 0})
    assert nothing.scores(IMAGES[:1]).mse.item() > 0.01


def test_a_net_that_cannot_be_copied_is_refused(net: Own) -> None:
    gradient = gradient_of(net)
    net.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"the net cannot be copied: cannot pickle '_thread\.lock'"):
        invert(net, gradient, input_shape=SHAPE)


def test_a_picture(net: Own) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    result = invert(net, gradient_of(net), input_shape=SHAPE, attack="analytic")
    axes = result.plot(original=IMAGES[:1])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["original", "analytic"]
    assert result.plot(ax=axes) is axes
    pyplot.close(axes.figure)


class Deep(Own):
    """Its layers stand in the reverse of the order in which they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.first = nn.Linear(32, 16), nn.Linear(3 * 8 * 8, 32)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.hidden(self.first(x.flatten(1)).relu()).relu())
        return logits


@pytest.mark.parametrize("attack", ["analytic", "spear"])
def test_first_layer_is_found_in_any_module_order(attack: str) -> None:
    torch.manual_seed(0)
    net = Deep()
    result = invert(net, gradient_of(net), input_shape=SHAPE, attack=attack)
    assert result.scores(IMAGES[:1]).mse.item() < 1e-6


def test_without_the_last_layer_another_attack_is_needed(net: Own) -> None:
    gradient = {name: tensor for name, tensor in gradient_of(net).items() if not name.startswith("out.")}
    with pytest.raises(Inapplicable, match="last layer"):
        invert(net, gradient, input_shape=SHAPE, attack="idlg")
    assert invert(net, gradient, input_shape=SHAPE, attack="analytic").scores(IMAGES[:1]).mse.item() < 1e-4


def test_a_refusal_has_the_names_of_the_net(net: Own) -> None:
    for own, layer in ((net, "hidden"), (nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)), "1")):
        with pytest.raises(Inapplicable, match=f"no ReLU follows '{layer}',"):
            invert(own, gradient_of(own), input_shape=SHAPE, attack="spear")


def test_controls_on_request(net: Own) -> None:
    messages = list[str]()
    result = invert(net, gradient_of(net), input_shape=SHAPE, attack="analytic", controls=True, say=messages.append)
    assert messages == ["controls of analytic", "analytic: 1 image(s) of 3x8x8"]
    assert {control.name for control in result.controls} == {"positive", "negative"}
    assert not invert(net, gradient_of(net), input_shape=SHAPE, attack="analytic").controls


@dataclass(frozen=True)
class OfOne(Analytic):
    """A closed form that says that it is an attack which optimises, on one image."""

    name: ClassVar = "of-one"
    control: ClassVar = Setting(net="perceptron", images=1)
    max_batch: ClassVar = 1
    optimises: ClassVar = True


@dataclass(frozen=True)
class OfGradients(OfOne):
    """The same, which finds nothing after local steps."""

    name: ClassVar = "of-gradients"

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        result = super().run(observations, seed)
        return result if observations[0].kind == "gradient" else replace(result, raw=torch.full_like(result.raw, 0.5))


@pytest.fixture
def own_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ATTACKS, "_known", {**ATTACKS.all(), "of-one": OfOne, "of-gradients": OfGradients})


@pytest.mark.usefixtures("own_attacks")
def test_more_images_than_those_of_the_controls_are_no_evidence(net: Own) -> None:
    alone = invert(net, gradient_of(net), input_shape=SHAPE, attack="of-one", controls=True)
    assert alone.no_evidence is None and [control.name for control in alone.controls] == ["positive", "negative"]
    both = invert(net, gradient_of(net, 2), input_shape=SHAPE, attack="of-one", n=2, controls=True)
    reach, *others = str(both.no_evidence).split("; no ")
    assert reach == "2 images behind one message; at this budget its control recovers up to 1 at once"
    assert others == ["ReLU follows 'hidden', so that every image behind a message moves every neuron"], "in the net's own names"
    assert invert(net, gradient_of(net), input_shape=SHAPE, attack="of-one").no_evidence == NO_CONTROL.text


@pytest.mark.usefixtures("own_attacks")
@pytest.mark.parametrize("attack", ["of-one", "of-gradients"])
def test_after_local_steps_the_control_on_the_same_net_decides(net: Own, attack: str) -> None:
    change = {name: -0.1 * tensor for name, tensor in gradient_of(net).items()}
    once = invert(net, change, input_shape=SHAPE, attack=attack, lr=0.1, controls=True)
    assert once.no_evidence is None, "one step is a gradient"
    several = invert(net, change, input_shape=SHAPE, attack=attack, lr=0.05, steps=2, controls=True)
    assert [control.name for control in several.controls] == ["positive", "negative", "same net"]
    if attack == "of-one":
        assert several.no_evidence is None
    else:
        assert [reason.kind for reason in several.reasons] == ["same net"]
        assert "from undefended messages of this net, of-gradients recovers 0 of 4 photographs" in str(several.no_evidence)


@dataclass(frozen=True)
class Grey(ImageAttack):
    """Finds nothing."""

    name: ClassVar = "grey"
    control: ClassVar = Setting(net="perceptron", images=1)

    def run(self, observations: Sequence[Observation], seed: int = 0) -> Reconstruction:
        def grey(observation: Observation) -> SingleReconstruction:
            return SingleReconstruction(torch.full((1, *observation.input_shape), 0.5), torch.tensor([-1]), [1.0], (1.0,))

        return together(observations, grey)


def test_an_attack_that_fails_its_control_is_not_tried(net: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ATTACKS, "_known", {**ATTACKS.all(), "grey": Grey})
    assert invert(net, gradient_of(net), input_shape=SHAPE, attack="grey").scores(IMAGES[:1]).mse.item() > 0.01
    with pytest.raises(Inapplicable, match="a control failed: grey recovered 0 of 1 undefended images"):
        invert(net, gradient_of(net), input_shape=SHAPE, attack="grey", controls=True)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"classes": 7}, "classes = 7, and the net returns 10 logits"),
        ({"attack": "idlgg"}, "unknown attack 'idlgg'; did you mean 'idlg'"),
        ({"attack": "imprint"}, "imprint alters what a server sends, so it needs a run"),
        ({"input_shape": (3, 9, 9)}, r"the net does not take inputs of shape \(2, 3, 9, 9\): .*mat1"),
        ({"head": "outt"}, "the net has no module 'outt' for the head; did you mean 'out'"),
        ({"head": "hidden"}, "the net cannot be cut before 'hidden'"),
        ({"steps": 3}, "give its lr, too"),
        ({"mean": (0.5, 0.5)}, "mean has 2 numbers, and an image 3 channels"),
        ({"weight_decay_bias": 0.1}, "give its lr, too"),
        ({"n": 0}, "n = 0: a whole number, at least 1"),
        ({"n": 1.5}, r"n = 1\.5: a whole number"),
        ({"input_shape": (192,)}, r"input_shape = \(192,\): that of an image, \(C, H, W\)"),
        ({"lr": 0.0}, r"lr = 0\.0: that cannot be; a number above 0"),
        ({"lr": -0.1}, r"lr = -0\.1: that cannot be"),
        ({"lr": torch.nan}, "lr = nan: that cannot be"),
        ({"lr": 0.1, "steps": 0}, "steps = 0: that cannot be; a whole number, at least 1"),
        ({"lr": 0.1, "batch_size": 0}, "batch_size = 0: that cannot be"),
        ({"lr": 0.1, "momentum": 1.0}, r"momentum = 1\.0: that cannot be; a number from 0 to below 1"),
        ({"lr": 0.1, "weight_decay_bias": -1.0}, r"weight_decay_bias = -1\.0: that cannot be"),
        ({"std": (0.0,)}, r"std = \(0\.0,\): that cannot be; finite numbers, those of std above 0"),
        ({"mean": (torch.nan,)}, r"mean = \(nan,\): that cannot be"),
        ({"labels": torch.tensor([10])}, "labels from 10 to 10, of 10 classes from 0"),
        ({"labels": torch.tensor([-1])}, "labels from -1 to -1, of 10 classes"),
        ({"labels": torch.tensor([3.0])}, r"labels of shape \(1,\) and torch.float32: whole numbers, one for each of n = 1"),
        ({"labels": torch.tensor([3, 4])}, r"labels of shape \(2,\)"),
        ({"gradient": []}, "a list of 0, and the net has 4 parameters"),
        ({"gradient": {"outt.weight": torch.ones(1)}}, "no parameter 'outt.weight'; did you mean 'out.weight'"),
        ({"gradient": {"out.bias": torch.ones(3)}}, r"out.bias has shape \(3,\), and the net's \(10,\)"),
        ({"gradient": {"out.bias": None}}, "holds no tensor"),
        ({"gradient": {"out.bias": torch.full((10,), torch.nan)}}, "out.bias is not finite"),
        ({"model": Own(softmax=True)}, "something comes after it, such as a softmax"),
        ({"model": nn.Flatten()}, "no linear layer"),
    ],
)
def test_what_does_not_fit(net: Own, changed: dict[str, object], why: str) -> None:
    given = {"model": net, "gradient": gradient_of(net), "input_shape": SHAPE, **changed}
    with pytest.raises(ValueError, match=why):
        invert(given.pop("model"), given.pop("gradient"), **given)  # type: ignore[arg-type]


def test_an_option_that_the_attack_does_not_have(net: Own) -> None:
    with pytest.raises(TypeError, match="idlg has no option 'restart'; did you mean 'restarts'"):
        invert(net, gradient_of(net), input_shape=SHAPE, options={"restart": 2})
    with pytest.raises(TypeError, match="restarts must be a whole number"):
        invert(net, gradient_of(net), input_shape=SHAPE, options={"restarts": "two"})
