"""Attacks on clients whose labels are numbers: what they find, and what says that it does not apply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import rankdata

import fedpriv
from fedpriv.attacks.core.columns import made_up_rows
from fedpriv.attacks.core.labels import groups, label_loss, targets
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.per_sample import LabelledSamples, batch_gradient, per_sample
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from fedpriv.attacks.inference.membership import confidence
from fedpriv.attacks.lab.explained import simulated
from fedpriv.attacks.lab.nets import observe, perceptron
from fedpriv.attacks.lab.setting import EXAMPLE, RowSetting
from fedpriv.attacks.rows.closed_form import ClosedForm
from fedpriv.attacks.rows.counts import label_counts
from fedpriv.attacks.rows.tableak import TabLeak
from fedpriv.audit.results.audit import AuditedRun
from tests.simulation.small import play


def message(rows: torch.Tensor, labels: torch.Tensor, seed: int = 0) -> tuple[Observation, torch.nn.Module]:
    """The gradient of the squared error of a net with one output."""
    net = perceptron(seed, 1, EXAMPLE.width, 1, 1, 64)
    return replace(observe(net, rows, labels), encoding=EXAMPLE, numbers=True), net


def drawn(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return made_up_rows(EXAMPLE, count, draw), torch.randn(count, generator=draw)


def test_the_loss_is_by_the_kind_of_labels() -> None:
    outputs, numbers = torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 5.0])
    assert label_loss(outputs, numbers).item() == 2.5
    logits, classes = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    by_class = torch.nn.functional.cross_entropy(logits, classes)
    assert label_loss(logits, classes) == by_class
    assert label_loss(logits, targets(classes, 3, torch.float32)).item() == pytest.approx(by_class.item())
    assert targets(numbers, 1, torch.float64).tolist() == [2, 5]
    assert groups(numbers).tolist() == [0, 0] and groups(classes) is classes


def test_a_row_is_read_off_in_closed_form_whatever_its_number() -> None:
    """The positive control; of a random gradient, the negative one, nothing is a row."""
    rows, labels = drawn(3)
    for row, label in zip(rows.split(1), labels.split(1), strict=True):
        found = ClosedForm().run([message(row, label)[0]])
        assert found.raw[0] == pytest.approx(row[0], abs=1e-3) and found.labels.tolist() == [-1]
    seen, _ = message(*drawn(1))
    draw = torch.Generator().manual_seed(5)
    noise = replace(seen, shared={name: torch.randn(t.shape, generator=draw) for name, t in seen.shared.items()})
    assert float(ClosedForm().run([noise]).loss) == 1


def test_controls_of_rows_are_of_numbers_too() -> None:
    setting = RowSetting(numbers=True, classes=1)
    rows, labels = setting.truth(0)
    seen = setting.observations(rows, labels, 0)
    assert labels.is_floating_point() and all(each.numbers for each in seen)
    assert ClosedForm().run(seen).raw == pytest.approx(rows, abs=1e-3)


def test_a_simulated_client_sends_what_a_client_does() -> None:
    rows, labels = drawn(4)
    seen, net = message(rows, labels)
    again = simulated(seen, {name: tensor.detach() for name, tensor in net.state_dict().items()}, rows, labels)
    assert all(torch.allclose(again[name], tensor, atol=1e-6) for name, tensor in seen.shared.items())


def test_what_needs_classes_says_so() -> None:
    seen, _ = message(*drawn(2))
    for mount in (lambda: TabLeak.check(seen), lambda: label_counts(seen, drawn(2)[0])):
        with pytest.raises(Inapplicable, match="the attack needs labels that are classes, and these are numbers"):
            mount()


def test_gradients_of_samples_add_up_to_the_batch_s() -> None:
    rows, labels = drawn(5)
    _, net = message(rows, labels)
    samples = LabelledSamples({"": rows}, labels, lambda parts: parts[""])
    weights, names = dict(net.state_dict()), [name for name, _ in net.named_parameters()]
    (single,), whole = per_sample(net, weights, names, samples, 2**24), batch_gradient(net, weights, names, samples)
    assert all(torch.allclose(single[name].mean(0), whole[name], atol=1e-6) for name in names)


def area(scores: np.ndarray, members: int) -> float:
    """AUC of the first ``members`` scores over the others."""
    ranks, others = rankdata(scores), len(scores) - members
    return float((ranks[:members].sum() - members * (members + 1) / 2) / (members * others))


def test_a_regression_on_gradients_finds_members() -> None:
    """Of one step on ten rows; not in the message of a client with other rows."""
    (rows, labels), (public, of_public), other = drawn(20), drawn(12, 1), drawn(10, 2)
    seen, net = message(rows[:10], labels[:10])
    control, _ = message(*other)
    candidates, own = (LabelledSamples({"": x}, y, lambda parts: parts[""]) for x, y in ((rows, labels), (public, of_public)))
    weights = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    of_message, of_control = gradient_regression([seen, control], candidates, own, [weights])
    assert area(of_message, 10) > 0.9 and 0.1 < area(of_control, 10) < 0.9


def test_a_smaller_error_is_a_higher_confidence() -> None:
    outputs, labels = torch.tensor([[1.0], [4.0], [2.0]]), torch.tensor([1.5, 1.0, 2.0])
    assert confidence(outputs, labels).tolist() == [-0.5, -3.0, 0.0]


ONE_STEP: dict[str, Any] = {
    "train.rounds": 1, "train.batch_size": 1000, "train.momentum": 0.0, "train.weight_decay": 0.0, "data.clients": 12,
    "train.participation": 1.0, "wire.keep_payloads": "all", "model.projection": 8, "data.label": "cost",
}  # fmt: skip


@pytest.mark.slow
def test_an_audit_of_numbers(tmp_path: Path) -> None:
    """Rows and members are found; classes are not looked for, and the page says why."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(120, 4)).round(3), columns=list("abcd"))
    frame["sex"] = draw.choice(["f", "m"], len(frame))
    frame["cost"] = (1000 + 300 * frame["a"] - 200 * frame["b"] + draw.normal(size=len(frame)) * 50).round(2)
    frame.to_csv(tmp_path / "costs.csv", index=False)
    play(tmp_path / "run", "fedavg", **ONE_STEP, **{"data.name": str(tmp_path / "costs.csv")})
    report = fedpriv.audit(tmp_path / "run", messages=1, membership_shadows=4)
    run: AuditedRun = report.runs[0]
    single = next(target for target in run.rows if target.kind == "single row")
    closed = next(outcome for outcome in single.outcomes if outcome.attack == "closed-form")
    assert closed.figures is not None and closed.figures.rows.share == 1
    assert not run.labels and run.shadow_labels is None and str(run.not_run["classes"]) == "labels are numbers, and no classes"
    regression = next(attack for attack in run.membership if attack.attack == "gradient regression")
    assert regression.points is not None and regression.points.auc.low > 0.5
    assert run.cost.metric == "rmse" and run.cost.accuracy is None and run.cost.ranked is not None
    page = (tmp_path / "run" / "audit" / "audit.md").read_text(encoding="utf-8")
    assert "RMSE" in page and "inference of classes (labels are numbers, and no classes)" in page
    assert "tableak on real messages (" in page and "needs labels that are classes" in page
