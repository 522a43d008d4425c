"""Every rule for labels is tried on every message, and the best over all of them is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedpriv
from fedpriv.attacks.api.label_rules import RULES, STATED
from fedpriv.attacks.labels.stated import LabelSet
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.judge.classes import rate_of_rules, share_by_rule
from fedpriv.audit.judge.measures import metrics
from fedpriv.audit.membership.label_leaks import Labels, infer_labels, label_findings
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.labels import LabelResult
from fedpriv.audit.results.outcome import Sender
from fedpriv.audit.sentences.clients import labels as sentences_of
from tests.simulation.small import play

SIGN = "last layer: sign of the bias gradient"
EMBEDDINGS = "last layer: class-wise embeddings"
FEDSGD: dict[str, Any] = {
    "train.rounds": 1,
    "train.local_steps": 1,
    "train.batch_size": 500,
    "train.momentum": 0.0,
    "train.participation": 1.0,
    "data.partition.name": "dirichlet",
    "data.partition.alpha": 0.3,
    "wire.keep_payloads": "all",
}


def shown(present: list[int], counts: list[int] | None = None, classes: int = 3) -> LabelSet:
    return LabelSet(torch.tensor([c in present for c in range(classes)]), None if counts is None else torch.tensor(counts))


def test_best_rule_is_that_over_all_messages() -> None:
    """The sign is right once where the embeddings are wrong; counts come from another rule still."""
    public = "last layer: least squares on public samples"
    true = torch.tensor([3, 1, 0])
    messages = [
        Labels(
            1, 0, Sender(0), {SIGN: shown([0]), EMBEDDINGS: shown([0, 1], [2, 2, 0]), public: shown([0, 1, 2], [3, 1, 0])}, true
        ),
        Labels(
            1, 1, Sender(1), {SIGN: shown([0]), EMBEDDINGS: shown([0, 1], [2, 2, 0]), public: shown([0, 1, 2], [3, 1, 0])}, true
        ),
        Labels(
            1, 2, Sender(2), {SIGN: shown([0, 1]), EMBEDDINGS: shown([0], [4, 0, 0]), public: shown([0, 1, 2], [3, 1, 0])}, true
        ),
        Labels(1, 3, Sender(3), {SIGN: shown([0, 1])}, true, {EMBEDDINGS: "no bias", public: "no bias"}),
    ]
    results = label_findings(messages)
    assert [result.rule for result in results.labels] == [EMBEDDINGS] * 3 + [SIGN], "where the best does not apply, the next"
    assert [result.exact for result in results.labels] == [True, True, False, True]
    assert [result.count_rule for result in results.labels] == [public] * 3 + [None]
    assert [result.count_accuracy for result in results.labels] == [1.0] * 3 + [None]
    rows = {rule.rule: rule for rule in results.rules}
    assert [name for name, item in rows.items() if item.best] == [EMBEDDINGS]
    assert [name for name, item in rows.items() if item.best_counts] == [public]
    assert rows[SIGN].exact == wilson(2, 4) and rows[EMBEDDINGS].exact == wilson(2, 3)
    assert rows[EMBEDDINGS].not_applicable == "no bias"
    assert rows[EMBEDDINGS].count_accuracy == pytest.approx(0.75) and rows[public].count_accuracy == 1.0
    together = rows[EMBEDDINGS].together
    assert together is not None and together.of == 3 and not any(result.stated for result in results.labels)


def test_named_classes_are_stated_and_others_not_known() -> None:
    true, both = torch.tensor([3, 1, 0]), {STATED: shown([0, 1]), f"variate, {SIGN}": shown([0, 1])}
    named, silent = Labels(1, 0, Sender(0), both, true), Labels(1, 1, Sender(1), {}, true, {STATED: "none sent", SIGN: "no bias"})
    results, unknown = label_findings([named, silent]).labels
    assert results.stated and results.exact and results.rules == 2 and results.note is None
    assert not unknown.stated and unknown.rule is None and unknown.inferred == () and unknown.note == "none sent; no bias"


def test_intervals_and_guessing_account_for_the_number_of_rules() -> None:
    alone, of_five = rate_of_rules(7, 10, 1), rate_of_rules(7, 10, 5)
    assert (alone.low, alone.high) == pytest.approx((0.3968, 0.8922), abs=1e-4)  # Wilson (1927), 95 %
    assert (of_five.low, of_five.high) == pytest.approx((0.3200, 0.9204), abs=1e-3)  # at 99 %
    item = LabelResult(
        round=1,
        sender=Sender(0),
        rule="a rule",
        stated=False,
        classes=2,
        true=(0,),
        inferred=(0,),
        count_rule=None,
        count_accuracy=None,
        count_guess=0.5,
        rules=1,
        guess=0.35,
    )
    certain = [replace(item, sender=Sender(client)) for client in range(4)]
    result = [*certain[:3], replace(certain[3], inferred=(1,))]
    # By guessing three or more of four: 4 * 0.35^3 * 0.65 + 0.35^4 = 0.126; four of four: 0.015.
    assert share_by_rule(certain) == 1.0 and share_by_rule(result) == 0.0, "all of four would be more than guessing"
    by_five = [replace(row, rules=5) for row in certain]
    assert share_by_rule(by_five) == 1.0, "too few to exclude guessing by the best of five, and none found otherwise"
    assert "the best of 5 rules, 95 % interval for all of them" in sentences_of(by_five)[0]


@pytest.fixture(scope="module")
def fedsgd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fedsgd") / "run"
    play(folder, "fedavg", **FEDSGD)
    return folder


def test_counts_find_the_classes_of_fedsgd_that_the_sign_misses(fedsgd: Path) -> None:
    """Ten clients of skewed classes: a class of few samples has a positive bias gradient, and its count is found all the same."""
    evidence = RunRecord(fedsgd)
    results = label_findings([infer_labels(evidence, *message) for message in evidence.messages()])
    rows = {rule.rule: rule for rule in results.rules}
    assert rows.keys() == RULES.keys() and rows[STATED].exact is None
    best, by_sign = next(rule for rule in results.rules if rule.best).exact, rows[SIGN].exact
    assert best is not None and by_sign is not None and best.successes >= 7 > by_sign.successes and best.n == 10
    for row, client in zip(results.labels, range(10), strict=True):
        held = tuple(sorted(set(evidence.labels(client).tolist())))
        assert row.true == held and row.exact == (row.inferred == held)
    assert sum(result.exact for result in results.labels) == best.successes
    assert sum(result.count_accuracy or 0.0 for result in results.labels) / 10 >= 0.95
    assert all(result.count_guess < 0.8 for result in results.labels)


@pytest.mark.slow
def test_an_audit_and_its_conditions_read_the_best_rule(fedsgd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.audit.images.reconstructions.suited", lambda masked: [])
    report = fedpriv.audit(fedsgd, messages=1, label_shadows=0, membership_shadows=0, singles=1, budget=1e-6)
    (run,) = report.runs
    best = next(rule for rule in run.label_rules if rule.best)
    assert best.exact is not None and (report.met("labels>0.5") or "").endswith(f"labels is {best.exact.share:.3g} (labels>0.5)")
    text, tried = " ".join(report.verdict), sum(rule.exact is not None for rule in run.label_rules)
    assert f"from {best.exact.successes} of 10 messages ({best.rule}; the best of {tried} rules" in text
    assert "equal counts of all classes would be right for" in text
    values = metrics(run)
    assert values["labels_exact"] == best.exact.share and values["label_counts"] >= 0.95


@pytest.mark.parametrize("public", [False, True])
def test_an_update_of_a_batch_with_each_class_three_times(public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.audit.images.reconstructions.suited", lambda masked: [])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))
    images, labels = torch.rand(30, 1, 8, 8), torch.arange(10).repeat(3)
    gradient = torch.autograd.grad(F.cross_entropy(net(images), labels), list(net.parameters()))
    own = (torch.rand(40, 1, 8, 8), torch.arange(10).repeat(4)) if public else None
    report = fedpriv.audit_update(net, gradient, (images, labels), public=own)
    (result,) = report.runs[0].labels
    assert result.exact and result.inferred == tuple(range(10)) and (result.count_accuracy or 0.0) >= 0.9
    assert result.count_guess == 1.0, "equal counts are right by chance"
    rows = {rule.rule: rule for rule in report.runs[0].label_rules}
    assert (rows["last layer: least squares on public samples"].exact is not None) == public
