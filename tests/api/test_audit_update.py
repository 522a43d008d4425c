"""One message of any training loop gets the audit's answer and page."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedpriv
from fedpriv.attacks.lab.attempts import suited
from fedpriv.attacks.lab.images import default_images
from fedpriv.audit.images.target import Target, message
from fedpriv.audit.judge.images import ran
from fedpriv.audit.results.images import ImageFigures, ImageOutcome
from fedpriv.defenses import build_transforms
from fedpriv.noise_source import SeededNoise
from fedpriv.wire import TransformContext, seal

IMAGES, LABELS = default_images(3, side=8)


@pytest.fixture(autouse=True)
def closed_forms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks that optimise, and their controls, take minutes."""
    monkeypatch.setattr(
        "fedpriv.audit.images.reconstructions.suited",
        lambda masked: [one for one in suited(masked) if not one.attack.optimises],
    )


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))


def gradient_of(net: nn.Module, count: int = 1) -> dict[str, Tensor]:
    loss = F.cross_entropy(net(IMAGES[:count]), LABELS[:count])
    return dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))


def audited(net: nn.Module, update: Any, count: int = 1, **given: Any) -> fedpriv.Report:
    return fedpriv.audit_update(net, update, (IMAGES[:count], LABELS[:count]), **given)


def by(report: fedpriv.Report, attacker: str) -> tuple[ImageOutcome, ImageFigures]:
    (target,) = report.runs[0].images
    return next((one, figures) for one, figures in ran(target) if one.attack == attacker)


def hits(report: fedpriv.Report, attacker: str) -> int:
    return by(report, attacker)[1].success["0.01"].successes


def test_a_gradient_that_gives_its_image_away(net: nn.Module) -> None:
    report = audited(net, gradient_of(net), name="from my loop")
    assert report.answer == "Samples were recovered" and hits(report, "analytic") == 1
    (labels,) = report.runs[0].labels
    assert labels.exact and labels.inferred == tuple(LABELS[:1].tolist())
    assert {one.attacker for one in report.audit.controls} >= {"analytic"}
    page = report.html()
    assert "Privacy audit of one update" in page and "from my loop" in page and "data:image/png" in page
    assert "federated run" not in page.split("<main>")[0] and "<h3>Cost</h3>" not in page and "### Cost" not in report.markdown()
    assert report.met("recovered>0") is not None


def test_what_needs_a_run_is_listed_as_not_tried(net: nn.Module) -> None:
    report = audited(net, gradient_of(net), budget=1e-6)
    said = " ".join(report.runs[0].concluded.not_tried)
    assert "membership (it needs a run" in said and "label shadow (it needs a run" in said and "the audit's budget" in said
    assert not any("no differential privacy" in sentence for sentence in report.verdict)


def test_noise_gives_nothing_away(net: nn.Module) -> None:
    draw = torch.Generator().manual_seed(1)
    noise = {name: torch.randn(tensor.shape, generator=draw) for name, tensor in gradient_of(net).items()}
    assert hits(audited(net, noise), "analytic") == 0


@pytest.mark.slow
def test_a_net_whose_neurons_are_active_for_every_image_hides_them_without_a_defence(net: nn.Module) -> None:
    """Closed forms pass their controls, whose nets have neurons for single images, and fail here on any message."""
    with torch.no_grad():
        net.get_submodule("1").bias.fill_(5.0)
    images, labels = default_images(10, side=8)
    loss = F.cross_entropy(net(images), labels)
    gradient = torch.autograd.grad(loss, list(net.parameters()))
    report = fedpriv.audit_update(net, gradient, (images, labels))
    for name in ("analytic", "spear"):
        outcome, _ = by(report, name)
        assert hits(report, name) == 0 and not outcome.status.is_evidence
        assert "from undefended messages of this net" in outcome.status.why
    assert report.answer == "Leakage not known"


