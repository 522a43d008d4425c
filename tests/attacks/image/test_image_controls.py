"""The controls of attacks on images, and what they say of messages that are harder than theirs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.attacks.attack import image_attack, image_attacks
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel, batch_norms
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.lab.attempts import ImageAttempt, Images, attempt, run_controls
from fedpriv.attacks.lab.image_controls import Control, negative_control, positive_control
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import observe, perceptron, reference_victim
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.lab.trial import NO_CONTROL, Attacker, out_of_reach
from tests.attacks.sent import messages_of
from tests.attacks.tried import Foreign, short
from tests.marks import slow_but


class Undeclared(Foreign):
    control = None


@pytest.mark.usefixtures("one_iteration")
def test_every_attack_has_controls() -> None:
    """A positive one where it must work somewhere, else the negative one alone; another package's attack has what it declares."""
    assert all(attack.control for attack in image_attacks().values())
    positive, negative = run_controls(Attacker(image_attack("analytic")(), ThreatModel()), 0)
    assert positive.passed and negative.passed
    (negative,) = run_controls(Attacker(short("random-head"), ThreatModel()), 0)
    assert negative.name == "negative" and negative.passed
    assert run_controls(Attacker(Undeclared(), ThreatModel()), 0) == ()


@pytest.mark.parametrize(
    "name", slow_but(("analytic", "unrolled"), ["analytic", "dlg", "inverting-gradients", "known-head", "spear", "unrolled"])
)
def test_max_batch_images_are_recovered_with_audit_options(name: str) -> None:
    """On small images, and the negative controls elsewhere, for the time that they take."""
    kind = image_attack(name)
    assert kind.control is not None and kind.audit_options is not None
    small = replace(kind.control, side=12 if name == "inverting-gradients" else 8, per_message=kind.max_batch)
    result = positive_control(kind(**kind.audit_options), small, seed=2)
    assert result.passed and f"{kind.max_batch} behind one message" in result.sentence, result


@pytest.mark.parametrize("control", [positive_control, negative_control])
def test_controls_leave_the_global_random_state_as_it_was(control: Callable[..., Control]) -> None:
    before = torch.get_rng_state()
    control(image_attack("analytic")(), Setting(net="one for each", images=2, side=8))
    assert torch.equal(torch.get_rng_state(), before)


def test_controls_of_equal_attacks_of_other_packages_run_once() -> None:
    attacker = Attacker(Foreign(), ThreatModel())
    first = run_controls(attacker, 0)
    assert [(control.name, control.passed) for control in first] == [("positive", True), ("negative", True)]
    assert run_controls(attacker, 0) is first and attacker.attack.runs == 1
    assert run_controls(attacker, 1) is not first


def test_controls_are_of_what_is_attacked() -> None:
    """As many images behind a message, as large, hidden where it hides, and with all steps of the attack."""
    images, labels = default_images(3, side=8)
    net = reference_victim(0, 10, 1, 1, 3, 8, 8)
    message = observe(net, images, labels, hidden=True)
    asked: list[Any] = []

    class Spy(Foreign):
        max_batch = 128

        def run(self, seen: Sequence[Observation], seed: int = 0) -> Reconstruction:
            asked.append(seen)
            return super().run(seen, seed)

    spy = Spy()
    run_controls(Attacker(spy, ThreatModel()), 0, [message], images)
    for seen in asked:
        assert {observation.num_examples for observation in seen} == {3} and {
            observation.input_shape for observation in seen
        } == {(3, 8, 8)}
        assert not any(name.startswith("top.") for observation in seen for name in observation.shared)


def test_controls_of_a_net_that_normalises_by_the_batch_do_too() -> None:
    images, labels = default_images(2, side=8)
    asked: list[Observation] = []

    class Spy(Foreign):
        control = Setting(net="perceptron", images=2, side=8)

        def run(self, seen: Sequence[Observation], seed: int = 0) -> Reconstruction:
            asked.extend(seen)
            return super().run(seen, seed)

    class ClosedForm(Spy):
        optimises = False

    for seed, (training, attack) in enumerate(itertools.product((True, False), (Spy(), ClosedForm()))):
        asked.clear()
        net = reference_victim(0, 10, 1, 0, 3, 8, 8, batch_norm=True).train(training)
        message = observe(net, images[:1], labels[:1])
        assert "body.1.running_var" in message.weights and bool(batch_norms(message.net)) == training
        run_controls(Attacker(attack, ThreatModel()), seed, [message], images[:1])  # those of one seed run once
        expected = training and not isinstance(attack, ClosedForm)
        assert {bool(batch_norms(observation.net)) for observation in asked} == {expected}, "a closed form does not run the net"


