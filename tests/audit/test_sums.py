"""Audits of runs with secure aggregation: the server's view is the sum, and the uploads behind it are a comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.judge.sums import compared
from fedpriv.audit.page.render import render_html, render_markdown
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowUpdates
from fedpriv.audit.record.sums import HeldBack, SumRecord, record_of
from fedpriv.audit.record.traffic import knowledge
from fedpriv.audit.report import audit
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.labels import LabelRule
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError
from tests.audit.truth import gradients_of
from tests.simulation.small import play

ONE_STEP = {"train.batch_size": 500, "train.momentum": 0.0, "train.weight_decay": 0.0, "train.rounds": 1}
ON = {"wire.secure_aggregation": True, "data.limit": 300, "executor.name": "sequential"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step a client."""
    path = tmp_path_factory.mktemp("sums") / "run"
    play(path, "fedavg", **ON, **ONE_STEP)
    return path


def test_a_sum_of_single_steps_is_the_gradient_over_all_of_its_clients(folder: Path) -> None:
    found = record_of(folder)
    assert isinstance(found, SumRecord) and found.summed
    ((round, number),) = found.messages()
    message, truth = found.message(round, number), found.truth(number)
    members = next(iter(record["summed"] for record in found.folder.records() if "summed" in record))
    assert message.parts == len(members) == 3 and found.sender(round, number).named == "sum of 3"
    alone = HeldBack(folder)
    one = alone.store.upload(round, members[0])
    assert found.simulated(round, number, one, message.received, one.num_examples).parts == 1, (
        "of one client, as it was simulated"
    )
    assert len(truth.labels) == message.num_examples == sum(len(alone.labels(client)) for client in members)
    observation = found.attacker.observation(message, ThreatModel())
    assert observation.schedule is not None and observation.schedule.steps == 1
    seen = as_gradient(observation).shared
    for name, gradient in gradients_of(found, message, truth).items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-3, atol=1e-5)


def test_what_is_held_back_are_the_uploads_of_a_plain_run(folder: Path, tmp_path: Path) -> None:
    play(tmp_path / "plain", "fedavg", **{**ON, "wire.secure_aggregation": False}, **ONE_STEP)
    alone, plain = HeldBack(folder), RunRecord(tmp_path / "plain")
    assert alone.messages() == plain.messages()
    for round, client in plain.messages():
        assert alone.store.upload(round, client).data == plain.store.upload(round, client).data


def test_without_the_class_of_sums_there_is_nothing_to_attack(folder: Path) -> None:
    with pytest.raises(UsageError, match="kept no payloads"):
        RunRecord(folder)


def test_a_shadow_of_a_sum_is_the_mean_of_updates(folder: Path) -> None:
    found = record_of(folder)
    download, federation = found.store.download(1), found.federation
    assert download is not None
    held = federation.data.train(0)

    def split_of(number: int) -> Split:
        return held.at(torch.arange(number, len(held.labels), 3))

    together = next(ShadowUpdates(federation, 1, download, None, 3).run(lambda number: held, [0]))
    alone = list(ShadowUpdates(federation, 1, download, None).run(split_of, [0, 1, 2]))
    assert together is not None
    shares = [len(split_of(number).labels) / len(held.labels) for number in range(3)]
    for name, tensor in together.uploaded.items():
        by_hand = sum(share * one.uploaded[name].double() for share, one in zip(shares, alone, strict=True) if one is not None)
        torch.testing.assert_close(tensor.double(), by_hand, rtol=1e-6, atol=1e-7)


def test_a_sum_in_which_few_clients_trained_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a run of an earlier version: now there is none."""
    sizes = {"data.clients": 3, "data.limit": 300, "data.partition.name": "dirichlet", "data.partition.seed": 3}
    options = {**ON, **ONE_STEP, **sizes, "train.participation": 1.0, "train.min_batch": 110}
    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.secure.protocol_checks._check_trained", lambda *of: None)
        with pytest.raises(FedprivError, match="none of the 1 rounds had a sum"):
            play(tmp_path / "none", "fedavg", **options)  # nor does the server open one
        patch.setattr("fedpriv.server.secure_sum.takes_a_step", lambda *of: True)
        patch.setattr("fedpriv.client.local_update.ModelLocalUpdate.untrained", False)
        play(tmp_path / "run", "fedavg", **options)
    found = record_of(tmp_path / "run")
    ((round, number),) = found.messages()
    large = [client for client in range(3) if found.federation.data.size(client) >= 110]
    assert len(large) == 1 and found.sender(round, number).named == "sum of 3 (only 1 trained)"
    known = " ".join(knowledge(found)[0])
    assert "no single upload" not in known and "the 3 clients in the sum of round 1 only 1 trained: the others" in known


def test_its_sentences_name_the_sum() -> None:
    assert (Sender(3).named, Sender(None, 4, 4).named) == ("client 3", "sum of 4")
    assert Sender(3).message_of(1) == "client 3's message of round 1"
    assert Sender(None, 4, 4).message_of(1) == "the sum of 4 clients' uploads of round 1"
    assert Sender(None, 4, 1).message_of(1) == "the sum of 4 clients' uploads of round 1 (only 1 trained)"


def test_attacks_are_pooled_over_messages_and_paired_by_name() -> None:
    def rule(name: str, hits: int, n: int) -> LabelRule:
        return LabelRule(
            rule=name, rests_on="", messages=n, exact=wilson(hits, n), together=None, count_accuracy=None, best=False,
            best_counts=False, not_applicable=None,
        )  # fmt: skip

    nothing = AuditedRun(
        name="run", run_id="run", method="fedavg", title="", dataset="digits", model="mlp", modalities=("image",), seed=0,
        cost=Cost(bytes_up=1),
    )  # fmt: skip
    sums = replace(nothing, label_rules=(rule("gradient", 1, 100),))
    alone = replace(nothing, label_rules=(rule("gradient", 5, 10), rule("gradient", 5, 30), rule("centres", 1, 1)))
    gradient, centres = compared(sums, alone)
    assert (gradient.attack, gradient.measure) == ("gradient", "label sets")
    assert gradient.on_sums is not None and (gradient.on_sums.value, gradient.on_sums.n) == (0.01, 100)
    pooled = gradient.on_uploads
    assert pooled is not None and (pooled.value, pooled.n) == (0.25, 40)
    assert pooled.low < 0.25 < pooled.high  # over both messages together
    assert centres.attack == "centres" and centres.on_sums is None
    assert centres.on_uploads is not None and centres.on_uploads.value == 1


@pytest.mark.slow
def test_an_audit_shows_each_attacker_with_and_without(folder: Path, hardly_any_steps: None) -> None:
    options = AuditOptions(messages=1, label_shadows=0, membership_shadows=4, singles=1)
    audited = audit([folder], options, "fedpriv audit", 1, lambda text: None)
    (found,) = audited.audit.runs
    assert found.comparison is not None
    rows = {(row.measure, row.attack): row for row in found.comparison}
    analytic = rows["images", "analytic"]
    assert analytic.on_sums is not None and analytic.on_uploads is not None
    assert analytic.on_sums.n > analytic.on_uploads.n
    assert {measure for measure, _ in rows} >= {"images", "membership"}
    assert "secure aggregation" in found.defence and found.summed
    assert any("the sum of 3 clients' uploads of round 1" in sentence for sentence in found.verdict)
    assert any("no single upload" in sentence for sentence in found.server_knows)
    for page in (render_html(audited.audit, audited.pictures), render_markdown(audited.audit)):
        assert "With and without secure aggregation" in page and "sum of 3" in page
