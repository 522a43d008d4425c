"""The lab: the attackers, what they know, and that none sees the truth before the attack is over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import make_dataclass, replace
from typing import Any

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from fedpriv.attacks.attack import ImageAttack, image_attack, image_attacks
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel, batch_norms
from fedpriv.attacks.core.options import defaults_of, taken
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.image.dlg import Dlg
from fedpriv.attacks.lab.attempts import (
    ImageAttempt,
    Images,
    attackers,
    attempt,
    observations,
    run_controls,
    suited,
)
from fedpriv.attacks.lab.image_controls import Control, negative_control, positive_control
from fedpriv.attacks.lab.images import default_images, sample_photographs
from fedpriv.attacks.lab.nets import observe, perceptron, reference_victim
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.lab.trial import NO_CONTROL, Attacker, out_of_reach
from tests.marks import quick_first, slow_but

SHORT = {"steps": 1, "adam_steps": 2, "restarts": 0, "iterations": 1, "adam": 2, "lbfgs": 1}


class Sealed(Tensor):
    """The truth: computing with it before it is opened raises an error."""

    opened = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert Sealed.opened, f"{func} touched the truth"
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Watched(ImageAttack):
    """An attack that opens the truth when it is over."""

    def __init__(self, attack: Any) -> None:
        self.attack, self.name = attack, attack.name

    def run(self, seen: Sequence[Observation], seed: int = 0) -> Reconstruction:
        try:
            return self.attack.run(seen, seed)
        finally:
            Sealed.opened = True


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads a data set or the photographs."""

    def caught(*arguments: object, **named: object) -> None:
        raise AssertionError("the attack looked for data")

    for name in (
        "fedpriv.attacks.lab.images.default_images",
        "fedpriv.attacks.lab.images.sample_photographs",
        "fedpriv.attacks.lab.setting.default_images",
    ):
        monkeypatch.setattr(name, caught)
    monkeypatch.setattr("fedpriv.data.sources.load_dataset", caught)


def truth_and_messages(threat: ThreatModel, masked: int = 0) -> tuple[Tensor, Tensor, list[Observation]]:
    images, labels = default_images(2, side=8)
    seen = observations(images, labels, threat, masked, 10, seed=0)
    Sealed.opened = False
    return images.as_subclass(Sealed), labels.as_subclass(Sealed), seen


def test_the_photographs_are_scikit_learns() -> None:
    theirs = [torch.tensor(photograph).permute(2, 0, 1).float() for photograph in load_sample_images().images]
    assert all(torch.equal(own, other) for own, other in zip(sample_photographs(), theirs, strict=True))


def short(name: str) -> Any:
    attack = image_attack(name)()
    return replace(attack, **{option: SHORT[option] for option in defaults_of(attack).keys() & SHORT.keys()})


@pytest.mark.usefixtures("one_iteration")
@pytest.mark.parametrize("masked", quick_first([0, 1]))
@pytest.mark.parametrize("name", sorted(image_attacks()))
def test_an_attack_gets_the_messages_and_nothing_else(name: str, masked: int, request: pytest.FixtureRequest) -> None:
    threat = ThreatModel(top="initial" if name == "known-head" else "unknown")
    images, labels, seen = truth_and_messages(threat, masked)
    request.getfixturevalue("no_data")
    output = attempt(Attacker(Watched(short(name)), threat), seen, images, labels, 0)
    assert Sealed.opened
    assert output.inapplicable or (output.scores is not None and len(output.scores.mse) == 2)


def test_who_peeps_is_caught() -> None:
    images, labels, seen = truth_and_messages(ThreatModel())

    class Peeping(Watched):
        def run(self, seen: Sequence[Observation], seed: int = 0) -> Reconstruction:
            return replace(self.attack.run(seen, seed), raw=images + 0)

    with pytest.raises(AssertionError, match="touched the truth"):
        attempt(Attacker(Peeping(short("dlg")), ThreatModel()), seen, images, labels, 0)


