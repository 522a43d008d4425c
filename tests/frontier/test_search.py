"""The search for the weakest strength, and replays: a target is met by the same rules as in the audit of a real run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.status import Status
from fedpriv.audit.conditions import conditions
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.statistics import kinds_of_model, listed
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.outcome import Sender, TargetKind
from fedpriv.audit.results.texts import TextFigures, TextOutcome, TextScoreMeans, TextTargetResult
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.errors import FedprivError
from fedpriv.frontier.search import Replayed, measured, search
from fedpriv.models import build_model
from tests.audit.sample_findings import _attack, _attempt, rate
from tests.simulation.small import FEW_STEPS, config, play


def unread_texts(kind: TargetKind) -> TextTargetResult:
    """A target of 8 texts, none of which an attack recovered."""
    figures = TextFigures(
        recall=0.0, precision=0.0, multiset_recall=0.0, multiset_precision=0.0, rouge_l=0.0, exact=rate(0, 8), labels=None,
        named=None, by_frequency=None, messages=8, refused=0, loss_median=None, notes=(), examples=(), cpu_seconds=1.0,
    )  # fmt: skip
    nothing = TextScoreMeans(
        recall=0.0, precision=0.0, multiset_recall=0.0, multiset_precision=0.0, rouge_l=0.0, exact=None, labels=None, named=None
    )
    span = TextOutcome(attack="span", status=Status("resisted"), figures=figures)
    return TextTargetResult(title="texts", kind=kind, round=1, sender=Sender(0), samples=8, outcomes=(span,), baseline=nothing)


def run_with(share: float | None) -> AuditedRun:
    """A run of which an attack recovered that share; ``None``: none was attacked."""
    images = []
    if share is not None:
        images = [_attack("message", "message", 100, [_attempt("analytic", (round(100 * share),) * 3, 100, 0.1)], None)]
    return AuditedRun(
        name="run", run_id="run", method="fedavg", title="", dataset="digits", model="mlp", modalities=("image",), seed=0,
        cost=Cost(bytes_up=0), images=tuple(images),
    )  # fmt: skip


def test_the_least_strength_that_holds_is_searched() -> None:
    target = conditions("recovered<=0.05,membership_auc<=0.6")
    result = search(lambda strength: run_with(0.0 if strength >= 1e-4 else 0.5), (1e-6, 1e-1), target, lambda text: None)
    assert 1e-4 <= result.held[0] < 1.5e-4 and result.held[-1] == 1e-1 and list(result.held) == sorted(result.held)
    assert len(result.tried) == 7
    assert search(lambda strength: run_with(0.0), (1e-6, 1e-1), target, lambda text: None).held == (1e-6, 1e-1)


def test_of_a_share_that_is_kept_the_greatest_is_searched() -> None:
    """Greater is weaker: the search goes from the least share."""
    target = conditions("recovered<=0.05")
    result = search(lambda kept: run_with(0.0 if kept <= 0.1 else 0.5), (0.9, 0.001), target, lambda text: None)
    assert 0.07 < result.held[0] <= 0.1 and result.held[-1] == 0.001


@pytest.mark.parametrize("share", [0.5, None])
def test_a_search_may_find_no_strength(share: float | None) -> None:
    result = search(lambda strength: run_with(share), (1e-6, 1e-1), conditions("recovered<=0.05"), lambda text: None)
    assert not result.held and len(result.tried) == 1


def test_a_strength_under_which_clients_diverge_does_not_hold() -> None:
    def measure(strength: float) -> AuditedRun:
        if strength > 1e-2:
            raise FedprivError("the local update of client 0 in round 1 diverged under this defence")
        return run_with(0.0)

    lines: list[str] = []
    assert not search(measure, (1e-6, 1e-1), conditions("recovered<=0.05"), lines.append).held
    assert "does not hold, as it is not known: the local update of client 0 in round 1 diverged" in lines[0]


def evidence_on_texts(*statistics: str) -> RunRecord:
    """Of a run on texts with one message, of which statistics were sent besides the model."""
    schema = {f"statistic.{name}": ("F32", (2,)) for name in statistics}
    of_model = kinds_of_model(build_model("mlp", (1, 8, 8), 10))
    federation = SimpleNamespace(method=SimpleNamespace(title="FedAvg"))
    folder = SimpleNamespace(path=Path("run"), facts={"run_id": "run", "dataset": "texts"})
    about = SimpleNamespace(called="fedavg", model=SimpleNamespace(name="transformer"), seed=0)
    evidence = SimpleNamespace(
        modalities=("text",), messages=lambda: [(1, 0)], statistics=lambda: listed([schema], of_model), federation=federation,
        folder=folder, config=about,
    )  # fmt: skip
    return cast(RunRecord, evidence)


@pytest.mark.parametrize(("statistics", "holds"), [((), True), (("classes",), True), (("mystery",), False)])
def test_a_replay_on_texts_holds_unless_it_sends_the_unknown(
    statistics: tuple[str, ...], holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.frontier.search.on_texts", lambda *given: [unread_texts("message")])
    monkeypatch.setattr("fedpriv.frontier.search.infer_labels", lambda *given: None)
    monkeypatch.setattr("fedpriv.frontier.search.label_findings", lambda labels: SimpleNamespace(labels=()))
    run = measured(evidence_on_texts(*statistics), AuditOptions(label_shadows=0), ["recovered"], lambda text: None)
    (target,) = conditions("recovered<=0.05", "--target")
    assert target.value(run) == 0.0 and target.holds(run) == holds


def test_dp_sgd_is_replayed_from_a_run_that_trained_in_batches(tmp_path: Path) -> None:
    run = play(tmp_path / "run", "fedavg", **FEW_STEPS, **{"executor.name": "vectorized", "train.rounds": 2}).folder
    private = config("fedavg", **{"privacy.level": "sample", "privacy.target_epsilon": 8.0}).privacy
    replayed = Replayed(run.path, run.config().model_copy(update={"privacy": private}))
    noise = replayed.config.privacy.noise
    assert noise is not None and noise == replayed.federation.config.privacy.noise
    messages = [replayed.message(*sent) for sent in replayed.messages(round=2)]
    assert messages and all(message.first_update for message in messages), "no client has state of the run"
    altered = replayed.attacker.observation(messages[0], ThreatModel()).altered
    assert altered.rescaled and all(variance > 0 for variance in altered.variance.values())
    assert altered.variance.keys() == replayed.attacker.observation(messages[0], ThreatModel()).shared.keys()


def test_views_are_those_of_the_replayed_update(tmp_path: Path) -> None:
    """The run's local update made other crops than the replay, whose images are attacked."""
    options = {"train.rounds": 1, "data.augment": "crop_flip", "data.pixels": "unit"}
    run = play(tmp_path / "run", "fedavg", **FEW_STEPS, **options).folder
    replayed, trained = Replayed(run.path, run.config()), list[Tensor]()
    augment = replayed.federation.augment
    assert augment is not None
    spied = replace(replayed.federation, augment=lambda *given: trained.append(augment(*given)) or trained[-1])
    ((round, client), *_), replayed.federation = replayed.messages(), spied
    replayed.message(round, client)
    augmented = {image.numpy().tobytes() for image in torch.cat(trained)}
    views = replayed.views(round, client, replayed.truth(client).images)
    assert views is not None and {image.numpy().tobytes() for image in views[:, -1]} == augmented
