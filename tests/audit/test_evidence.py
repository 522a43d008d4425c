"""What an attacker is given of a run, held against gradients and models that are computed here from the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.attack import image_attack
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.gradients.linear import training_net
from fedpriv.attacks.gradients.matching import gradient_from_labels
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.lab.explained import explained
from fedpriv.audit.record.attacker_view import cut
from fedpriv.audit.record.base import Truth
from fedpriv.audit.record.local_steps import LocalSteps
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import shared_out, single_samples
from fedpriv.errors import UsageError
from fedpriv.models.registry import build_model
from fedpriv.simulation import run
from tests.audit.truth import gradients_of
from tests.marks import quick_first
from tests.simulation.small import SILENT, config, play

ONE_STEP = {"train.batch_size": 500, "train.momentum": 0.0, "train.weight_decay": 0.0, "train.rounds": 1}


def evidence(folder: Path, method: str, **overrides: object) -> RunRecord:
    play(folder, method, **overrides)
    return RunRecord(folder)


def test_the_client_s_mode_is_that_of_its_messages(tmp_path: Path) -> None:
    """What a client with BatchNorm sent is the gradient by its batch; the running statistics give another."""
    net = {"data.limit": 60, "model.name": "resnet9_narrow", "model.projection": None, "train.participation": 0.1}
    found = evidence(tmp_path / "run", "fedavg", **ONE_STEP, **net)
    message = found.message(*found.messages()[0])
    observation, truth = found.attacker.observation(message, ThreatModel()), found.truth(message.client)
    images, mean, std = truth.images, *(torch.tensor(value).view(-1, 1, 1) for value in (observation.mean, observation.std))
    seen = as_gradient(observation).shared

    def gradient(seen_by: Observation) -> dict[str, Tensor]:
        victim, weights = training_net(seen_by)
        targets = F.one_hot(truth.labels, observation.classes).float()
        return gradient_from_labels(victim, weights, list(seen), (images - mean) / std, targets)

    by_batch, by_running = (gradient(found.attacker.observation(message, ThreatModel(), training=mode)) for mode in (True, False))
    for name, tensor in seen.items():
        torch.testing.assert_close(by_batch[name], tensor, rtol=1e-3, atol=1e-4)
    away = [float((by_running[name] - tensor).norm() / tensor.norm()) for name, tensor in seen.items()]
    assert max(away) > 0.5


def test_tensors_that_step_without_momentum_are_known(tmp_path: Path) -> None:
    """FedPVR's last layers do."""
    several = {"train.local_epochs": 3, "train.momentum": 0.5, "data.limit": 60, "model.projection": None}
    found = evidence(tmp_path / "run", "fedpvr", **{**ONE_STEP, **several})
    message = found.message(*found.messages()[0])
    observation, truth, weights = (
        found.attacker.observation(message, ThreatModel()),
        found.truth(message.client),
        found.attacker.started(replace(message, first_update=True)),
    )
    assert observation.schedule is not None and weights is not None
    assert observation.schedule.no_momentum == {
        f"{layer}.{what}" for layer in ("body.encoder_fc2", "top.head") for what in ("weight", "bias")
    }
    agreement = explained(observation, weights, truth.images, truth.labels)
    assert agreement is not None and agreement.cosine > 0.9999 and agreement.factor < 1.01
    unaware = replace(observation, schedule=replace(observation.schedule, no_momentum=frozenset()))
    other = explained(unaware, weights, truth.images, truth.labels)
    assert other is not None and other.cosine < 0.995 and other.factor > 1.3


def test_batches_that_are_too_small_are_no_steps(tmp_path: Path) -> None:
    """Two epochs of 50 samples in batches of 7, of which the eighth has one."""
    found = evidence(tmp_path / "run", "fedavg", **{"train.rounds": 1, "train.batch_size": 7, "train.local_epochs": 2})
    for least, steps in ((1, 16), (2, 14)):
        train = found.config.train.model_copy(update={"min_batch": least})
        of_many, of_one = (LocalSteps(train, found.federation.method, 1, ["head.weight"], n, 1) for n in (50, 1))
        schedule = of_many.schedule(frozenset())
        assert schedule is not None and schedule.steps == steps
        assert (of_one.without_gradient() is None) == (least == 2), "no step at all"


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_one_step_is_the_gradient_of_the_truth(tmp_path: Path, method: str) -> None:
    own = {"method.head_epochs": 0} if method == "fedrep" else {}
    found = evidence(tmp_path / "run", method, **ONE_STEP, **own)
    round, client = found.messages()[0]
    message, truth = found.message(round, client), found.truth(client)
    observation = found.attacker.observation(message, ThreatModel())
    assert observation.num_examples == len(truth.labels) and observation.schedule is not None and observation.schedule.steps == 1
    expected = gradients_of(found, message, truth)
    seen = as_gradient(observation).shared
    assert seen.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("augment", ["crop_flip", "flip_jitter_rotate"])
