"""Running statistics in an audit: listed, exposed, the mean colour, and whatever else is in a message has a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.attacks.core.observation import Passes, ThreatModel
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.scoring.operating_points import area
from fedpriv.audit.conditions import conditions
from fedpriv.audit.images.mean_colours import mean_colours
from fedpriv.audit.membership.candidates import candidates
from fedpriv.audit.membership.inference import membership
from fedpriv.audit.membership.member_scores import running_statistics
from fedpriv.audit.page import change
from fedpriv.audit.page.render import render_html, render_markdown
from fedpriv.audit.record import statistics
from fedpriv.audit.record.attacker_view import cut
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.statistics import ASIDE, BUFFERS, CONSTANTS, MEANINGS, RUNNING, kind_of, kinds_of_model
from fedpriv.audit.results.images import MeanColour
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.sentences.verdict import verdict
from fedpriv.models.net import Net
from fedpriv.models.registry import assemble, list_models
from fedpriv.parameters import ParameterSpace
from fedpriv.wire.coding import base_name, is_model
from tests.audit.sample_findings import findings, pictures
from tests.marks import FEW, federated, slow_but
from tests.simulation.small import play

NORMED: dict[str, Any] = {
    "data.limit": 300,
    "model.name": "tests.audit.nets:NormedConv",
    "model.projection": None,
    "train.rounds": 1,
    "train.batch_size": 100,
}


def evidence(folder: Path, method: str = "fedavg", **overrides: Any) -> RunRecord:
    play(folder, method, **{**NORMED, **overrides})
    return RunRecord(folder)


@pytest.fixture(scope="module")
def undefended(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return evidence(tmp_path_factory.mktemp("runs") / "run")


def test_they_are_listed_with_their_bytes(undefended: RunRecord) -> None:
    (row,) = undefended.statistics()
    assert (row.what, row.tensors, row.bytes, row.known) == (RUNNING, 4, 4 * 2 * (16 + 24), True)
    assert "membership" in row.attacked and statistics.exposed(undefended) == ()


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("fedbn", {}),
        ("fedavg", {"wire.transforms": [{"name": "mask", "names": ["*.running_*"]}]}),
    ],
)
def test_they_are_not_listed_where_they_stay_with_the_client(tmp_path: Path, method: str, overrides: dict[str, Any]) -> None:
    found = evidence(tmp_path / "run", method, **overrides)
    assert not found.statistics()
    seen = found.attacker.observation(found.message(*found.messages()[0]), ThreatModel())
    assert seen.buffers == {} and seen.passes is None
    refused = mean_colours(found)
    assert isinstance(refused, Reason) and "no running statistics" in refused.text


def test_noise_and_clipping_alter_them_as_well(tmp_path: Path) -> None:
    noisy = evidence(tmp_path / "noisy", **{"wire.transforms": [{"name": "gaussian", "variance": 1e-4}]})
    assert statistics.exposed(noisy) == ()
    seen = noisy.attacker.observation(noisy.message(*noisy.messages()[0]), ThreatModel())
    assert {seen.altered.variance[name] for name in seen.buffers} == {1e-4}
    clipped = evidence(tmp_path / "clipped", **{"wire.transforms": [{"name": "clip", "norm": 0.1}]})
    refused = mean_colours(clipped)
    assert isinstance(refused, Reason) and "clipped" in refused.text


def test_a_defence_of_the_weights_alone_leaves_them_as_they_are(undefended: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_weights(payload: Any, context: Any) -> Any:
        some = {name: tensor + 1 if name.endswith("weight") else tensor for name, tensor in payload.tensors.items()}
        return payload.with_tensors(some, "of weights")

    altered = replace(undefended.federation.agreement, transforms=(of_weights,))
    sent = undefended.message(*undefended.messages()[0])
    monkeypatch.setattr(undefended, "message", lambda *which: sent)
    monkeypatch.setattr(undefended, "federation", replace(undefended.federation, agreement=altered))
    assert statistics.exposed(undefended) == (RUNNING,)


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ({}, Passes(1, 29)),
        ({"train.batch_size": 10, "train.local_epochs": 2}, Passes(6, 10)),
        ({"train.batch_size": 10, "train.accumulate": 2, "train.optimizer": "adam"}, Passes(6, 5)),
    ],
)
def test_how_many_batches_they_are_of(tmp_path: Path, overrides: dict[str, Any], passes: Passes) -> None:
    found = evidence(tmp_path / "run", **overrides)
    round, client = next(one for one in found.messages() if found.message(*one).num_examples == 29)
    assert found.attacker.observation(found.message(round, client), ThreatModel()).passes == passes


def test_the_mean_colour_of_each_client_beside_the_data_sets(undefended: RunRecord) -> None:
    found = mean_colours(undefended)
    assert not isinstance(found, Reason) and [(one.round, one.sender.client) for one in found] == undefended.messages()
    ((read,), (true,)), mean = (
        (found[0].estimate, found[0].true),
        float(undefended.truth(undefended.messages()[0][1]).images.mean()),
    )
    assert true == pytest.approx(mean) and found[0].error == pytest.approx(abs(read - mean))
    assert median(one.error for one in found) < 0.05  # the border, which is padded, is darker


def test_members_behind_a_message_of_a_run(undefended: RunRecord) -> None:
    """And none behind that of another client with samples of its own."""
    (round, client), (_, other), *_ = undefended.messages()
    pool, message = candidates(undefended.federation, round, client), undefended.message(round, client)
    scores = running_statistics(undefended, message, message.uploaded, pool.data.inputs)
    assert area(scores, pool.members, 0.95).low > 0.8
    elsewhere = running_statistics(undefended, message, undefended.message(round, other).uploaded, pool.data.inputs)
    assert area(elsewhere, pool.members, 0.999).low < 0.5


@pytest.mark.slow
def test_the_audit_has_their_row_with_both_controls(undefended: RunRecord) -> None:
    found = membership(undefended, 1, undefended.whole_clients(1)[:2], 4)
    assert found.attacks["running statistics"].auc.low > 0.8 and found.failed_controls == []
    assert "running statistics" in found.controls and found.positive["running statistics"].passed
    assert any("BatchNorm's momentum" in sentence for sentence in found.threat)


def test_the_report_shows_the_colours_beside_the_truth() -> None:
    colour = MeanColour(round=1, sender=Sender(3), estimate=(0.3141, 0.25), true=(0.31, 0.26), error=0.007, baseline_error=0.05)
    audit = findings()
    run = replace(audit.runs[0], mean_colours=(colour,))
    audit = replace(audit, runs=(run, *audit.runs[1:]))
    for text in (render_html(audit, pictures()), render_markdown(audit)):
        assert "0.314, 0.250" in text and "0.310, 0.260" in text and "0.007" in text and "0.050" in text
    (sentence,) = [one for one in verdict(run) if "mean colour of a client" in one]
    assert "is known better" in sentence and "0.007" in sentence and "0.050" in sentence
    worse = replace(run, mean_colours=(replace(colour, error=0.06),))
    (sentence,) = [one for one in verdict(worse) if "mean colour of a client" in one]
    assert "is not known better" in sentence


@pytest.mark.parametrize(("target", "masked"), [("membership_auc<=0.6", True), ("recovered<=0", False)])
def test_a_mask_of_them_is_suggested_where_members_show(target: str, masked: bool) -> None:
    run = findings().runs[0]
    run = replace(run, statistics=(replace(run.statistics[0], what=RUNNING),))
    (condition,) = conditions(target, "--target")
    assert ('mask:names=["*.running_*"]' in change._command(run, condition)) == masked


class Counting(nn.Module):
    """A layer with a mean of its own, which it does not compute with, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))
        self.seen: torch.Tensor
        self.scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.mul_(0.9).add_(0.1 * x.detach().mean())
        return x * self.scale


