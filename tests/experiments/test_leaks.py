"""What an audit found is stored with a run's result, and is a table of the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_results import BASE, play, write_result, write_yaml

import fedpriv
from fedpriv.attacks.core.status import Status
from fedpriv.attacks.scoring.operating_points import Area, OperatingPoints
from fedpriv.audit.judge.images import best_of
from fedpriv.audit.results.audit import Answer, Audit, AuditedRun
from fedpriv.audit.results.cost import Cost
from fedpriv.audit.results.images import Baseline, ImageTarget
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Interval, Sender, TargetKind
from fedpriv.audit.results.stored import from_json, to_json
from fedpriv.experiments import Result, read, report, run, runner
from fedpriv.experiments.leaks import leakage
from fedpriv.experiments.spec import Experiment
from tests.audit.sample_findings import _attack, _attempt, findings, rate
from tests.frontier.test_search import unread_texts

SHORT = BASE | {"train": {"rounds": 1, "participation": 0.5}, "eval": {"every": 1, "last": 1}}
FIGURES: dict[str, Any] = {
    "answer": "Members were identified",
    "messages": [
        {"kind": "message", "round": 1, "client": 0, "samples": 72, "recovered": 13, "attack": "analytic"},
        {"kind": "message", "round": 20, "client": 3, "samples": 70, "recovered": None, "attack": None},
    ],
    "singles": {"kind": "single image", "round": 1, "client": 0, "samples": 24, "recovered": 0, "attack": "known-head"},
    "members": {"attack": "LiRA", "auc": 0.804, "low": 0.71, "high": 0.86, "of": 12},
    "members_by_round": [
        {"round": 1, "attack": "LiRA", "auc": 0.804, "low": 0.71, "high": 0.86, "of": 12},
        {"round": 20, "attack": "row distance", "auc": 0.52, "low": 0.41, "high": 0.63, "of": 12},
    ],
    "classes": {"exact": 2, "of": 6},
    "classes_by_shadows": {"exact": 0.666667, "clients": 3, "f1": 0.5, "majority_f1": 0.1, "all_f1": 0.3},
    "options": {"messages": 3},
}


def with_audit(path: Path, figures: dict[str, Any]) -> None:
    replace(Result.load(path), leakage=figures).write(path)


def test_the_report_has_a_row_for_each_audited_run(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "paper", runs={"fedavg": {"method": {"name": "fedavg"}}}, seeds=[0, 1, 2])
    results = [write_result(path, "fedavg", seed, {10: 0.5, 20: 0.7}) for seed in (0, 1, 2)]
    data = report(path)
    assert data["experiments"][0]["leakage"] == {} and "leak" not in Path(data["report"]).read_text()
    with_audit(results[0], FIGURES)
    nothing = {"members": None, "members_by_round": [], "classes": None, "classes_by_shadows": None, "singles": None}
    with_audit(results[2], FIGURES | nothing | {"answer": "Leakage not known", "messages": FIGURES["messages"][1:]})
    data = report(path)
    assert data["experiments"][0]["leakage"]["fedavg-s0"] == FIGURES
    text = Path(data["report"]).read_text()
    assert (
        "| method | seed | answer | round 1 | round 20 | one sample each | members | by round | classes by rule | by shadows |"
        in text
    )
    members = "0.80 (0.71 to 0.86) | 1: 0.80, 20: 0.52"
    row = f"| fedavg | 0 | Members were identified | 13 of 72 | – | 0 of 24 | {members} | 2 of 6 | 2 of 3 |"
    assert row in text
    assert "| fedavg | 2 | Leakage not known | – | – | – | – | – | – | – |" in text and "| fedavg | 1 | " not in text


def with_report(folder: Path, text: str) -> None:
    """Make the folder that of an audited run, with this for the audit's findings."""
    if not (folder / "run.json").exists():
        (folder / "run.json").write_text('{"run_id": "run"}')
    (folder / "audit").mkdir()
    (folder / "audit" / "audit.json").write_text(text)


def test_a_run_without_an_audit_has_nothing(tmp_path: Path) -> None:
    assert leakage(tmp_path / "no folder") == leakage(tmp_path) == {}
    with_report(tmp_path, json.dumps(to_json(findings())))
    (tmp_path / "run.json").write_text('{"run_id": "run"}')
    assert leakage(tmp_path) == {}


def audited(tmp_path: Path, **findings_of_run: Any) -> dict[str, Any]:
    """The figures of a run with these findings and no others."""
    run = AuditedRun(
        name="run", run_id="run", method="fedavg", title="", dataset="digits", model="mlp", modalities=("image",), seed=0,
        cost=Cost(bytes_up=1), answer=Answer("a", 0, "a sentence"), **findings_of_run,
    )  # fmt: skip
    with_report(tmp_path, json.dumps(to_json(replace(findings(), runs=(run,)))))
    return leakage(tmp_path)


