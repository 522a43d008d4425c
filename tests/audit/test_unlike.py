"""Runs on whose messages a failure says little: the attacks' controls are of other messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.ops import StochasticDepth

from fedpriv.attacks.attack import image_attacks
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.lab.attempts import ImageAttempt
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.trial import Attacker, Trial
from fedpriv.attacks.scoring.scores import score
from fedpriv.audit.images.reconstructions import on_message, on_single_images
from fedpriv.audit.images.target import Target, of_messages
from fedpriv.audit.images.target import message as of_message
from fedpriv.audit.record.control_differences import control_differences, made_up, trains_otherwise
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import shared_out, single_samples
from fedpriv.audit.sentences import samples
from fedpriv.config import load_config
from fedpriv.defenses import build_transforms
from fedpriv.models.net import Net
from fedpriv.wire import Payload, TransformContext
from tests.audit.built import CUT
from tests.simulation.small import FEW_STEPS, play, settings


class Undeclared:
    """A transform of somebody else's, which says nothing of what it does."""

    def __call__(self, payload: Payload, context: TransformContext) -> Payload:
        return payload

    def __str__(self) -> str:
        return "undeclared"


class Declared(Undeclared):
    rescales = False


def reasons(
    *transforms: Any, net: nn.Module | None = None, steps: bool = True, once: bool = False, **overrides: Any
) -> tuple[str, ...]:
    return control_differences(
        load_config(None, settings("fedavg", **overrides)), net or nn.Linear(1, 1), transforms, steps, once
    )


def test_what_the_controls_do_not_have_is_named() -> None:
    built_in = build_transforms([{"name": "clip"}, {"name": "gaussian", "variance": 1e-4}, {"name": "mask", "last": 1}])
    assert reasons(*built_in, Declared()) == ()
    (augmented,) = reasons(**{"data.augment": "crop_flip"})
    assert "may have trained on several altered copies of each image (data.augment crop_flip)" in augmented
    assert reasons(once=True, **{"data.augment": "crop_flip"}) == (), "then one image is behind the one step that it was in"
    assert reasons(net=nn.Linear(1, 1).eval(), **{"data.augment": "crop_flip"}) == (), "only training augments"
    (stepped,) = reasons(**{"train.optimizer": "adam"})
    assert "the client's steps were adam's" in stepped
    (named,) = reasons(**{"train.optimizer": "rmsprop"})
    assert "the client's steps were rmsprop's" in named
    (nesterov,) = reasons(**{"train.optimizer_options": {"nesterov": True}})
    assert "the client's steps were those of SGD with nesterov" in nesterov
    assert reasons(steps=False, **{"train.optimizer": "adam"}) == (), "a gradient that was sent took no step"
    for steps in (True, False):
        (halved,) = reasons(steps=steps, **{"train.precision": "bfloat16"})
        assert halved == "the client computed in bfloat16 (train.precision), and attacks compute in float32"
    (dropped,) = reasons(net=nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.0)))
    assert "trained with dropout of 0.5, whose random masks" in dropped
    assert reasons(net=nn.Dropout(0.5).eval()) == ()
    (unknown,) = reasons(*built_in, Undeclared())
    assert unknown.startswith("undeclared does not declare what it does")


class Functional(nn.Module):
    """Dropout that is no layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


class Louder(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if self.training else x


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth = StochasticDepth(0.1, "row")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.depth(x) + x
        return out


@pytest.mark.parametrize(
    ("layer", "otherwise"),
    [
        (Functional(), True),
        (Residual(), True),
        (Louder(), True),
        (nn.Dropout(0.0), False),
        (nn.BatchNorm2d(3), False),
        (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), True),
        (nn.GroupNorm(1, 3), False),
    ],
)
def test_a_net_that_draws_or_computes_otherwise_in_training_is_told(layer: nn.Module, otherwise: bool) -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3), layer, nn.ReLU(), nn.Flatten())
    net = Net(
        encoder, nn.Identity(), None, nn.Linear(108, 5), input_shape=(1, 8, 8), feature_dim=108, projection_dim=108, classes=5
    )
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert trains_otherwise(net.train(), made_up(net.input_shape)) == otherwise
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    told = (
        reasons(net=net.train())
        if not otherwise
        else control_differences(load_config(None, settings("fedavg")), net.train(), (), steps=True, once=False, otherwise=True)
    )
    assert any("draws at random" in one for one in told) == otherwise


def test_a_run_of_such_a_net_says_so(tmp_path: Path) -> None:
    play(tmp_path / "run", "fedavg", **FEW_STEPS)
    for layers in ([], [Functional()]):
        evidence = RunRecord(tmp_path / "run")
        evidence.federation.resident.net.encoder.extend(layers)
        seen = evidence.observation(evidence.message(*evidence.messages()[0]), ThreatModel())
        assert ("draws at random" in " ".join(seen.control_differences)) == bool(layers)


AUGMENTED = {"data.augment": "crop_flip"}
ADAM = {"train.optimizer": "adam", "train.lr": 0.001}
TWICE = {**AUGMENTED, "train.local_epochs": 2}


@pytest.mark.parametrize(
    ("option", "evidence"),
    [(AUGMENTED, True), (TWICE, False), (ADAM, False), ({}, True)],
)
def test_there_a_failure_is_no_evidence(
    tmp_path: Path, option: dict[str, Any], evidence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or crops of several epochs, and Adam, would look like defences: the closed form passes its control, and finds little.

    Of one epoch it finds what clients trained on, which are crops where they augment.
    """
    alone = [Attacker(image_attacks()["analytic"](), ThreatModel())]
    monkeypatch.setattr("fedpriv.audit.images.reconstructions.suited", lambda masked: alone)
    play(tmp_path / "run", "fedavg", **{"train.rounds": 1, **option})
    of_run = RunRecord(tmp_path / "run")
    round, client = of_run.messages()[0]
    found = [
        on_message(of_run, round, client, 0, lambda text: None),
        on_single_images(of_run, round, client, 0, lambda text: None, 6),
    ]
    for attacked in found:
        (attempt,) = attacked.attempts
        assert attempt.recovered is not None and attempt.is_evidence == evidence
        if not evidence and not attempt.recovered.successes:
            said = samples.images(attacked.described(None))
            assert "not known" in said and "which is no evidence" in said
    single = found[1].attempts[0].recovered
    assert single is not None and (single.share > 0.9) == evidence
    assert ("as trained on" in found[1].pictures()) == ("data.augment" in option)