def test_views_are_what_the_client_trained_on(tmp_path: Path, augment: str) -> None:
    """The gradient of the views is what was sent, and that of the images is not."""
    found = evidence(tmp_path / "run", "fedavg", **ONE_STEP, **{"data.augment": augment})
    round, client = found.messages()[1]
    message, truth = found.message(round, client), found.truth(client)
    views = found.views(round, client, truth.images)
    assert views is not None and views.shape == (len(truth.labels), 2, *truth.images.shape[1:])
    assert torch.equal(views[:, 0], truth.images) and not torch.equal(views[:, 1], truth.images)
    seen = as_gradient(found.attacker.observation(message, ThreatModel())).shared
    for name, gradient in gradients_of(found, message, Truth(views[:, 1], truth.labels)).items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-3, atol=1e-5)
    plain = gradients_of(found, message, truth)
    assert any((seen[name] - gradient).norm() > 0.1 * gradient.norm() for name, gradient in plain.items())
    assert evidence(tmp_path / "plain", "fedavg", **ONE_STEP).views(round, client, truth.images) is None


def test_hidden_layers_are_absent_and_known_only_where_the_threat_model_says_so(tmp_path: Path) -> None:
    found = evidence(tmp_path / "run", "mpfedcon")
    message = found.message(*found.messages()[0])
    unknown, initial = (found.attacker.observation(message, ThreatModel(top=top)) for top in ("unknown", "initial"))
    hidden = {f"top.{name}" for name, _ in unknown.net.top.named_parameters()}
    assert hidden and not hidden & unknown.shared.keys() and not hidden & unknown.weights.keys()
    assert hidden <= initial.weights.keys() and not hidden & initial.shared.keys()
    assert {"statistic.centers", "statistic.classes"} <= unknown.statistics.keys()
    with pytest.raises(UsageError, match="are never sent"):
        found.attacker.observation(message, ThreatModel(top="current"))


def test_who_does_not_know_the_number_of_samples_does_not_know_the_steps(tmp_path: Path) -> None:
    found = evidence(tmp_path / "run", "fedavg")
    observation = found.attacker.observation(found.message(*found.messages()[0]), ThreatModel(num_examples=False))
    assert observation.num_examples is None and observation.schedule is None


def test_masked_and_compressed_messages(tmp_path: Path) -> None:
    transforms = [{"name": "mask", "last": 2}, {"name": "quantise", "bits": 8}]
    found = evidence(tmp_path / "run", "fedavg", **{"wire.transforms": transforms})
    message = found.message(*found.messages()[0])
    observation = found.attacker.observation(message, ThreatModel(top="initial"))
    hidden = [name for name, _ in observation.net.top.named_parameters()]
    assert sum(name.endswith("weight") for name in hidden) == 2
    assert not any(name.startswith("top.") for name in observation.shared)
    assert {f"top.{name}" for name in hidden} <= observation.weights.keys()  # the server sends them in every round
    assert all(change.abs().max() > 0 for change in observation.shared.values())


@pytest.mark.parametrize("method", quick_first(["fedavg", "mpfedcon"]))
def test_a_client_with_one_image_sends_its_gradient_through_the_runs_defences(tmp_path: Path, method: str) -> None:
    found = evidence(tmp_path / "plain", method)
    round, client = found.messages()[0]
    played = single_samples(found, round, client, 2)
    real = found.attacker.observation(found.message(round, client), ThreatModel())
    for message, image in zip(played, found.truth(client).images, strict=False):
        observation = found.attacker.observation(message, ThreatModel())
        assert observation.num_examples == 1 and observation.shared.keys() == real.shared.keys()
        made = image_attack("analytic")().run([observation]).images
        torch.testing.assert_close(made[0], image, rtol=0, atol=1e-3)
    noise = {"wire.transforms": [{"name": "gaussian", "variance": 1e-2}]}
    defended = evidence(tmp_path / "noisy", method, **noise)
    (message,) = single_samples(defended, *defended.messages()[0], 1)
    made = image_attack("analytic")().run([defended.attacker.observation(message, ThreatModel())]).images
    assert float((made[0] - defended.truth(message.client).images[0]).square().mean()) > 1e-2