@pytest.mark.parametrize("masked", [0, 2])
def test_a_message_holds_neither_image_nor_label(masked: int) -> None:
    images, labels = default_images(2)
    for observation in observations(images, labels, ThreatModel(), masked, 10, seed=0):
        kept = [
            *observation.shared.values(),
            *observation.weights.values(),
            *observation.net.state_dict().values(),
            *observation.statistics.values(),
        ]
        own = {images.untyped_storage().data_ptr(), labels.untyped_storage().data_ptr()}
        assert not own & {tensor.untyped_storage().data_ptr() for tensor in kept}
        assert observation.labels is None
        hidden = [name for name in (*observation.shared, *observation.weights) if name.startswith("top.")]
        assert bool(hidden) == (masked == 0), "what is masked is absent"


def test_images_of_any_size_can_be_attacked() -> None:
    images, labels = torch.rand(2, 1, 8, 12), torch.tensor([0, 2])
    seen = observations(images, labels, ThreatModel(), 0, 3, seed=0)
    output = attempt(Attacker(short("idlg"), ThreatModel()), seen, images, labels, 0)
    assert output.images is not None and output.images.shape == images.shape


def test_without_a_mask_an_attack_stands_for_itself() -> None:
    (only,) = attackers("dlg", 0, {"steps": 7})
    assert only.attack == Dlg(steps=7) and only.threat == ThreatModel()
    (naive,) = attackers("random-head", 2, {"assumed": 1})
    assert naive.attack.assumed == 1


def test_with_a_mask_every_attacker_that_can_be_tried_is() -> None:
    result = {attacker.name: attacker for attacker in attackers("idlg-published", 2, {"steps": 7, "closed_form": False})}
    optimising = ["analytic-features", "head-free", "joint-head", "known-head", "learned-inversion", "random-head", "unrolled"]
    assert list(result) == ["analytic", "spear", *optimising], "what is quick comes first"
    naive, known, joint, free = (result[name] for name in ("random-head", "known-head", "joint-head", "head-free"))
    assert naive.attack.assumed == 2 and naive.attack.published and joint.attack.assumed is None
    assert not {attacker.name: attacker for attacker in attackers("idlg", 2)}["random-head"].attack.published
    assert {attacker.attack.steps for attacker in (naive, known, joint, free)} == {7} and not free.attack.closed_form
    assert known.threat.top == "initial" and free.threat.top == "unknown"


def test_audits_try_what_fits_at_its_usual_budget() -> None:
    seen, hidden = ({attacker.name: attacker for attacker in suited(masked)} for masked in (0, 3))
    either = {"analytic", "analytic-features", "learned-inversion", "spear", "unrolled"}
    assert seen.keys() == either | {"dlg", "idlg", "inverting-gradients"}
    assert hidden.keys() & seen.keys() == either
    assert seen["inverting-gradients"].attack.steps == 800 and hidden["random-head"].attack.assumed == 3


@pytest.mark.usefixtures("one_iteration")
def test_every_attack_has_controls() -> None:
    """A positive one where it must work somewhere, else the negative one alone; another package's attack has what it declares."""
    assert all(attack.control for attack in image_attacks().values())
    positive, negative = run_controls(Attacker(image_attack("analytic")(), ThreatModel()), 0)
    assert positive.passed and negative.passed
    (negative,) = run_controls(Attacker(short("random-head"), ThreatModel()), 0)
    assert negative.name == "negative" and negative.passed
    assert run_controls(Attacker(Watched(short("dlg")), ThreatModel()), 0) == ()


@pytest.mark.parametrize(
    "name",
    slow_but(("analytic", "unrolled"), ["analytic", "dlg", "inverting-gradients", "known-head", "spear", "unrolled"]),
)
def test_max_batch_images_are_recovered_with_audit_options(name: str) -> None:
    """On small images, and the negative controls elsewhere, for the time that they take."""
    kind = image_attack(name)
    says = kind
    assert says.control is not None and says.audit_options is not None
    small = replace(says.control, side=12 if name == "inverting-gradients" else 8, per_message=says.max_batch)
    result = positive_control(kind(**says.audit_options), small, seed=2)
    assert result.passed and f"{says.max_batch} behind one message" in result.sentence, result


