"""A recorded federation is audited as a run is, as far as its record tells."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedpriv
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.audit.foreign.audit import AuditedFolder, audit_recorded
from fedpriv.audit.foreign.membership import in_recorded_rounds
from fedpriv.audit.foreign.record import FolderRecord
from fedpriv.audit.foreign.replay import compare_with_message
from fedpriv.audit.foreign.simulation import CannotReplay, SimulatedRecord
from fedpriv.audit.membership.member_scores import LIRA, LOSS, REGRESSION
from fedpriv.audit.progress import Progress
from fedpriv.audit.record.base import SIMULATED
from fedpriv.audit.results.outcome import Outcome, reworded
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.errors import UsageError
from fedpriv.files import Damaged
from fedpriv.recorder.reader import Recorded
from fedpriv.recorder.writer import Recording
from tests.recorder.loop import federation, recorded, samples, small_net, trained

SILENT = Progress(lambda text: None, None)


def test_messages_are_the_recorded_ones(tmp_path: Path) -> None:
    record = FolderRecord(recorded(tmp_path / "record").folder)
    clients = {"north": samples(6, 1), "south/2": samples(6, 2)}
    assert record.messages() == [(1, 0), (1, 1), (2, 0), (2, 1)] and record.sender(1, 1).named == "client south/2"
    for round, name, sent, answer in federation(clients, 2):
        message = record.message(round, list(clients).index(name))
        assert message.num_examples == 6
        assert all(torch.equal(message.received[key], sent[key]) for key in sent)
        assert all(torch.allclose(message.uploaded[key], answer[key], atol=1e-6) for key in answer)
        seen = record.observation(message, ThreatModel())
        assert seen.schedule is not None and (seen.schedule.steps, seen.schedule.batch_size) == (2, 4)
        assert torch.allclose(seen.shared["top.bias"], answer["3.bias"] - sent["3.bias"], atol=1e-6)


def test_the_declared_training_is_done_again_and_compared(tmp_path: Path) -> None:
    right, wrong = recorded(tmp_path / "right").folder, recorded(tmp_path / "wrong", lr=0.1).folder
    assert compare_with_message(SimulatedRecord(right), 1, 0).agrees
    assert not compare_with_message(SimulatedRecord(wrong), 1, 0).agrees
    unknown = recorded(tmp_path / "unknown", training={"lr": 0.5}).folder
    with pytest.raises(CannotReplay, match="local_epochs or local_steps"):
        compare_with_message(SimulatedRecord(unknown), 1, 0)
    other = recorded(tmp_path / "other", training={"lr": 0.5, "local_epochs": 1, "batch_size": 4, "augmented": True}).folder
    with pytest.raises(CannotReplay, match="augmented"):
        compare_with_message(SimulatedRecord(other), 1, 0)


def test_training_that_is_not_as_declared_makes_failures_no_evidence(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "wrong", rounds=1, lr=0.1).folder
    run, _ = audit_recorded(folder, None, AuditOptions(messages=1, membership_shadows=0, budget=1e-6), lambda text: None)
    assert any("not as the record declares" in condition for condition in run.conditions)
    honest = recorded(tmp_path / "right", rounds=1).folder
    writer = Recording(honest, Recorded(honest).facts)
    writer.answered(2, "north", small_net().state_dict(), epsilon=1.5)
    writer.refused(3, "north", "over target_epsilon 2")
    run, _ = audit_recorded(honest, None, AuditOptions(messages=1, membership_shadows=0, budget=1e-6), lambda text: None)
    assert any("is as the record declares" in condition for condition in run.conditions)
    assert any("epsilon of up to 1.5" in condition for condition in run.conditions)
    assert any("client north in round 3: over target_epsilon 2" in condition for condition in run.conditions)


def test_members_are_found_and_the_server_s_own_update_shows_none(tmp_path: Path) -> None:
    record = SimulatedRecord(recorded(tmp_path / "record", rounds=1).folder)
    members = in_recorded_rounds(record, [], 8, 0, SILENT)
    areas = {outcome.attack: outcome.points.auc.value for outcome in members.outcomes if outcome.points is not None}
    assert areas[REGRESSION] == 1.0 and {LOSS, LIRA} <= areas.keys()
    assert members.epsilon is not None and members.epsilon.lower >= 0 and members.epsilon.upper_so_far is None
    assert any(control.name == "negative" and control.passed for control in members.controls)


def test_gradients_are_simulated_as_gradients(tmp_path: Path) -> None:
    (data, net) = samples(6, 1), small_net()
    loss = torch.nn.functional.cross_entropy(net(data[0]), data[1])
    gradient = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))
    with fedpriv.recording(tmp_path, classes=3, input_shape=(1, 6, 6), net=small_net) as record:
        record.truth("a", *data)
        record.public(*samples(36, 3))
        record.sent(1, "a", net.state_dict())
        record.answered(1, "a", gradient, kind="gradient")
    folder = AuditedFolder(tmp_path)
    assert folder.cannot_simulate is None and "as the record declares" in folder.sentence
    members = folder.members(AuditOptions(membership_shadows=8), [1], SILENT)
    assert members is not None
    tried = {outcome.attack: outcome.points for outcome in members.outcomes}
    assert tried[LOSS] is None  # there is no model to be confident
    assert tried[REGRESSION] is not None and tried[REGRESSION].auc.value > 0.9


def test_the_epsilon_that_clients_state_is_on_the_page(tmp_path: Path) -> None:
    record = recorded(tmp_path / "record", rounds=1)
    writer = Recording(record.folder, record.facts)
    for epsilon in (1.5, 2.5):
        writer.answered(int(epsilon + 1), "north", small_net().state_dict(), epsilon=epsilon, delta=1e-6)
    run, _ = audit_recorded(record.folder, None, AuditOptions(1, 0, 0, 1, budget=1e-6), lambda text: None)
    assert run.epsilon is not None and (run.epsilon.upper, run.epsilon.delta, run.epsilon.level) == (2.5, 1e-6, "client")
    assert any("2.5" in sentence and "upper bound" in sentence for sentence in run.verdict)


def test_records_that_differ_in_a_defence_are_compared(tmp_path: Path) -> None:
    noise = [{"name": "gaussian", "variance": 1e-8}]
    folders = [recorded(tmp_path / name, rounds=1, transforms=these).folder for name, these in (("a", ()), ("b", noise))]
    folders.append(recorded(tmp_path / "c", rounds=1, training={"lr": 0.1, "local_epochs": 1}).folder)
    plain, defended, unlike = fedpriv.audit(folders, messages=1, membership_shadows=0, label_shadows=0, budget=1e-6).runs
    assert (defended.cost.against, plain.cost.against, unlike.cost.against) == ("a", None, None)
    assert defended.defence == ("gaussian(1e-08)",) and '"lr": 0.1' in unlike.config_yaml
    twin = recorded(tmp_path / "far" / "a", rounds=1).folder
    with pytest.raises(UsageError, match="2 records are named 'a'"):
        fedpriv.audit([folders[0], twin])


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_training_by_another_optimiser_is_done_again_and_read_as_no_gradient(tmp_path: Path, optimizer: str) -> None:
    data, net = samples(6, 1), small_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    steps = (torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW)(net.parameters(), 0.01, weight_decay=0.1)
    for _ in range(3):
        steps.zero_grad()
        torch.nn.functional.cross_entropy(net(data[0]), data[1]).backward()
        steps.step()
    training = {"optimizer": optimizer, "lr": 0.01, "weight_decay": 0.1, "local_steps": 3}
    with fedpriv.recording(tmp_path, classes=3, input_shape=(1, 6, 6), net=small_net, training=training) as record:
        record.truth("a", *data)
        record.sent(1, "a", before)
        record.answered(1, "a", net.state_dict())
    folder = AuditedFolder(tmp_path)
    assert compare_with_message(folder, 1, 0).distance < 1e-4 and folder.cannot_simulate is None
    seen = folder.observation(folder.message(1, 0), ThreatModel())
    assert (seen.kind, seen.schedule) == ("change", None)
    assert f"attacks read a change as that of SGD, and the client's steps were {optimizer}'s" in seen.control_differences


def test_uploads_with_unknown_transforms_are_not_simulated(tmp_path: Path) -> None:
    record = AuditedFolder(recorded(tmp_path / "record", rounds=1, transforms=None).folder)
    assert record.cannot_simulate is not None and "transforms" in record.cannot_simulate.text
    assert set(SIMULATED) <= record.not_run().keys() and record.members(AuditOptions(), [1], SILENT) is None


def test_simulated_uploads_go_through_the_declared_transforms(tmp_path: Path) -> None:
    noise = [{"name": "clip", "norm": 0.01}, {"name": "gaussian", "variance": 1e-8}]
    record = SimulatedRecord(recorded(tmp_path / "record", rounds=1, transforms=noise).folder)
    message, start = record.message(1, 0), record.start(record.message(1, 0))
    played = record.simulated(message, record.server_samples(torch.arange(6)), 0)
    assert played is not None
    change = torch.cat([(played.uploaded[name] - tensor).flatten() for name, tensor in start.items()])
    whole = torch.cat([(played.state[name] - tensor).flatten() for name, tensor in start.items()])
    assert float(change.norm()) == pytest.approx(0.01, rel=0.2) and float(whole.norm()) > 0.1


@pytest.mark.slow
def test_the_audit_of_a_record_answers_and_is_written(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "record").folder
    report = fedpriv.audit(folder, messages=1)
    assert report.answers == {"record": "Samples were recovered"}
    assert (folder / "audit" / "audit.html").is_file() and "as it was recorded" in report.html()
    assert report.runs[0].cost.bytes_up > 0 and report.met("membership_auc>0.9") is not None


def test_what_does_not_fit_is_said_in_a_line(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "record", net=None).folder
    with pytest.raises(UsageError, match="names no net"):
        FolderRecord(folder)
    with pytest.raises(UsageError, match=r"4 logits.*3 classes"):
        FolderRecord(folder, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 4)))
    wider = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 17), torch.nn.ReLU(), torch.nn.Linear(17, 3))
    with pytest.raises(Damaged, match=r"round 1: .*shape"):
        FolderRecord(folder, wider).verify()
    empty = fedpriv.recording(tmp_path / "empty", classes=3, input_shape=(1, 6, 6), net=small_net)
    empty.answered(1, "a", small_net().state_dict())
    with pytest.raises(UsageError, match="no message can be attacked"):
        FolderRecord(tmp_path / "empty")


class Named(nn.Module):
    """A net whose layers have names, and whose running statistics no attack can read."""

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.norm, self.classifier = nn.Linear(36, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.norm(self.entry(inputs.flatten(1))).relu())
        return logits


def test_reasons_have_the_net_s_own_names_of_layers(tmp_path: Path) -> None:
    net, data = Named(), samples(6, 1)
    with fedpriv.recording(
        tmp_path, classes=3, input_shape=(1, 6, 6), net=Named, training={"lr": 0.5, "local_steps": 2}
    ) as record:
        record.truth("a", *data)
        record.sent(1, "a", {name: tensor.clone() for name, tensor in net.state_dict().items()})
        record.answered(1, "a", trained(net, data))
    run, _ = audit_recorded(tmp_path, None, AuditOptions(1, 0, 0, 1, budget=1e-6), lambda text: None)
    reasons = [str(reason) for reason in run.not_run.values()]
    assert any(reason.startswith("norm has momentum=None") for reason in reasons), reasons
    failed = Reason("control failed", "it refused random gradients ('body.1')")
    other = Status("inconclusive", (failed, Reason("does not apply", "body.entry has no bias")))
    renamed = reworded(Outcome(attack="x", status=other), AuditedFolder(tmp_path).in_own_names)
    assert [reason.text for reason in renamed.status.reasons] == [failed.text, "entry has no bias"]