@pytest.mark.parametrize("what", ["partition", "data"])
def test_other_data_are_refused(tmp_path: Path, what: str) -> None:
    found = evidence(tmp_path / "run", "fedavg", **{"train.rounds": 1})
    found.folder.update_facts(**{f"{what}_hash": "0" * 64})
    with pytest.raises(UsageError, match=rf"the data are not those the run began with \({what} [0-9a-f]{{12}}, then 0{{12}}\)"):
        RunRecord(tmp_path / "run").truth(0)


def test_what_was_not_kept_is_said(tmp_path: Path) -> None:
    found = evidence(tmp_path / "run", "fedavg")
    kept = found.messages()
    with pytest.raises(UsageError, match="no payload of round 9 was kept, only of rounds 1, 2, 3"):
        found.messages(round=9)
    with pytest.raises(UsageError, match="no payload of client 77"):
        found.messages(client=77)
    assert found.messages(*kept[0]) == [kept[0]]
    run.start(config("fedavg", **{"wire.keep_payloads": "none", "run_dir": str(tmp_path / "none")}), tmp_path, *SILENT)
    with pytest.raises(UsageError, match="--keep-payloads"):
        RunRecord(tmp_path / "none")


@pytest.mark.parametrize(
    ("model", "shape", "sent", "top"),
    [
        ("cnn10", (3, 32, 32), ("encoder",), ["projector_fc1", "projector_relu1", "projector_fc2", "head"]),
        ("cnn10", (3, 32, 32), ("encoder", "projector", "head"), ["head"]),
        ("lenet_sigmoid", (3, 32, 32), ("encoder.conv1",), ["encoder_conv2", "encoder_sigmoid2", "encoder_conv3"]),
        ("resnet18", (3, 32, 32), ("encoder",), ["projector_fc1"]),
    ],
)
def test_a_net_is_cut_where_sharing_ends(model: str, shape: tuple[int, ...], sent: tuple[str, ...], top: list[str]) -> None:
    net = build_model(model, shape, 10).eval()
    victim = cut(net, [name for name, _ in net.named_parameters() if name.startswith(sent)])
    assert [name for name, _ in victim.net.top.named_children()][: len(top)] == top
    images = torch.rand(2, *shape)
    assert bool(victim.net.eval()(images).isnan().all()), "an attacker is granted no parameter by the net itself"
    victim.net.load_state_dict({victim.names[name]: tensor for name, tensor in net.state_dict().items() if name in victim.names})
    torch.testing.assert_close(victim.net(images), net(images).logits, rtol=0, atol=0)
    assert {victim.names[name] for name, _ in net.named_parameters()} == {name for name, _ in victim.net.named_parameters()}


def test_a_projector_beside_the_head_is_not_on_the_path_to_the_logits() -> None:
    net = build_model("mlp2", (1, 8, 8), 10, head_on="features").eval()
    victim = cut(net, net.state_dict())
    assert not any("projector" in name for name in victim.names)
    victim.net.load_state_dict({victim.names[name]: tensor for name, tensor in net.state_dict().items() if name in victim.names})
    images = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(victim.net.eval()(images), net(images).logits, rtol=0, atol=0)


def test_who_holds_few_images_is_joined_by_others(tmp_path: Path) -> None:
    """Enough single images for a verdict, each with the right truth: this client's first, then the others'."""
    play(tmp_path / "run", "fedavg", **{"train.rounds": 1, "data.limit": 40})
    found = RunRecord(tmp_path / "run")
    round, client = found.messages()[0]
    own = len(found.labels(client))
    alone = shared_out(found, client, own + 2)
    assert alone[:own] == [(client, at) for at in range(own)] and client not in {owner for owner, _ in alone[own:]}
    played = single_samples(found, round, client, own + 2)
    assert len(played) == own + 2
    owner, at = alone[-1]
    seen = found.attacker.observation(played[-1], ThreatModel())
    made = image_attack("analytic")().run([seen]).images[0]
    torch.testing.assert_close(made, found.truth(owner).images[at], rtol=0, atol=2e-3)
    assert len(shared_out(found, client, 10**6)) == sum(len(found.labels(c)) for c in range(found.config.data.clients))


def test_a_client_with_one_image_that_takes_no_step_is_no_easiest_case(tmp_path: Path) -> None:
    found = evidence(tmp_path / "run", "fedavg", **{"train.min_batch": 2})
    with pytest.raises(UsageError, match=r"takes no step, as train.min_batch is 2"):
        single_samples(found, *found.messages()[0], 1)