FOUND = Reconstruction(*(torch.zeros(1) for _ in range(6)), cpu_seconds=0.0)


def test_steps_that_attacks_do_not_simulate_make_their_failure_no_evidence(tmp_path: Path) -> None:
    """From round 2 on, the pull of MpFedcon's class centres outweighs the cross-entropy on a single image. How SCAFFOLD's clients
    correct the steps of their first local update is known."""
    single = [("mpfedcon", True), ("fedrep", False), ("scaffold", False), ("fedavg", False)]
    for method, doubted in single:
        play(tmp_path / method, method, **FEW_STEPS)
        evidence = RunRecord(tmp_path / method)
        round, client = evidence.messages()[-1]
        assert round == 3
        alone = shared_out(evidence, client, 6)
        truth = [(evidence.truth(who), at) for who, at in alone]
        images, labels = (torch.stack([getattr(one, what)[at] for one, at in truth]) for what in ("images", "labels"))
        target = of_messages(evidence, "single", single_samples(evidence, round, client, 6), images, labels, None)
        passed = (Control("positive", True, "", None),)
        for name, simulates in (("known-head", True), ("head-free", False), ("analytic", False)):
            made = ImageAttempt(Attacker(image_attacks()[name](), ThreatModel()), reconstruction=FOUND, controls=passed)
            assert target.with_doubts(made).is_evidence == (not (simulates and doubted)), (method, name)
            assert target.with_doubts(replace(made, reconstruction=None)).reasons == ()
            # Of clients with a head of their own it cannot be told; the messages of SCAFFOLD's earlier local updates were kept.
            real = of_message(evidence, round, client)
            assert real.with_doubts(made).is_evidence == (not simulates or method in ("fedavg", "scaffold")), (method, name)


def test_weight_decay_is_known_where_the_schedule_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipped gradients have no schedule, and what weight decay adds to them would look like a defence."""
    alone = [Attacker(image_attacks()["analytic"](), ThreatModel())]
    monkeypatch.setattr("fedpriv.audit.images.reconstructions.suited", lambda masked: alone)
    steps = {"train.clip_grad_norm": 0.1, "train.weight_decay": 0.05, "train.weight_decay_bias": 0.01}
    for method in ("fedavg", "fedrep"):  # with a phase, and with two
        play(tmp_path / method, method, **FEW_STEPS, **steps)
        evidence = RunRecord(tmp_path / method)
        (attempt,) = on_single_images(evidence, *evidence.messages()[-1], 0, lambda text: None, 6).attempts
        assert attempt.recovered is not None and attempt.recovered.share == 1, method


QUIET = {"privacy.level": "sample", "privacy.noise": 1e-4, "privacy.clip": 10.0, "privacy.delta": 1e-3}
"""DP-SGD whose noise hides nothing."""


@pytest.mark.parametrize(
    ("epochs", "lr", "private", "counts"),
    [(1, 0.05, {}, True), (2, 0.001, {}, True), (20, 0.5, {}, False), (1, 0.05, QUIET, True), (20, 0.5, QUIET, False)],
)
def test_after_many_steps_a_change_is_no_gradient(
    tmp_path: Path, epochs: int, lr: float, private: dict[str, Any], counts: bool
) -> None:
    """Attacks that read it as one see other images than the client's, and that they fail is no evidence."""
    options = {"train.local_epochs": epochs, "train.lr": lr, "train.momentum": 0.0, **private}
    play(tmp_path / "run", "fedavg", **FEW_STEPS, **options)
    evidence = RunRecord(tmp_path / "run")
    (message,), ((who, at),) = (
        single_samples(evidence, 1, evidence.messages()[0][1], 1),
        shared_out(evidence, evidence.messages()[0][1], 1),
    )
    truth = evidence.truth(who)
    target = of_messages(evidence, "one", [message], truth.images[at : at + 1], truth.labels[at : at + 1], None)
    assert target.doubt() is None, "the steps themselves explain it"
    for name in ("dlg", "idlg", "inverting-gradients", "analytic-features"):
        made = ImageAttempt(Attacker(image_attacks()[name](), ThreatModel()), reconstruction=FOUND)
        held = target.with_doubts(made)
        assert (held.reasons == ()) is counts
        assert counts or "one step, which the attack assumes" in held.reasons[0].text
    whole = ImageAttempt(Attacker(image_attacks()["unrolled"](), ThreatModel()), reconstruction=FOUND)
    assert target.with_doubts(whole).reasons == ()


