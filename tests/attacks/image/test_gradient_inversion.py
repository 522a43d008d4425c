"""DLG, iDLG and the head-free attack: against a plain one-image implementation, and on the reference nets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedpriv.attacks.attack import image_attack, image_attacks
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.distances import squared
from fedpriv.attacks.gradients.matching import build_case
from fedpriv.attacks.gradients.projection import convolution_signal, is_overdetermined
from fedpriv.attacks.image.dlg import Dlg, Idlg, PublishedDlg, PublishedIdlg, label_matching, sign_rule
from fedpriv.attacks.image.head_free import HeadFree
from fedpriv.attacks.image.heads import JointHead, KnownHead, RandomHead
from fedpriv.attacks.image.inverting_gradients import InvertingGradients
from fedpriv.attacks.lab.image_controls import Setting, negative_control, positive_control
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import HONEST, observe, reference_victim
from fedpriv.attacks.optimise.lbfgs import BatchedLbfgs
from fedpriv.attacks.scoring.scores import match, mse
from tests.attacks.sent import each, in_double, noisy, of_unknown_rate, only, pruned
from tests.marks import quick_first
from tests.oracles.dlg import dlg

SIDE = 8


def observed(n: int, layers: int = 1, masked: int = 0, threat: ThreatModel = HONEST) -> tuple[Tensor, Tensor, list[Observation]]:
    images, labels = default_images(n, side=SIDE)
    net = reference_victim(0, layers=layers, masked=masked, height=SIDE, width=SIDE)
    pairs = zip(images.split(1), labels.split(1), strict=True)
    return images, labels, [observe(net, x, y, threat, hidden=masked > 0) for x, y in pairs]


@pytest.mark.parametrize("improved", [False, True])
def test_the_published_attack_is_the_plain_one_for_each_image(improved: bool) -> None:
    """In float64, since without a line search float32 diverges within a few steps."""
    images, labels = default_images(2)
    images = images.double()
    net = reference_victim(0).double()
    observations = [observe(net, images[i : i + 1], labels[i : i + 1]) for i in range(2)]
    case = build_case(observations, bounded=False)
    objective = label_matching(case, squared, sign_rule(case) if improved else None)
    start = torch.randn(2, objective.layout.size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ours = BatchedLbfgs(objective, start)
    ours.step()  # twenty iterations; later ones of a start that diverges amplify rounding
    unknown, begun = objective.layout.unpack(ours.x), objective.layout.unpack(start)
    for i in range(2):
        label = None if improved else begun["label"][i]
        theirs = dlg(net, list(observations[i].shared.values()), begun["image"][i], label, steps=1, improved=improved)
        torch.testing.assert_close(unknown["image"][i], theirs.image, rtol=1e-5, atol=1e-6)
        if improved:
            assert int(sign_rule(case)[i]) == theirs.label


@pytest.mark.parametrize("bias", [True, False])
def test_the_sign_rule_finds_every_label(bias: bool) -> None:
    _, labels, observations = observed(20)
    if not bias:
        observations = [replace(o, shared={n: g for n, g in o.shared.items() if n != "top.0.bias"}) for o in observations]
        net = observations[0].net
        net = SplitNet(net.body, nn.Sequential(nn.Linear(48, 10, bias=False)))
        observations = [replace(o, net=net) for o in observations]
    assert sign_rule(build_case(observations, bounded=True)).flatten().tolist() == labels.tolist()


@pytest.mark.parametrize("attack", quick_first([Idlg(steps=6), Dlg(steps=6)]))
def test_positive_control(attack: Dlg) -> None:
    control = positive_control(attack, Setting(images=2, side=SIDE))
    assert control.passed, control.sentence


def test_negative_control_and_one_that_must_fail() -> None:
    control = negative_control(Idlg(steps=4, restarts=0), Setting(images=2, side=SIDE))
    assert control.passed and "random gradients" in control.sentence
    assert not positive_control(InvertingGradients(steps=1), Setting(images=2, side=SIDE)).passed


def test_head_free_recovers_images_behind_a_shared_linear_layer() -> None:
    images, _, observations = observed(2, layers=2, masked=1)
    result = HeadFree(steps=6, restarts=0).run(observations)
    assert (mse(result.images, images) < 1e-2).all()
    assert result.labels.tolist() == [-1, -1]


def test_images_do_not_depend_on_what_else_is_attacked() -> None:
    _, _, observations = observed(3)
    observations, attack = [replace(in_double(one), net=one.net) for one in observations], Idlg(steps=1, restarts=0)
    together, alone = attack.run(observations), attack.run(observations[:1])
    torch.testing.assert_close(together.images[0], alone.images[0], atol=1e-6, rtol=0)


def test_nets_with_different_weights_are_attacked_together() -> None:
    images, labels = default_images(2)
    observations = [observe(reference_victim(i), images[i : i + 1], labels[i : i + 1]) for i in range(2)]
    case = build_case(observations, bounded=True)
    assert case.stacked and not case.weights
    assert sign_rule(case).flatten().tolist() == labels.tolist()
    single = label_matching(build_case(observations[1:], bounded=True), squared, labels[1:, None])
    both = label_matching(case, squared, labels[:, None])
    point = torch.randn(2, single.layout.size)
    value, gradient = both(torch.arange(2), point)
    value_alone, gradient_alone = single(torch.arange(1), point[1:])
    torch.testing.assert_close(value[1:], value_alone, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(gradient[1:], gradient_alone, rtol=1e-2, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["pruning", "noise"])
def test_a_defence_does_not_make_an_unknown_rate_matter(defence: str) -> None:
    images, labels = default_images(1, side=SIDE)
    seen = Setting(net="perceptron", side=SIDE).observations(images, labels, 0)[0]
    deviation = 0.02 * float(torch.cat([tensor.flatten() for tensor in seen.shared.values()]).square().mean().sqrt())
    change = of_unknown_rate(noisy(seen, deviation) if defence == "noise" else pruned(seen, torch.median), 0.01)
    attack, draw = InvertingGradients(steps=150), torch.Generator().manual_seed(1)
    known = replace(change, schedule=Schedule(lr=0.01))
    errors = [float(mse(attack.run([message]).images, images)) for message in (known, change)]
    assert max(errors) < 1e-2, errors
    other = each(change, lambda tensor: tensor[torch.randperm(len(tensor), generator=draw)])
    assert float(mse(attack.run([other]).images, images)) > 3e-2, "of another message it finds nothing"


def test_the_gradient_of_a_batch_makes_as_many_images() -> None:
    images, _, _ = observed(2)
    net = reference_victim(0, height=SIDE, width=SIDE)
    labels = torch.tensor([1, 4])
    result = Idlg(steps=1, restarts=0).run([observe(net, images, labels)])
    assert result.images.shape == images.shape and sorted(result.labels.tolist()) == [1, 4]
    assert sorted(match(result.images, images).tolist()) == [0, 1]


@pytest.mark.parametrize(
    "attack",
    [
        PublishedDlg(steps=1),
        PublishedIdlg(steps=1),
        InvertingGradients(steps=3),
        JointHead(adam_steps=2, steps=1, restarts=0),
        RandomHead(assumed=2, steps=1),
        RandomHead(assumed=1, steps=1, published=True),
        KnownHead(steps=1, restarts=0),
        HeadFree(adam_steps=2, steps=1, restarts=0, closed_form=False),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_every_attack_returns_images_in_range(attack) -> None:
    _, _, observations = observed(2)
    result = attack.run(observations)
    assert result.images.shape == (2, 3, SIDE, SIDE) and result.images.min() >= 0 and result.images.max() <= 1
    assert result.loss.shape == (2,) and result.curve.shape[1] == 2 and result.iterations.min() >= 1


def test_known_head_needs_to_know_it() -> None:
    _, _, hidden = observed(1, masked=1)
    for attack in (KnownHead(), Dlg(), Idlg(), InvertingGradients()):
        with pytest.raises(Inapplicable, match=r"hidden|not shared"):
            attack.run(hidden)
    _, _, known = observed(1, masked=1, threat=ThreatModel(top="current"))
    assert KnownHead(steps=1, restarts=0).run(known).images.shape == (1, 3, SIDE, SIDE)


def test_what_cannot_be_attacked_says_why() -> None:
    _, _, observations = observed(1)
    nothing = replace(observations[0], shared={})
    with pytest.raises(Inapplicable, match="no layer is shared"):
        HeadFree().run([nothing])
    change = replace(observations[0], kind="change")
    with pytest.raises(Inapplicable, match="schedule"):
        Dlg().run([change])
    with pytest.raises(Inapplicable, match="before the hidden"):
        HeadFree().run([only(observations[0], "top.")])


class OnceOnly(nn.Module):
    """An operation without a second derivative."""

    class Function(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sigmoid()

        @staticmethod
        def setup_context(ctx, inputs, output) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad: Tensor) -> Tensor:
            (output,) = ctx.saved_tensors
            return grad * output * (1 - output)

    def forward(self, x: Tensor) -> Tensor:
        return self.Function.apply(x)


def test_a_net_without_second_derivatives_is_named() -> None:
    images, labels = default_images(1)
    net = reference_victim(0)
    net.body[1] = OnceOnly()
    with pytest.raises(Inapplicable, match="cannot be differentiated twice"):
        Dlg().run([observe(net, images, labels)])


def test_registry_lists_all_and_names_what_it_does_not_know() -> None:
    names = {"dlg", "idlg", "dlg-published", "idlg-published", "inverting-gradients", "head-free"}
    assert names | {"joint-head", "known-head", "random-head"} <= set(image_attacks())
    assert all((attack.__doc__ or "").strip() for attack in image_attacks().values())
    with pytest.raises(KeyError, match="did you mean 'dlg'"):
        image_attack("dig")


@pytest.mark.slow
def test_the_last_start_is_not_given_up() -> None:
    """Under noise even good starts leave a large share unexplained; giving up there would understate the leakage."""
    images, labels = default_images(1, side=SIDE)
    noise = torch.Generator().manual_seed(0)
    observed = Setting(side=SIDE).observations(images, labels, 0)[0]
    shared = {name: g + 0.1 * torch.randn(g.shape, generator=noise) for name, g in observed.shared.items()}
    noisy = replace(observed, shared=shared)
    options = {"steps": 3, "give_up": (1, 1e-2), "failed": 1e-5}
    assert Idlg(restarts=0, **options).run([noisy]).iterations.tolist() == [3]
    assert Idlg(restarts=1, **options).run([noisy]).iterations.tolist() == [1 + 3]


def test_default_images_are_distinct_and_the_same_each_time() -> None:
    images, labels = default_images(50)
    again, labels_again = default_images(50)
    assert torch.equal(images, again) and torch.equal(labels, labels_again)
    assert len(images.flatten(1).unique(dim=0)) == 50 and images.min() >= 0 and images.max() <= 1
    assert torch.equal(default_images(20)[0], images[:20])
    assert not torch.equal(default_images(50, seed=1)[0], images)
    with pytest.raises(ValueError, match="places"):
        default_images(10**6)


def test_setting_of_the_controls_can_hide_layers() -> None:
    images, labels = default_images(1)
    (observation,) = Setting(layers=2, masked=1).observations(images, labels, 0)
    assert not any(name.startswith("top.") for name in observation.shared | dict(observation.weights))


def test_convolution_signal_is_exact_given_the_input() -> None:
    """Least squares on the true input give the true dL/d(output)."""
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(3, 4, 5, stride=2, padding=2), torch.rand(1, 3, 16, 16)
    out = layer(inputs)
    signal = torch.randn_like(out)
    weight, bias = torch.autograd.grad((out * signal).sum(), [layer.weight, layer.bias])
    torch.testing.assert_close(convolution_signal(layer, inputs, weight, bias), signal, rtol=1e-3, atol=1e-3)
    assert is_overdetermined(layer, 64) and not is_overdetermined(layer, 75) and not is_overdetermined(nn.Linear(100, 3), 1)


def test_head_free_recovers_an_image_with_the_whole_head_hidden() -> None:
    """No linear layer is shared, so the signal comes from a convolution."""
    images, _, observations = observed(1, masked=1)
    result = HeadFree(steps=15, restarts=0).run(observations)
    assert (mse(result.images, images) < 1e-2).any()
