"""Records of sums, and of what is sent besides the net."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedpriv
from fedpriv.attacks.api.label_rules import STATED
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.audit.foreign.audit import AuditedFolder
from fedpriv.audit.foreign.facts import run_facts
from fedpriv.audit.images.mean_colours import mean_colours
from fedpriv.audit.membership.label_leaks import infer_labels
from fedpriv.audit.membership.member_scores import LIRA, REGRESSION, RUNNING
from fedpriv.audit.progress import Progress
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.errors import UsageError
from fedpriv.recorder.check import check
from fedpriv.recorder.reader import Recorded
from tests.recorder.loop import Samples, federation, samples, small_net, trained

CLIENTS = {"north": samples(8, 1), "south": samples(4, 2), "west": samples(8, 4)}
FACTS = {"classes": 3, "input_shape": (1, 6, 6), "training": {"lr": 0.5, "local_epochs": 1, "batch_size": 4}}


def mean_of(answers: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    total = sum(len(CLIENTS[name][1]) for name in answers)
    shares = {name: len(CLIENTS[name][1]) / total for name in answers}
    return {key: sum((shares[name] * answers[name][key] for name in answers), torch.zeros(())) for key in answers["north"]}


def recorded(folder: Path, rounds: int = 2) -> Path:
    """The same federation as its server sees it with secure aggregation."""
    with fedpriv.recording(folder, net=small_net, **FACTS) as record:
        for name, data in CLIENTS.items():
            record.truth(name, *data)
        record.public(*samples(90, 3))
        answers = dict[str, dict[str, Tensor]]()
        for round, name, sent, answer in federation(CLIENTS, rounds):
            record.sent(round, name, sent)
            answers[name] = answer
            if len(answers) == len(CLIENTS):
                record.summed(round, list(answers), mean_of(answers), num_examples=20)
                answers = {}
    return folder


def test_a_sum_is_the_message_of_one_client_with_all_samples(tmp_path: Path) -> None:
    record = AuditedFolder(recorded(tmp_path / "sums"))
    assert record.summed and record.messages() == [(1, 0), (2, 1)] and record.sender(2, 1).named == "sum of 3"
    message = record.message(1, 0)
    assert (message.parts, message.num_examples) == (3, 20)
    assert torch.equal(record.labels(0), torch.cat([labels for _, labels in CLIENTS.values()]))
    schedule = record.observation(message, ThreatModel()).schedule
    assert schedule is not None and (schedule.steps, schedule.batch_size) == (2, 12)
    facts = run_facts(record)
    assert (facts.clients, facts.participants) == (3, 3)


def test_the_training_behind_a_sum_is_done_again_by_its_clients(tmp_path: Path) -> None:
    record = AuditedFolder(recorded(tmp_path / "sums", rounds=1))
    assert record.cannot_simulate is None and "sum of 3" in record.sentence
    members = record.members(AuditOptions(membership_shadows=8), [1], Progress(lambda text: None, None))
    assert members is not None
    tried = {outcome.attack: outcome.points for outcome in members.outcomes if outcome.points is not None}
    assert tried[REGRESSION].auc.value > 0.8 and LIRA in tried


def test_sums_and_single_answers_do_not_mix(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "sums", rounds=1)
    writer = fedpriv.recording(folder, net=small_net, **FACTS)
    writer.answered(2, "north", small_net().state_dict())
    with pytest.raises(UsageError, match="sums and answers of single clients"):
        AuditedFolder(folder)
    writer.summed(3, ["north"], small_net().state_dict())
    lines = (folder / "messages.jsonl").read_text().replace("sum of round 3", "sum of round 1")
    (folder / "messages.jsonl").write_text(lines)
    with pytest.raises(UsageError, match="sum of other clients in round 3"):
        _ = Recorded(folder).lines


def test_a_sum_of_clients_without_samples_is_not_attacked(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "sums", rounds=1)
    (folder / "truth" / "west.safetensors").unlink()
    assert check(Recorded(folder)).attackable == 0


def normal_net() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(36, 3))


def bright(number: int, seed: int) -> Samples:
    images, labels = samples(number, seed)
    return images * 0.5 + 0.4, labels


def with_statistics(folder: Path, data: Samples) -> Path:
    torch.manual_seed(0)
    net = normal_net()
    sent = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with fedpriv.recording(folder, net=normal_net, **FACTS) as record:
        record.truth("a", *data)
        record.public(*bright(90, 3))
        record.sent(1, "a", sent)
        counts = torch.bincount(data[1], minlength=3).float()
        record.answered(1, "a", {**trained(net, data), "statistic.counts": counts}, num_examples=len(data[1]))
    return folder


def test_what_is_sent_besides_the_net_is_read(tmp_path: Path) -> None:
    record = AuditedFolder(with_statistics(tmp_path / "r", bright(16, 1)))
    assert {statistic.what for statistic in record.statistics()} == {RUNNING, "counts"}
    assert infer_labels(record, 1, 0).exact(STATED)
    (colour,) = mean_colours(record)  # type: ignore[misc]
    assert abs(colour.estimate[0] - float(record.truth(0).images.mean())) < 0.02 < colour.baseline_error
    members = record.members(AuditOptions(membership_shadows=4), [1], Progress(lambda text: None, None))
    assert members is not None and RUNNING in {outcome.attack for outcome in members.outcomes}
