"""Accuracy that says nothing is not held against anything, and the noise that was added stands on the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedpriv.audit.facts import at_chance, chance, facts, signal_to_noise
from fedpriv.audit.page.render import render_html, render_markdown
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.wire import SignalToNoise
from fedpriv.audit.sentences.overview import audited, cost_in_sentences
from tests.audit.sample_findings import findings, pictures
from tests.simulation.small import FEW_STEPS, play


def test_chance_is_half_only_with_a_constant_answer_a_client(tmp_path: Path) -> None:
    """One model for all cannot know whose two classes it is asked for; a personal one has half of them for nothing."""
    reached = {}
    for method in ("fedavg", "fedper", "fedavg-ft"):
        play(tmp_path / method, method, **{"train.rounds": 1, "data.partition.classes_per_client": 2})
        evidence = RunRecord(tmp_path / method)
        reached[method], samples = chance(evidence)
        assert samples == len(set(torch_list(evidence)))
    assert 0.45 < reached["fedper"] == reached["fedavg-ft"] < 0.62 and reached["fedavg"] < reached["fedper"]


def torch_list(evidence: RunRecord) -> list[int]:
    data, clients = evidence.federation.data, evidence.config.data.clients
    return [i for client in range(clients) for i in data.indices("test", client).tolist()]


def test_kept_messages_and_averaged_rounds_are_facts_of_a_run(tmp_path: Path) -> None:
    play(
        tmp_path / "run",
        "fedavg",
        **FEW_STEPS | {"data.limit": 600, "train.lr": 0.3, "train.rounds": 2, "wire.keep_payloads": [1]},
    )
    record = RunRecord(tmp_path / "run")
    summary = record.folder.summary()
    assert summary is not None
    kept = {int(client) for client in record.store.clients(1)}
    assert len(kept) == 3
    run = facts(record, summary)
    assert run.not_kept == tuple(f"client {client}" for client in range(6) if client not in kept)
    first, last = [line["metrics"]["accuracy"] for line in record.folder.records() if line["round"] > 0]
    assert first != last
    assert (run.cost.averaged_rounds, run.cost.last_round) == (2, last)
    assert run.cost.accuracy == pytest.approx((first + last) / 2)


def test_a_mean_over_rounds_says_so() -> None:
    audit = findings()
    cost = replace(audit.runs[0].cost, accuracy=0.715, averaged_rounds=3, last_round=0.796)
    means = "71.5 % (mean of the last 3 rounds; the last round: 79.6 %)"
    assert f"accuracy {means}" in audited(replace(audit.runs[0], cost=cost))
    page = render_markdown(replace(audit, runs=(replace(audit.runs[0], cost=cost),)))
    assert f"accuracy {means}" in page and f"Accuracy {means}, in the worst tenth" in page
    of_one = replace(audit.runs[0], cost=replace(cost, averaged_rounds=1))
    assert "mean of the last" not in audited(of_one) and "mean of the last" not in render_markdown(replace(audit, runs=(of_one,)))
    other = replace(cost, metric="f1_macro", score=0.6)
    said = audited(replace(audit.runs[0], cost=other))
    assert re.search(r"macro F1 0\.600 \(mean of the last 3 rounds; the last round: 0\.796\), accuracy 71\.5 %$", said), said


def test_at_chance_is_within_the_interval() -> None:
    assert at_chance(0.101, 0.1, 360) and at_chance(0.12, 0.1, 360) and not at_chance(0.15, 0.1, 360)
    assert at_chance(0.52, 0.5, 360) and not at_chance(0.96, 0.5, 360)


def cost(own: bool, other: bool | None, against: str | None = "plain") -> AuditedRun:
    run = findings().runs[1]
    result = replace(run.cost, chance=0.1, at_chance=own, against=against, against_at_chance=other)
    return replace(run, cost=replace(result, accuracy_difference=0.001, bytes_up_ratio=0.5))


@pytest.mark.parametrize(
    ("own", "other", "who"), [(True, True, "both models are"), (True, False, "this model is"), (False, True, "that model is")]
)
def test_nothing_follows_from_a_model_at_chance(own: bool, other: bool, who: str) -> None:
    text = cost_in_sentences(cost(own, other))
    assert f"{who} at chance level, so the cost in accuracy cannot be determined; upload 0.50 times as large" in text
    assert "percentage points" not in text
    assert ("within its 95 % interval, its accuracy is no better than a constant answer's (10.0 %)" in text) == own


def test_what_a_defence_cost_is_said_of_models_that_learned() -> None:
    assert cost_in_sentences(cost(False, False)).startswith(
        "Against the undefended run plain: accuracy +0.1 percentage points, upload 0.50"
    )
    assert "not known" in cost_in_sentences(cost(False, None, against=None))


def test_the_noise_of_each_layer_is_on_the_page() -> None:
    records = [{"metrics": {"snr_db/fc1": db, "accuracy": 0.1}} for db in (-20.0, -12.0, -10.0)] + [{"metrics": {}}]
    assert signal_to_noise(records) == (SignalToNoise("fc1", -20.0, -12.0, 3),)
    audit = findings()
    plain, defended, *others = audit.runs
    cost = replace(defended.cost, at_chance=True, against_at_chance=True)
    audit = replace(audit, runs=(plain, replace(defended, snr=signal_to_noise(records), cost=cost), *others))
    for page in (render_html(audit, pictures()), render_markdown(audit).replace("\\", "")):
        assert "signal-to-noise" in page and "-20.0" in page and "-12.0" in page
        assert "both models are at chance" in page and "2.3 percentage points" not in page
