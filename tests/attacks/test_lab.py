"""The lab: who attacks, what they know, and that nobody sees the truth before the attack is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.dlg import Dlg
from attacks.images import default_images
from attacks.lab import _MUST_NOT_INVENT, _MUST_WORK, Attacker, attackers, attempt, observations, run_controls
from attacks.observation import Observation, ThreatModel
from attacks.options import defaults_of, like
from attacks.reconstruction import Reconstruction
from attacks.registry import image_attack, image_attacks

SHORT = {"steps": 1, "adam_steps": 2, "restarts": 0, "iterations": 1, "adam": 2, "lbfgs": 1}


class Sealed(Tensor):
    """The truth: whoever computes with it before it is opened is caught."""

    opened = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert Sealed.opened, f"{func} touched the truth"
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Watched:
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

    for name in ("attacks.images.default_images", "attacks.images.load_sample_images", "attacks.controls.default_images"):
        monkeypatch.setattr(name, caught)
    monkeypatch.setattr("fedpriv.data.sources.load_dataset", caught)


def truth_and_messages(threat: ThreatModel, masked: int = 0) -> tuple[Tensor, Tensor, list[Observation]]:
    images, labels = default_images(2)
    seen = observations(images, labels, threat, masked, 10, seed=0)
    Sealed.opened = False
    return images.as_subclass(Sealed), labels.as_subclass(Sealed), seen


def short(name: str) -> Any:
    attack = image_attack(name)()
    return replace(attack, **{option: SHORT[option] for option in defaults_of(attack).keys() & SHORT.keys()})


@pytest.mark.parametrize("masked", [0, 1])
@pytest.mark.parametrize("name", sorted(image_attacks()))
def test_an_attack_gets_the_messages_and_nothing_else(name: str, masked: int, request: pytest.FixtureRequest) -> None:
    threat = ThreatModel(top="initial" if name == "known-head" else "unknown")
    images, labels, seen = truth_and_messages(threat, masked)
    request.getfixturevalue("no_data")
    made = attempt(Attacker(Watched(short(name)), threat), seen, images, labels, 0)
    assert Sealed.opened
    assert made.inapplicable or (made.scores is not None and len(made.scores.mse) == 2)


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
    for one in observations(images, labels, ThreatModel(), masked, 10, seed=0):
        kept = [*one.shared.values(), *one.weights.values(), *one.net.state_dict().values(), *one.statistics.values()]
        own = {images.untyped_storage().data_ptr(), labels.untyped_storage().data_ptr()}
        assert not own & {tensor.untyped_storage().data_ptr() for tensor in kept}
        assert one.labels is None
        hidden = [name for name in (*one.shared, *one.weights) if name.startswith("top.")]
        assert bool(hidden) == (masked == 0), "what is masked is absent"


def test_images_of_any_size_can_be_attacked() -> None:
    images, labels = torch.rand(2, 1, 8, 12), torch.tensor([0, 2])
    seen = observations(images, labels, ThreatModel(), 0, 3, seed=0)
    made = attempt(Attacker(short("idlg"), ThreatModel()), seen, images, labels, 0)
    assert made.images is not None and made.images.shape == images.shape


def test_without_a_mask_an_attack_stands_for_itself() -> None:
    (only,) = attackers("dlg", 0, {"steps": 7})
    assert only.attack == Dlg(steps=7) and only.threat == ThreatModel()
    (naive,) = attackers("random-head", 2, {"assumed": 1})
    assert naive.attack.assumed == 1


def test_with_a_mask_every_attacker_that_can_be_tried_is() -> None:
    naive, known, joint, free = attackers("idlg-published", 2, {"steps": 7, "closed_form": False})
    assert [one.name for one in (naive, known, joint, free)] == ["random-head", "known-head", "joint-head", "head-free"]
    assert naive.attack.assumed == 2 and naive.attack.published
    assert not attackers("idlg", 2)[0].attack.published
    assert {one.attack.steps for one in (naive, known, joint, free)} == {7} and not free.attack.closed_form
    assert known.threat.top == "initial" and free.threat.top == "unknown"


def test_every_attack_has_controls() -> None:
    """A positive one where it must work somewhere, else the negative one alone; another package's attack has none."""
    assert _MUST_WORK.keys() | _MUST_NOT_INVENT.keys() == image_attacks().keys()
    positive, negative = run_controls(Attacker(image_attack("analytic")(), ThreatModel()), 0)
    assert positive.passed and negative.passed
    (negative,) = run_controls(Attacker(short("random-head"), ThreatModel()), 0)
    assert negative.name == "negative" and negative.passed


def test_a_control_fails_where_the_attack_was_cut_short() -> None:
    positive, negative = run_controls(Attacker(short("idlg"), ThreatModel()), 0)
    assert (positive.name, positive.passed, negative.name, negative.passed) == ("positive", False, "negative", True)


RIGHT = [(1, 3, 3), (1.0, 3, 3.0), (True, False, False), (None, 3, 3), (None, None, None), ("a", "b", "b")]


@pytest.mark.parametrize(("default", "value", "made"), [*RIGHT, ((1, 0.5), [2, 1], (2, 1.0))])
def test_options_of_the_right_kind(default: object, value: object, made: object) -> None:
    found = like(default, value, "it")
    assert found == made and type(found) is type(made)


@pytest.mark.parametrize(
    ("default", "value"),
    [(1, True), (1, 2.0), (1, None), (1, -1), (1.0, float("inf")), (1.0, "x"), (True, 1), (None, "x"), ("a", 1), ((1, 2), [1])],
)
def test_options_of_the_wrong_kind(default: object, value: object) -> None:
    with pytest.raises(TypeError, match="it must be"):
        like(default, value, "it")


def test_every_image_has_a_net_of_its_own() -> None:
    images, labels = default_images(3)
    seen = observations(images, labels, ThreatModel(), 0, 10, seed=0)
    weights = torch.stack([one.weights["body.0.weight"].flatten() for one in seen])
    assert len(weights.unique(dim=0)) == 3
    alone, other = (observations(images[:1], labels[:1], ThreatModel(), 0, 10, seed) for seed in (0, 1))
    assert torch.equal(alone[0].weights["body.0.weight"].flatten(), weights[0]), "whatever else is attacked"
    assert not torch.equal(other[0].weights["body.0.weight"], alone[0].weights["body.0.weight"])