@pytest.mark.parametrize("training", [True, False])
def test_behind_dropout_a_failure_is_no_evidence(training: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)).train(training)
    noisy = {name: tensor + torch.randn_like(tensor) for name, tensor in gradient_of(net).items()}
    found, _ = by(audited(net, noisy, transforms=[{"name": "gaussian", "variance": 1.0}]), "analytic")
    assert found.status.is_evidence == (not training) and net.training == training
    assert training == ("dropout of 0.5" in found.status.why)


@pytest.mark.slow
def test_a_change_new_weights_and_payloads_are_the_same_message(net: nn.Module) -> None:
    gradient = gradient_of(net, 2)
    change = {name: -0.1 * tensor for name, tensor in gradient.items()}
    weights = {name: parameter.detach() + change[name] for name, parameter in net.named_parameters()}
    payload = fedpriv.Payload(weights, round=1, client=0, num_examples=2)
    updates = [change, list(change.values()), payload, seal(payload), fedpriv.Payload(change, round=1, client=0, kind="delta")]
    found = [by(audited(net, update, 2, lr=0.1), "analytic")[1].mse_median for update in updates]
    assert found == pytest.approx([found[0]] * len(updates), rel=1e-2)
    as_gradient = fedpriv.Payload(gradient, round=1, client=0, kind="gradient")
    assert by(audited(net, as_gradient, 2), "analytic")[1].mse_median == pytest.approx(found[0], rel=1e-2)


def test_a_hidden_head(net: nn.Module) -> None:
    gradient = {name: tensor for name, tensor in gradient_of(net).items() if not name.startswith("3.")}
    report = audited(net, gradient)
    assert report.runs[0].labels[0].rule is None
    assert [one.name for one in report.runs[0].wire.tensors if not one.up] == ["3.weight", "3.bias"]
    assert hits(report, "analytic") == 1


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"update": {"4.weight": torch.ones(1)}}, "the update cannot be audited: the net has no parameter '4.weight'"),
        ({"data": (IMAGES[:1] * 2, LABELS[:1])}, r"images \(n, C, H, W\) in \[0, 1\]"),
        ({"data": (IMAGES[:2], LABELS[:1])}, "at least one"),
        ({"data": (IMAGES[:1] * math.nan, LABELS[:1])}, r"images \(n, C, H, W\) in \[0, 1\]"),
        ({"data": (IMAGES[:1], LABELS[:1].float())}, "integer labels"),
        ({"data": (IMAGES[:1], LABELS[:1, None])}, "integer labels"),
        ({"data": (IMAGES[:1], LABELS[:1] + 99)}, "of 10 classes from 0"),
        ({"data": (IMAGES[:1], LABELS[:1] * 0 - 1)}, "of 10 classes from 0"),
        ({"update": {"3.bias": torch.full((10,), math.inf)}}, r"3\.bias is not finite"),
        ({"budget": "2m"}, "budget = '2m': more than 0 s, a number of seconds"),
        ({"lr": 0.0}, r"lr = 0\.0: that cannot be"),
        ({"lr": -1.0}, r"lr = -1\.0: that cannot be"),
        ({"lr": 0.1, "steps": 0}, "steps = 0: that cannot be"),
        ({"lr": 0.1, "batch_size": -1}, "batch_size = -1: that cannot be"),
        ({"lr": 0.1, "momentum": 2.0}, r"momentum = 2\.0: that cannot be"),
        ({"std": (0.0,)}, "std = .*: that cannot be"),
        ({"mean": (math.inf,)}, "mean = .*: that cannot be"),
        ({"std": (0.5, 0.5)}, "std has 2 numbers, and an image 3 channels"),
        ({"lr": 0.1, "weight_decay_bias": -1.0}, r"weight_decay_bias = -1\.0: that cannot be"),
        ({"std": (math.nan,)}, "std = .*: that cannot be"),
        ({"update": fedpriv.Payload({"3.bias": torch.zeros(10)}, round=1, kind="delta")}, "give the client's lr"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(192, 10), nn.Softmax(1))}, "something comes after it"),
    ],
)
def test_what_does_not_fit(net: nn.Module, changed: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"model": net, "update": gradient_of(net), "data": (IMAGES[:1], LABELS[:1]), **changed}
    with pytest.raises(fedpriv.UsageError, match=why):
        fedpriv.audit_update(**given)