def test_buffers_of_other_layers_are_named_as_unknown_or_constant() -> None:
    net = assemble(nn.Sequential(nn.Flatten(), Counting(), nn.BatchNorm1d(64)), 64, (1, 8, 8), 10, 16, 8)
    kinds = kinds_of_model(net)
    assert kinds["encoder.1.seen"] == BUFFERS and kinds["encoder.1.scale"] == CONSTANTS
    assert kinds["encoder.2.running_mean"] == RUNNING and "encoder.2.weight" not in kinds
    assert kinds["predictor.norm1.running_var"] == kinds["predictor.fc1.weight"] == ASIDE
    rows = statistics.listed([dict.fromkeys(kinds, ("F32", (1,)))], kinds)
    assert {row.what: row.known for row in rows} == {BUFFERS: False, CONSTANTS: True, RUNNING: True, ASIDE: True}


def named_or_attacked(net: Net, names: list[str], attacked: set[str]) -> None:
    """Each name of a message is read by attacks, or its kind says what it reveals."""
    of_model = kinds_of_model(net)
    for name in map(base_name, names):
        kind = of_model.get(name) if is_model(name) else kind_of(name)
        assert (kind in MEANINGS) if kind is not None else (name in attacked), name


@pytest.mark.parametrize("spec", list_models(), ids=lambda spec: spec.name)
def test_all_that_a_net_can_send(spec: Any) -> None:
    with torch.device("meta"):
        net = assemble(*spec.build(spec.input_shape), spec.input_shape, 10, 16, 8, "simclr")
    names = list(ParameterSpace.of(net).names)
    named_or_attacked(net, names, set(cut(net, names).names))


@pytest.mark.parametrize("method", slow_but(FEW, [name for name in federated() if name != "local"]))
def test_all_that_a_method_sends(tmp_path: Path, method: str) -> None:
    """Parameters are in the gradient that attacks read, running statistics beside it, and the rest is named."""
    found = evidence(tmp_path / "run", method, **{"model.name": "mlp", "model.projection": 16, "model.projector": "simclr"})
    for round, client in found.messages():
        message = found.message(round, client)
        seen = found.attacker.observation(message, ThreatModel())
        renamed = {cut_name: name for name, cut_name in found.attacker.victim(message).names.items()}
        named_or_attacked(found.federation.resident.net, list(message.uploaded), {renamed[name] for name in seen.shared})
        running = [name for name in message.uploaded if kinds_of_model(found.federation.resident.net).get(name) == RUNNING]
        assert {renamed[name] for name in seen.buffers} == set(running)
