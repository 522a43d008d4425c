"""Findings of a replay are those that an audit of a real run would have, so that a target is met by the same rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.audit.conditions import conditions
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.frontier.search import Replayed, measured
from fedpriv.models import build_model
from tests.frontier.test_still_open import texts_read
from tests.simulation.small import FEW_STEPS, config, play


def evidence_on_texts(*statistics: str) -> RunRecord:
    """Of a run on texts with one message, of which statistics were sent besides the model."""
    schema = {f"statistic.{name}": ("F32", (2,)) for name in statistics}
    store = SimpleNamespace(upload=lambda round, client: SimpleNamespace(schema=schema))
    federation = SimpleNamespace(
        resident=SimpleNamespace(net=build_model("mlp", (1, 8, 8), 10)), method=SimpleNamespace(title="FedAvg")
    )
    folder = SimpleNamespace(path=Path("run"), facts={"run_id": "run", "dataset": "texts"})
    about = SimpleNamespace(called="fedavg", model=SimpleNamespace(name="transformer"), seed=0)
    found = SimpleNamespace(
        modalities=("text",), messages=lambda: [(1, 0)], store=store, federation=federation, folder=folder, config=about
    )
    return cast(RunRecord, found)


@pytest.mark.parametrize(("statistics", "holds"), [((), True), (("classes",), True), (("mystery",), False)])
def test_a_replay_on_texts_can_hold_unless_it_sends_what_audits_do_not_know(
    statistics: tuple[str, ...], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.frontier.search.on_texts", lambda *given: [texts_read("message")])
    monkeypatch.setattr("fedpriv.frontier.search.labels_of", lambda *given: None)
    monkeypatch.setattr("fedpriv.frontier.search.findings_of", lambda labels: SimpleNamespace(labels=()))
    found = measured(evidence_on_texts(*statistics), AuditOptions(label_shadows=0), ["recovered"], lambda text: None)
    (target,) = conditions("recovered<=0.05", "--target")
    assert target.value(found) == 0.0 and target.holds(found) == holds


def test_dp_sgd_is_replayed_from_a_run_that_trained_groups_and_attackers_know_its_noise(tmp_path: Path) -> None:
    run = play(tmp_path / "run", "fedavg", **FEW_STEPS, **{"executor.name": "vectorized", "train.rounds": 2}).folder
    private = config("fedavg", **{"privacy.level": "sample", "privacy.target_epsilon": 8.0}).privacy
    replayed = Replayed(run.path, run.config().model_copy(update={"privacy": private}))
    noise = replayed.config.privacy.noise
    assert noise is not None and noise == replayed.federation.config.privacy.noise
    messages = [replayed.message(*one) for one in replayed.messages(round=2)]
    assert messages and all(one.first_update for one in messages), (
        "the clients have nothing left of their local updates in the run"
    )
    altered = replayed.attacker.observation(messages[0], ThreatModel()).altered
    assert altered.rescaled and all(variance > 0 for variance in altered.variance.values())
    assert altered.variance.keys() == replayed.attacker.observation(messages[0], ThreatModel()).shared.keys()


def test_what_a_replayed_client_trained_on_is_what_its_own_update_made_of_its_images(tmp_path: Path) -> None:
    """The run's local update made other crops, and an image that was found would be compared with these."""
    augmented = {"train.rounds": 1, "data.augment": "crop_flip", "data.pixels": "unit"}
    run = play(tmp_path / "run", "fedavg", **FEW_STEPS, **augmented).folder
    replayed, trained = Replayed(run.path, run.config()), list[Tensor]()
    augment = replayed.federation.augment
    assert augment is not None
    spied = replace(replayed.federation, augment=lambda *given: trained.append(augment(*given)) or trained[-1])
    ((round, client), *_), replayed.federation = replayed.messages(), spied
    replayed.message(round, client)
    made = {image.numpy().tobytes() for image in torch.cat(trained)}
    views = replayed.views(round, client, replayed.truth(client).images)
    assert views is not None and {image.numpy().tobytes() for image in views[:, -1]} == made
