"""The lab: the attackers, what they know, and that none sees the truth before the attack is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from fedpriv.attacks.attack import ImageAttack, image_attacks
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.image.dlg import Dlg
from fedpriv.attacks.lab.attempts import attackers, attempt, observations, suited
from fedpriv.attacks.lab.images import default_images, sample_photographs
from fedpriv.attacks.lab.nets import observe, reference_victim
from fedpriv.attacks.lab.trial import Attacker
from tests.attacks.tried import Foreign, short
from tests.marks import quick_first


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


def test_every_image_has_a_net_of_its_own() -> None:
    images, labels = default_images(3)
    seen = observations(images, labels, ThreatModel(), 0, 10, seed=0)
    weights = torch.stack([message.weights["body.0.weight"].flatten() for message in seen])
    assert len(weights.unique(dim=0)) == 3
    alone, other = (observations(images[:1], labels[:1], ThreatModel(), 0, 10, seed) for seed in (0, 1))
    assert torch.equal(alone[0].weights["body.0.weight"].flatten(), weights[0]), "whatever else is attacked"
    assert not torch.equal(other[0].weights["body.0.weight"], alone[0].weights["body.0.weight"])
