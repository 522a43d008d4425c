"""The simulation that attacks compare with a message, held against the truth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.gradients.multistep import response
from fedpriv.attacks.lab.explained import LEAST, MOST, Agreement, as_one_step, explained, simulated
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.nets import observe, reference_victim
from fedpriv.attacks.lab.setting import Setting
from tests.attacks.sent import clipped, each, noisy, of_unknown_rate

IMAGES, LABELS = default_images(4, side=8)


def sent(batch_norm: bool = False) -> Observation:
    return observe(reference_victim(0, height=8, width=8, batch_norm=batch_norm), IMAGES, LABELS)


def agreement(seen: Observation) -> Agreement:
    found = explained(seen, seen.weights, IMAGES, LABELS)
    assert found is not None
    return found


def cosine(seen: Observation) -> float:
    return agreement(seen).cosine


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_gradient_of_the_truth_is_explained(batch_norm: bool) -> None:
    assert cosine(sent(batch_norm)) == pytest.approx(1, abs=1e-6)


def test_local_steps_are_explained() -> None:
    setting = Setting(net="perceptron", steps=3, per_message=4, side=8)
    (seen,) = setting.observations(IMAGES, LABELS, 0)
    assert seen.kind == "change" and cosine(seen) == pytest.approx(1, abs=1e-6)
    assert LEAST < cosine(replace(seen, schedule=None)) < 1, "read as one step"


def test_a_message_without_a_step_is_not_explained() -> None:
    assert agreement(each(sent(), torch.zeros_like)).doubt is not None


def test_weight_decay_explains_nothing() -> None:
    """It is in the message and in the simulation, and alone would make them alike."""
    (seen,) = Setting(net="perceptron", steps=3, per_message=4, side=8).observations(IMAGES, LABELS, 0)
    assert seen.schedule is not None
    decaying, draw = replace(seen.schedule, weight_decay=1.0), torch.Generator().manual_seed(0)
    shrink = response(decaying, 1.0).shrink
    other = {name: torch.randn(tensor.shape, generator=draw) * tensor.std() for name, tensor in seen.shared.items()}
    more = {name: tensor + shrink * seen.weights[name] if tensor.ndim > 1 else tensor for name, tensor in other.items()}
    assert abs(cosine(replace(seen, shared=more, schedule=decaying))) < 0.2


def test_what_the_simulation_lacks_is_seen() -> None:
    seen = sent()
    norm = torch.cat([tensor.flatten() for tensor in seen.shared.values()]).norm()
    term = torch.randn(seen.shared["body.0.weight"].shape, generator=torch.Generator().manual_seed(0))
    more = {**seen.shared, "body.0.weight": seen.shared["body.0.weight"] + 2 * norm * term / term.norm()}
    assert cosine(replace(seen, shared=more)) < 0.6
    assert cosine(replace(sent(batch_norm=True), net=sent(batch_norm=True).net.eval())) < LEAST, "in another mode"


def test_what_transforms_do_is_no_doubt() -> None:
    seen = sent()
    scaled = {name: 0.01 * tensor for name, tensor in seen.shared.items()}
    assert cosine(replace(seen, shared=scaled, altered=Altered(rescaled=True))) == pytest.approx(1, abs=1e-6)
    kept = {name: tensor.abs() >= tensor.abs().median() for name, tensor in seen.shared.items()}
    pruned = {name: tensor * kept[name] for name, tensor in seen.shared.items()}
    assert cosine(replace(seen, shared=pruned, altered=Altered(kept=kept))) == pytest.approx(1, abs=1e-6)
    norm = float(torch.cat([tensor.flatten() for tensor in seen.shared.values()]).norm())
    assert cosine(noisy(seen, 0.04 * norm)) == pytest.approx(1, abs=0.1), "most of the message is noise"
    small = replace(seen, shared={name: 0.1 * tensor for name, tensor in seen.shared.items()})
    clipped = noisy(small, 0.004 * norm)
    assert cosine(replace(clipped, altered=replace(clipped.altered, rescaled=True))) == pytest.approx(1, abs=0.1)
    loud = noisy(small, 0.04 * norm)
    assert explained(replace(loud, altered=replace(loud.altered, rescaled=True)), seen.weights, IMAGES, LABELS) is None
    assert explained(noisy(seen, 0.1 * norm), seen.weights, IMAGES, LABELS) is None


def test_a_tensor_of_another_length_is_seen() -> None:
    """A layer that is trained without momentum, or at a rate of its own, hardly moves the cosine."""
    (seen,) = Setting(net="perceptron", steps=3, per_message=4, side=8).observations(IMAGES, LABELS, 0)
    assert agreement(seen).factor == pytest.approx(1, abs=1e-5) and agreement(seen).doubt is None
    name = max(seen.shared, key=lambda one: float(seen.shared[one].norm()))
    other = replace(seen, shared={**seen.shared, name: 1.7 * seen.shared[name]})
    found = agreement(other)
    assert found.cosine > LEAST and found.factor > MOST and found.factor == pytest.approx(1.7, abs=1e-4)
    assert found.doubt is not None and "length differs by a factor of 1.7, at most 1.25 is allowed" in found.doubt
    assert 1.1 < agreement(clipped(other, 0.01)).factor < 1.7, "beside a common one"


def test_a_rate_that_is_not_known_is_no_doubt() -> None:
    seen = sent()
    for lr in (0.01, 1.0, 30.0):
        change = of_unknown_rate(seen, lr)
        assert agreement(change).doubt is None
        step = as_one_step(change)
        assert step is not None
        read_as_one = explained(step, seen.weights, IMAGES, LABELS, one_step=True)
        assert read_as_one is not None and read_as_one.doubt is None
    name = max(seen.shared, key=lambda one: float(seen.shared[one].norm()))
    other = as_one_step(of_unknown_rate(replace(seen, shared={**seen.shared, name: 3 * seen.shared[name]}), 0.01))
    assert other is not None and agreement(other).doubt is not None, "beside the rate, which is that of all tensors"


def test_noise_is_held_against_a_message_of_an_unknown_rate() -> None:
    seen = sent()
    norm = float(torch.cat([tensor.flatten() for tensor in seen.shared.values()]).norm())
    assert cosine(of_unknown_rate(noisy(seen, 0.04 * norm), 0.01)) == pytest.approx(cosine(noisy(seen, 0.04 * norm)), abs=0.1)
    loud = of_unknown_rate(noisy(seen, 0.1 * norm), 0.01)
    assert explained(loud, seen.weights, IMAGES, LABELS) is None, "most of it is noise"


def test_hardly_any_cosine_of_a_noisy_clipped_message_is_a_doubt() -> None:
    """What is left of its length without the noise's is far from the signal's. With less noise, another message is told."""
    seen = sent()
    norm = float(torch.cat([tensor.flatten() for tensor in seen.shared.values()]).norm())
    for seed in range(20):
        found = _clipped(noisy(seen, 0.045 * norm, seed))
        assert found is None or found.doubt is None, seed
    other = each(seen, lambda tensor: tensor.flip(0))
    told = [found.doubt is not None for seed in range(20) if (found := _clipped(noisy(other, 0.01 * norm, seed))) is not None]
    assert len(told) == 20 and all(told)


def _clipped(seen: Observation) -> Agreement | None:
    return explained(replace(seen, altered=replace(seen.altered, rescaled=True)), seen.weights, IMAGES, LABELS)


def test_the_step_of_an_unknown_schedule_is_not_a_gradient() -> None:
    """A control with such steps would also pass for attacks that take a change for a gradient."""
    seen = sent()
    made = simulated(of_unknown_rate(seen, 0.01), seen.weights, IMAGES, LABELS)
    assert all(float(made[name].norm()) < 0.5 * float(tensor.norm()) for name, tensor in seen.shared.items())


def test_a_small_difference_from_an_exact_simulation_is_a_doubt() -> None:
    """A loss with weights of classes, or a correction as SCAFFOLD's, leaves the cosine at 0.98, where gradient matching fails."""
    seen, draw = sent(), torch.Generator().manual_seed(0)
    norm = torch.cat([tensor.flatten() for tensor in seen.shared.values()]).norm()
    term = torch.randn(seen.shared["top.0.weight"].shape, generator=draw)
    more = {**seen.shared, "top.0.weight": seen.shared["top.0.weight"] + 0.2 * norm * term / term.norm()}
    found = agreement(replace(seen, shared=more))
    assert found.exact and 0.97 < found.cosine < 0.99 and "0.995 needed" in str(found.doubt)
    read_as_one = explained(replace(seen, shared=more), seen.weights, IMAGES, LABELS, one_step=True)
    assert read_as_one is not None and read_as_one.doubt is None, "there, the control on the same net has as many steps"
    assert not agreement(noisy(seen, 0.01 * float(norm))).exact, "the noise is as large a difference"
    (steps,) = Setting(net="perceptron", steps=3, per_message=4, side=8).observations(IMAGES, LABELS, 0)
    (alone,) = Setting(net="perceptron", steps=3, side=8).observations(IMAGES[:1], LABELS[:1], 0)
    assert not agreement(steps).exact, "of batches, whose order is not known"
    single = explained(alone, alone.weights, IMAGES[:1], LABELS[:1])
    assert single is not None and single.exact and single.doubt is None