@pytest.mark.parametrize(("passes", "hits", "counts"), [(True, 0, True), (False, 0, False), (False, 1, True), (None, 0, True)])
def test_who_fails_on_undefended_messages_of_the_net_too_shows_nothing(passes: bool | None, hits: int, counts: bool) -> None:
    """The control is run only where nothing was recovered; ``None``: it cannot be run."""
    asked: list[Attacker] = []

    def control(attacker: Attacker) -> Control | None:
        asked.append(attacker)
        return None if passes is None else Control("same net", passes, "0 of 4 photographs", None)

    true = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = torch.cat([true[:hits], torch.full_like(true[hits:], 0.5)])
    target = Target(true, torch.zeros(2, dtype=torch.long), lambda threat: [], title="two", on_same_net=control)
    made = ImageAttempt(
        Attacker(image_attacks()["dlg"](), ThreatModel()), reconstruction=FOUND, controls=(Control("positive", True, "", None),),
        scores=score(found, true, torch.full((2,), -1), torch.zeros(2, dtype=torch.long)),
    )  # fmt: skip
    held = target.with_doubts(made)
    assert held.is_evidence is counts and len(asked) == (not hits)
    assert counts or held.reasons == (Reason("same net", "0 of 4 photographs"),)
    assert len(held.controls) == 1 + (passes is not None and not hits), "it is in the report"
    closed = replace(made, attacker=Attacker(image_attacks()["analytic"](), ThreatModel()))
    assert target.with_doubts(closed).is_evidence is counts, "of several images it reads those that neurons are active for alone"
    of_one = replace(closed, reconstruction=replace(FOUND, loss=torch.zeros(2)))
    assert target.with_doubts(of_one).is_evidence is counts, (
        "of one it reads what reaches the first layer, and that may be nothing"
    )


def test_after_the_budget_a_failure_is_not_tried_on_undefended_messages_and_no_evidence() -> None:
    def control(attacker: Attacker) -> Control | None:
        raise AssertionError("the budget is spent")

    true = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    target = Target(true, torch.zeros(2, dtype=torch.long), lambda threat: [], title="two", on_same_net=control)
    made = ImageAttempt(
        Attacker(image_attacks()["dlg"](), ThreatModel()), reconstruction=FOUND, controls=(Control("positive", True, "", None),),
        scores=score(torch.full_like(true, 0.5), true, torch.full((2,), -1), torch.zeros(2, dtype=torch.long)),
    )  # fmt: skip
    held = target.with_doubts(made, Trial(cut=lambda: CUT))
    (why,) = held.reasons
    assert not held.is_evidence and why.kind == "budget spent"
    assert why.text == f"it was not tried on undefended messages of this net ({CUT})"


def test_who_recovers_no_more_than_flat_images_would_is_held_against_the_net_as_well() -> None:
    """An image of little contrast is near to a flat one; that an attack came so near to it says nothing of the attack."""
    true = 0.4 + 0.2 * torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    none, grey = torch.full((2,), -1), torch.full_like(true, 0.5)
    failed = Control("same net", False, "0 of 4 photographs", None)
    target = Target(true, torch.zeros(2, dtype=torch.long), lambda threat: [], title="two", on_same_net=lambda attacker: failed)
    for found, counts in ((grey, False), (true, True)):
        made = ImageAttempt(
            Attacker(image_attacks()["dlg"](), ThreatModel()), reconstruction=FOUND, scores=score(found, true, none, none),
            controls=(Control("positive", True, "", None),),
        )  # fmt: skip
        assert made.recovered is not None and made.recovered.successes == 2
        assert target.with_doubts(made).is_evidence is counts


def test_heads_that_clients_keep_are_no_reason_to_leave_out_the_control_on_the_same_net(tmp_path: Path) -> None:
    """Any head is as good for it; without it, what fails on the net itself would count as evidence."""
    play(tmp_path / "run", "fedrep", **FEW_STEPS)
    evidence = RunRecord(tmp_path / "run")
    target = of_message(evidence, *evidence.messages()[0])
    control = target.on_same_net(Attacker(image_attacks()["analytic"](), ThreatModel()))
    assert control is not None and f"{len(target.images)} behind one message" in control.sentence