def of_images(kind: TargetKind, successes: int | None, n: int) -> ImageTarget:
    """What an audit found in a message, or in single images; ``None``: no attack counts."""
    tried = [] if successes is None else [_attempt("analytic", (successes,) * 3, n, 0.1)]
    return replace(_attack("target", kind, n, tried, None), baselines={})


def test_images_and_texts_of_a_message_are_shown(tmp_path: Path) -> None:
    """The images and the texts of a client's pairs are two targets in one message."""
    figures = audited(tmp_path, images=(of_images("message", 14, 72),), texts=(unread_texts("message"),))
    path = write_yaml(tmp_path / "paper", runs={"fedavg": {"method": {"name": "fedavg"}}}, seeds=[0])
    with_audit(write_result(path, "fedavg", 0, {10: 0.5, 20: 0.7}), figures)
    assert "| images: 14 of 72; texts: 0 of 8 |" in Path(report(path)["report"]).read_text()
    two = (of_images("message", 14, 72), replace(of_images("message", 3, 72), sender=Sender(1)))
    (tmp_path / "two").mkdir()
    with_audit(write_result(path, "fedavg", 0, {10: 0.5, 20: 0.7}), audited(tmp_path / "two", images=two))
    assert "| 14 of 72, 3 of 72 |" in Path(report(path)["report"]).read_text()


@pytest.mark.parametrize("update", [1, -1])
@pytest.mark.parametrize(("first", "other", "shown"), [(0, None, None), (0, 1, 1), (None, 1, 1), (0, 0, 0)])
def test_of_single_samples_unknown_is_worse_than_nothing(
    tmp_path: Path, first: int | None, other: int | None, shown: int | None, update: int
) -> None:
    targets = tuple(of_images("single image", successes, 10) for successes in (first, other))[::update]
    assert audited(tmp_path, images=targets)["singles"]["recovered"] == shown


def separated(round: int, attack: str, auc: float, low: float, high: float) -> MembershipOutcome:
    """A membership attack with an area and its interval."""
    points = OperatingPoints(100, 100, Area(auc, low, high), ((0.0, 0.0), (1.0, 1.0)), {}, ())
    return MembershipOutcome(
        attack=attack, status=Status("resisted"), round=round, points=points, together=Interval(low, high, 2)
    )


def test_a_membership_attack_that_is_read_in_reverse_counts(tmp_path: Path) -> None:
    """Members surely have lower scores: an AUC of 0.15 reveals as much as one of 0.85."""
    spans = {"LiRA": (0.51, 0.45, 0.57), "row distance": (0.15, 0.05, 0.3)}
    membership = tuple(separated(1, attack, *span) for attack, span in spans.items())
    figures = audited(tmp_path, membership=membership)
    assert figures["members"] == {"attack": "row distance", "auc": 0.85, "low": 0.7, "high": 0.95, "of": 2, "reversed": True}
    path = write_yaml(tmp_path / "paper", runs={"fedavg": {"method": {"name": "fedavg"}}}, seeds=[0])
    with_audit(write_result(path, "fedavg", 0, {10: 0.5, 20: 0.7}), figures)
    assert "| 0.85 (0.70 to 0.95; reversed) | 1: 0.85 reversed |" in Path(report(path)["report"]).read_text()


@pytest.mark.parametrize("report", ['{"runs": [', '{"runs": {"attacks": 1}}', '{"runs": [{"run_id": "run", "attacks": []}]}'])
def test_a_damaged_audit_is_named_and_others_are_collected(report: str, tmp_path: Path) -> None:
    experiment = read(write_yaml(tmp_path / "paper", base=SHORT, runs={"fedavg": {"method": {"name": "fedavg"}}}, seeds=[0, 1]))
    for seed in (0, 1):
        play(experiment, tmp_path / "runs", "fedavg", seed)
    folder = experiment.run_dir(tmp_path / "runs", "fedavg", 0)
    with_report(folder, report.replace('"run"', f'"{folder.name}"'))
    damaged, whole = run(experiment, tmp_path / "runs", workers=0)
    assert (damaged.state, whole.state) == ("failed", "collected")
    assert damaged.error is not None and str(folder / "audit" / "audit.json") in damaged.error