@pytest.mark.slow
def test_who_learns_from_simulated_messages_reads_those_of_a_net_with_batch_norm() -> None:
    setting = Setting(kind="digits", threat=ThreatModel(public=True), images=10).with_batch_norm()
    result = positive_control(image_attack("learned-inversion")(steps=300), setting)
    assert result.passed, result.sentence


def test_an_attack_that_fails_a_control_is_not_run() -> None:
    seen, images, labels = messages_of(Setting(net="perceptron", images=2, side=8))
    undefended = Images(images, labels, lambda threat: seen)
    output = undefended.run(Attacker(short("inverting-gradients"), ThreatModel()))
    assert output.reconstruction is None and output.inapplicable is not None and output.inapplicable.kind == "control failed"
    assert "not tried, as a control failed: inverting-gradients recovered 0 of 4" in str(output.inapplicable)
    assert not output.is_evidence and output.status(False) == Status.not_run(output.inapplicable)
    output = undefended.run(Attacker(image_attack("analytic")(), ThreatModel()))
    assert output.is_evidence and output.scores is not None and output.scores.recovered[1e-2].successes == 2
    output = undefended.run(Attacker(short("joint-head"), ThreatModel()))
    assert output.reconstruction is not None and not output.is_evidence, "it has no positive control"
    assert output.status(False) == Status("inconclusive", (NO_CONTROL,)) and output.status(True).word == "found"


def test_more_images_at_once_than_a_control_reaches() -> None:
    dlg, analytic, naive = (image_attack(name)() for name in ("dlg", "analytic", "random-head"))
    why = out_of_reach(dlg, 6)
    assert why is not None and why.kind == "too many samples"
    assert why.text == "6 images behind one message; at this budget its control recovers up to 4 at once"
    assert out_of_reach(analytic, 6) is None and "no positive control" in str(out_of_reach(naive, 6))
    assert out_of_reach(dlg, 3) is None
    many = Reason("too many steps", "11 local steps are more than the 10 of this budget")
    assert out_of_reach(image_attack("unrolled")(), 1, Schedule(lr=0.1, steps=11)) == many


def test_a_control_whose_images_are_easier_promises_nothing() -> None:
    """More of them behind a message, or such as share classes."""
    images, _ = default_images(4, side=8)

    def made(name: str, labels: list[int], options: dict[str, Any]) -> ImageAttempt:
        classes = torch.tensor(labels)
        message = observe(reference_victim(0, 10, 1, 0, 3, 8, 8), images, classes)
        return attempt(Attacker(image_attack(name)(**options), ThreatModel()), [message], images, classes, 0)

    def said(result: ImageAttempt) -> tuple[str, ...]:
        assert all(reason.kind == "differs from controls" for reason in result.reasons)
        return tuple(reason.text for reason in result.reasons)

    shared = "images behind a message share classes, and those of its control do not"
    for name, options in (("idlg", {"steps": 1, "restarts": 0}), ("inverting-gradients", {"steps": 1})):
        assert said(made(name, [3, 3, 1, 2], options)) == (shared,) and made(name, [3, 0, 1, 2], options).reasons == ()
    assert made("dlg", [3, 3, 1, 2], {"steps": 1, "restarts": 0}).reasons == ()
    classes = torch.arange(2)
    message = replace(observe(reference_victim(0, 10, 1, 0, 3, 8, 8), images[:2], classes), num_examples=None)
    dlg = Attacker(image_attack("dlg")(steps=1, restarts=0), ThreatModel())
    (why,) = said(attempt(dlg, [message], images[:2], classes, 0))
    assert why == "messages do not say how many images are behind them (2), and those of its control do"
    many, labels = torch.rand(130, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(130) % 10
    message = observe(perceptron(0, channels=3, height=8, width=8), many, labels)
    result = attempt(Attacker(image_attack("analytic")(), ThreatModel()), [message], many, labels, 0)
    mixed = "no ReLU follows 'body.1', so that every image behind a message moves every neuron"
    assert said(result) == ("130 images are behind a message, and its control has at most 128", mixed)
    for activation, n, clauses in ((nn.Tanh, 4, (mixed,)), (nn.ReLU, 4, ()), (nn.Tanh, 1, ())):
        net = perceptron(0, channels=3, height=8, width=8, activation=activation)
        result = attempt(Attacker(image_attack("analytic")(), ThreatModel()), [observe(net, images[:n], labels[:n])], images[:n],
                        labels[:n], 0)  # fmt: skip
        assert said(result) == clauses, activation


@pytest.mark.usefixtures("one_iteration")
def test_a_control_fails_where_the_attack_was_cut_short() -> None:
    positive, negative = run_controls(Attacker(short("idlg"), ThreatModel()), 0)
    assert (positive.name, positive.passed, negative.name, negative.passed) == ("positive", False, "negative", True)