def test_a_net_that_keeps_what_it_computed(net: nn.Module) -> None:
    """As after the pass that gave the update; its activations have a history, which torch does not copy."""
    net.get_submodule("1").register_forward_hook(lambda module, args, output: setattr(module, "seen", output))
    assert hits(audited(net, gradient_of(net)), "analytic") == 1


def through(update: fedpriv.Payload, **transform: Any) -> fedpriv.Payload:
    (made,) = build_transforms([transform])
    return made(update, TransformContext({}, tuple(update.tensors), SeededNoise(torch.Generator().manual_seed(3)), ("1", "3")))


def test_noise_is_known_where_it_is_described_and_no_evidence_where_it_is_not(net: nn.Module) -> None:
    gradient = gradient_of(net)
    plain = fedpriv.Payload(gradient, round=1, client=0, num_examples=1, kind="gradient")
    noise = {"name": "gaussian", "variance": 0.5 * float(gradient["1.bias"].square().mean())}
    unaware, aware = audited(net, through(plain, **noise)), audited(net, through(plain, **noise), transforms=[noise])
    blind, _ = by(unaware, "analytic")
    assert not blind.status.is_evidence and "whose effect attacks do not know" in blind.status.why
    assert hits(aware, "analytic") == 1 > hits(unaware, "analytic")
    assert unaware.met("recovered>0") is not None, "not known"


def test_steps_that_do_not_give_the_update_are_no_evidence(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further term in the loss, which no attack simulates. The attacks compute with one thread."""
    targets = list[Target]()
    before = torch.get_num_threads()

    def noted(*given: Any) -> Target:
        assert torch.get_num_threads() == 1
        targets.append(message(*given))
        return targets[-1]

    monkeypatch.setattr("fedpriv.audit.images.reconstructions.message", noted)
    gradient = gradient_of(net)
    norm = float(torch.cat([tensor.flatten() for tensor in gradient.values()]).norm())
    more = {name: tensor + norm * torch.randn_like(tensor) / tensor.numel() ** 0.5 for name, tensor in gradient.items()}
    torch.set_num_threads(2)
    try:
        audited(net, more)
        audited(net, gradient)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    doubt, none = (one.doubt() for one in targets)
    assert none is None and "do not reproduce the message (cosine 0." in (doubt or "")


def test_a_message_of_other_images_is_no_evidence_even_of_attacks_that_simulate_nothing(net: nn.Module) -> None:
    loss = F.cross_entropy(net(IMAGES[1:2]), LABELS[1:2])
    others = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))
    report = audited(net, others)
    found, _ = by(report, "analytic")
    assert hits(report, "analytic") == 0 and not found.status.is_evidence
    assert report.answer == "Leakage not known" and report.met("recovered>0.05") is not None, "not known"


def test_statistics_of_a_payload_are_read_and_attacked(net: nn.Module) -> None:
    """The head is not sent and the rest is noise; the list of classes and a gradient beside it are as they were computed."""
    gradient, draw = gradient_of(net), torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(tensor.shape, generator=draw) for name, tensor in gradient.items() if name.startswith("1.")}
    tensors |= {f"statistic.gradient/{name}": tensor for name, tensor in gradient.items()}
    tensors |= {
        "statistic.classes": LABELS[:1],
        "statistic.centers": torch.ones(1, 4),
        "statistic.variate/1.bias": torch.ones(64),
    }
    report = audited(net, fedpriv.Payload(tensors, round=1, client=0, num_examples=1, kind="gradient"))
    (run,) = report.runs
    assert report.answer == "Samples were recovered" and hits(report, "analytic on gradient") == 1
    (labels,) = run.labels
    assert labels.exact and labels.stated and labels.rule == "the message names its classes in clear"
    assert {one.what for one in run.statistics} == {"gradient", "classes", "centers", "variate"}
    assert run.not_run["class centres"].text.startswith("it needs a run")
    assert run.not_run["statistics"].text.startswith("variate: it is a change since the client's last local update")