def test_more_digits_of_small_numbers_are_no_new_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_yaml(tmp_path / "paper", runs={"fedavg": {"method": {"name": "fedavg"}}})
    file = write_result(path, "fedavg", 0, {10: 0.5, 20: 0.7})
    with_audit(file, {"answer": "a", "options": {"delta": 0.0, "share": 0.012346}})  # with 6 decimals
    before = file.read_bytes()
    monkeypatch.setattr(runner, "leakage", lambda folder: {"answer": "a", "options": {"delta": 1e-7, "share": 0.0123457}})
    assert [outcome.state for outcome in run(read(path), tmp_path / "runs", workers=0)] == [
        "done"
    ] and file.read_bytes() == before


def test_of_an_attack_on_some_of_the_samples_those_count(tmp_path: Path) -> None:
    target = _attack("target", "single image", 72, [_attempt("dlg", (5, 5, 5), 6, 0.1)], None)
    singles = audited(tmp_path, images=(target,))["singles"]
    assert (singles["recovered"], singles["samples"], singles["attack"]) == (5, 6, "dlg")


def test_the_best_membership_attack_of_each_round_is_stored(tmp_path: Path) -> None:
    tried = ((9, "LiRA", 0.6), (1, "LiRA", 0.7), (1, "loss threshold", 0.8))
    outcomes = [separated(number, attack, auc, auc - 0.1, auc + 0.1) for number, attack, auc in tried]
    refused = replace(separated(5, "LiRA", 0.5, 0.4, 0.6), points=None, together=None)
    figures = audited(tmp_path, membership=(*outcomes, refused))
    assert [(best["round"], best["attack"], best["auc"]) for best in figures["members_by_round"]] == [
        (1, "loss threshold", 0.8),
        (9, "LiRA", 0.6),
    ]
    assert figures["members"]["auc"] == 0.8


def test_copies_of_public_images_stand_beside_the_recovered(tmp_path: Path) -> None:
    def looked_at(round: int, copies: int) -> ImageTarget:
        success = {"0.01": rate(copies, 600), "0.001": rate(0, 600), "0.0001": rate(0, 600)}
        target = _attack("target", "message", 600, [_attempt("analytic", (13, 4, 2), 600, 0.1)], None)
        return replace(target, round=round, baselines={"nearest public": Baseline(0.02, success)})

    figures = audited(tmp_path, images=(looked_at(1, 101), looked_at(2, 12)))
    path = write_yaml(tmp_path / "paper", runs={"fedavg": {"method": {"name": "fedavg"}}}, seeds=[0])
    with_audit(write_result(path, "fedavg", 0, {10: 0.5, 20: 0.7}), figures)
    text = Path(report(path)["report"]).read_text()
    assert "| 13 of 600 (copies 101; 4 below 0.001) | 13 of 600 (copies 12) |" in text


def stored(experiment: Experiment) -> dict[str, Any]:
    return Result.load(experiment.result_file("fedavg", 0)).leakage


@pytest.mark.slow
def test_an_audit_after_the_run_is_stored_with_its_result(tmp_path: Path) -> None:
    path, runs_dir = (
        write_yaml(tmp_path / "paper", base=SHORT, runs={"fedavg": {"method": {"name": "fedavg"}}}),
        tmp_path / "runs",
    )
    experiment = read(path)
    play(experiment, runs_dir, "fedavg")
    assert [outcome.state for outcome in run(experiment, runs_dir, workers=0)] == ["collected"]
    assert stored(experiment) == {} and "leakage" not in experiment.result_file("fedavg", 0).read_text()

    folder = experiment.run_dir(runs_dir, "fedavg", 0)
    fedpriv.audit(folder, messages=1, label_shadows=0, membership_shadows=0, singles=1)
    assert [outcome.state for outcome in run(experiment, runs_dir, workers=0)] == ["collected"]
    assert [outcome.state for outcome in run(experiment, runs_dir, workers=0)] == ["done"]

    (audit,) = from_json(Audit, json.loads((folder / "audit" / "audit.json").read_text())).runs
    figures = stored(experiment)
    assert figures["answer"] == audit.concluded.words
    (message,) = figures["messages"]
    sent = next(target for target in audit.images if target.kind == "message")
    assert (message["round"], message["samples"]) == (1, sent.samples)
    best = best_of(audit, "single image")
    assert best is not None
    singles = figures["singles"]
    assert singles["recovered"] == best.rate.successes == best.rate.n == singles["samples"]
    assert figures["members"] is None and figures["classes_by_shadows"] is None
    assert figures["classes"] == {"exact": sum(result.exact for result in audit.labels), "of": len(audit.labels)}

    experiment.result_file("fedavg", 0).unlink()
    assert [outcome.state for outcome in run(experiment, runs_dir, workers=0)] == ["collected"]
    assert stored(experiment) == figures