@pytest.mark.parametrize("control", [positive_control, negative_control])
def test_controls_leave_the_global_random_state_as_it_was(control: Callable[..., Control]) -> None:
    before = torch.get_rng_state()
    control(image_attack("analytic")(), Setting(net="one for each", images=2, side=8))
    assert torch.equal(torch.get_rng_state(), before)


class Foreign(ImageAttack):
    """An attack of another package, which says where it must work."""

    name, control = "foreign", Setting(net="perceptron")

    def __init__(self) -> None:
        self.runs = 0

    def run(self, seen: Sequence[Observation], seed: int = 0) -> Reconstruction:
        self.runs += 1
        return image_attack("analytic")().run(seen, seed)


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
    setting = Setting(net="perceptron", images=2, side=8)
    images, labels = setting.truth(0)
    seen = setting.observations(images, labels, 0)
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


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_an_attack_may_show_more_or_fewer_images_than_there_are(rows: int) -> None:
    """Each true image is compared with the row of its message that fits best."""
    images, labels = default_images(4, side=8)
    shown = torch.cat([torch.cat([1 - images[:3], own.flip(0)])[-rows:] if rows else own[:0] for own in images.split(2)])

    class Shows(Foreign):
        def run(self, seen: Sequence[Observation], seed: int = 0) -> Reconstruction:
            none = torch.full((len(shown),), -1)
            return Reconstruction(shown, none, torch.zeros(2), torch.zeros(1, 2), torch.ones(2), torch.zeros(2))

    message = replace(observe(reference_victim(0, 10, 1, 0, 3, 8, 8), images[:2], labels[:2]), num_examples=None)
    output = attempt(Attacker(Shows(), ThreatModel()), [message, message], images, labels, 0)
    assert output.recovered is not None and output.recovered.successes == 2 * min(rows, 2) and output.recovered.n == 4
    alone = attempt(Attacker(Shows(), ThreatModel()), [message] * 2, images[::2], labels[::2], 0)
    assert alone.recovered is not None and alone.recovered.successes == (2 if rows > 0 else 0)


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


def given(default: object, value: object) -> object:
    """A value of an attack's option ``it`` with this default."""
    return taken(make_dataclass("Attack", [("it", Any, default)]), {"it": value})["it"]


RIGHT = [(1, 3, 3), (1.0, 3, 3.0), (True, False, False), (None, 3, 3), (None, None, None), ("a", "b", "b")]


@pytest.mark.parametrize(("default", "value", "output"), [*RIGHT, ((1, 0.5), [2, 1], (2, 1.0))])
def test_options_of_the_right_kind(default: object, value: object, output: object) -> None:
    result = given(default, value)
    assert result == output and type(result) is type(output)


@pytest.mark.parametrize(
    ("default", "value"),
    [(1, True), (1, 2.0), (1, None), (1, -1), (1.0, float("inf")), (1.0, "x"), (True, 1), (None, "x"), ("a", 1), ((1, 2), [1])],
)
def test_options_of_the_wrong_kind(default: object, value: object) -> None:
    with pytest.raises(TypeError, match="it must be"):
        given(default, value)


def test_every_image_has_a_net_of_its_own() -> None:
    images, labels = default_images(3)
    seen = observations(images, labels, ThreatModel(), 0, 10, seed=0)
    weights = torch.stack([message.weights["body.0.weight"].flatten() for message in seen])
    assert len(weights.unique(dim=0)) == 3
    alone, other = (observations(images[:1], labels[:1], ThreatModel(), 0, 10, seed) for seed in (0, 1))
    assert torch.equal(alone[0].weights["body.0.weight"].flatten(), weights[0]), "whatever else is attacked"
    assert not torch.equal(other[0].weights["body.0.weight"], alone[0].weights["body.0.weight"])
