"""Gradients that a client's earlier local updates correct (SCAFFOLD, FedDyn): undone where messages were kept, and else no
evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.attack import image_attack
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.status import Status
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.inference.shadow import ShadowReport
from fedpriv.attacks.scoring.operating_points import Area, OperatingPoints
from fedpriv.audit.conditions import conditions
from fedpriv.audit.judge.classes import limit_of_shadows
from fedpriv.audit.membership import other_clients, rounds
from fedpriv.audit.membership.candidates import candidates
from fedpriv.audit.membership.label_leaks import infer_labels, label_findings, shadow_labels
from fedpriv.audit.record import statistics
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.earlier_updates import CONTINUED, CORRECTED, keeps_state, plain_change
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import single_samples
from fedpriv.audit.results.labels import ShadowLabels
from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Interval
from fedpriv.interfaces import Learner, LocalUpdate
from fedpriv.objectives.cross_entropy import CrossEntropy
from tests.audit import built
from tests.audit.test_statistics import ONE_STEP, evidence, gradient_of_the_truth

ALL = {"train.participation": 1.0, "data.clients": 4, "wire.keep_payloads": "all"}


def cosine(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    one, other = (torch.cat([tensors[name].flatten() for name in second]) for tensors in (first, second))
    return float(torch.cosine_similarity(one, other, dim=0))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("scaffold", {"train.rounds": 3}),
        ("fedpvr", {"train.rounds": 2}),
        ("feddyn", {"train.rounds": 3, "method.alpha": 0.5}),
        ("feddyn", {"train.rounds": 2, "method.alpha": 0.5, "method.scale_alpha": True}),
    ],
)
def test_what_is_left_is_the_gradient_of_the_truth(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    """One step a local update, in the last round, where the corrections are about as large as the gradients."""
    found = evidence(tmp_path / "run", method, **ONE_STEP, **ALL, **options)
    round, client = found.messages()[-1]
    message = found.message(round, client)
    plain = plain_change(found, message)
    assert not plain.uncorrected and (plain.open is None) == (method != "feddyn"), "FedDyn clips gradients, here none"
    expected, train, corrected = gradient_of_the_truth(found, round, client), found.config.train, 0.0
    for name, gradient in expected.items():
        decay = train.weight_decay if gradient.ndim > 1 else train.weight_decay_bias
        step = -train.lr * (gradient + decay * message.received[name])
        torch.testing.assert_close(plain.of[name], step, rtol=1e-3, atol=1e-6)
        corrected += float((message.uploaded[name] - message.received[name] - step).norm())
    assert corrected > 1e-3, "without undoing anything it would not be"


def test_several_steps_with_momentum_are_undone_too(tmp_path: Path) -> None:
    """FedAvg's change from the same weights is all but the same: only the path of the weights differs."""
    steps = {"train.lr": 1e-3, "train.momentum": 0.5, "train.local_epochs": 2, "train.batch_size": 20, "train.rounds": 2}
    found = evidence(tmp_path / "run", "scaffold", **steps, **ALL)
    message = found.message(2, 1)
    seen = found.attacker.observation(message, ThreatModel())
    assert seen.control_differences == () and seen.schedule is not None and seen.schedule.steps > 2
    expected, mean = gradient_of_the_truth(found, 2, 1), as_gradient(seen).shared
    by_name = {cut.split(".", 1)[1].replace("_", ".", 1): tensor for cut, tensor in mean.items()}
    undone = {name: by_name[name] for name in expected}
    raw = {name: message.received[name] - message.uploaded[name] for name in expected}
    assert cosine(undone, expected) > 0.99 > cosine(raw, expected) + 0.05


def test_the_rule_for_classes_reads_what_is_left(tmp_path: Path) -> None:
    found = evidence(tmp_path / "run", "scaffold", **{**ALL, "train.rounds": 4, "data.clients": 5})
    said = label_findings([infer_labels(found, *message) for message in found.messages()]).labels
    assert len(said) == 20 and all(one.exact and one.limit is None for one in said)
    assert all((one.rule or "").startswith("last layer") for one in said), "it shows counts, too"


def test_where_earlier_messages_were_not_kept_a_failure_is_no_evidence(tmp_path: Path) -> None:
    found = evidence(tmp_path / "run", "scaffold", **{**ALL, "wire.keep_payloads": [4], "train.rounds": 4, "data.clients": 5})
    said = label_findings([infer_labels(found, *message) for message in found.messages()]).labels
    for one in said:
        assert one.rule is None and not one.exact and one.note is not None and one.limit is not None
        assert one.note.startswith(one.limit) and CORRECTED in one.limit and "--keep-payloads all" in one.limit
    (clause,) = found.attacker.observation(found.message(*found.messages()[0]), ThreatModel()).control_differences
    assert clause == said[0].limit
    run = built.run(labels=said, shadow_labels=of_shadows(later=0))  # whose clients had no earlier local update either
    (target,), (alarm,) = conditions("labels<=0.5", "--target"), conditions("labels>=0.5")
    assert not target.holds(run) and CORRECTED in str(alarm.met(run))


@pytest.mark.parametrize(("optimizer", "decay"), [("adamw", 0.05), ("sgd", 0.05)])
def test_a_variate_loses_the_decay_that_is_in_it(tmp_path: Path, optimizer: str, decay: float) -> None:
    steps = {"train.optimizer": optimizer, "train.weight_decay": decay, "train.rounds": 1, "train.lr": 1e-3}
    found = evidence(tmp_path / "run", "scaffold", **{**ALL, **steps})
    (one, *_), truth = single_samples(found, 1, 0, 2), found.truth(0)
    seen = statistics.as_gradient(found, one, "variate", ThreatModel())
    image = image_attack("analytic")().run([seen]).images[0]
    torch.testing.assert_close(image, truth.images[0], rtol=0, atol=1e-3)


def test_approximate_corrections_count_hits_and_misses(tmp_path: Path) -> None:
    """What clipping left of FedDyn's is not known, so that a miss is no evidence; but it is no reason to count hits alone."""
    kept = {**ALL, "data.clients": 6, "train.rounds": 3, "method.alpha": 0.1}
    found = evidence(tmp_path / "run", "feddyn", **kept)
    said = label_findings([infer_labels(found, *message) for message in found.messages()]).labels
    assert all(one.rule for one in said) and sum(one.exact for one in said) > 15
    assert [one.limit is None for one in said] == [True] * 6 + [False] * 12


def test_members_behind_corrected_steps_are_not_known(tmp_path: Path) -> None:
    """The server's shadows have no earlier local update, and do not show what an attack with the right ones would."""
    said = dict[str, list[int]]()
    for method in ("scaffold", "fedavg"):
        found = evidence(tmp_path / method, method, **{**ALL, "train.rounds": 2})
        said[method] = rounds._corrected(found, [1, 2])
    assert said == {"scaffold": [2], "fedavg": []} and rounds._corrected(RunRecord(tmp_path / "scaffold"), [1]) == []
    limit = rounds._limit(said["scaffold"])
    assert rounds._limit([]) is None and str(limit).startswith("in round 2 the clients' steps had a term")
    points = OperatingPoints(400, 400, Area(0.5, 0.45, 0.55), (), {}, ())
    row = MembershipOutcome(attack="LiRA", status=Status("resisted"), round=2, points=points, together=Interval(0.45, 0.55, 1))
    run = built.run(membership=(row,), membership_limit=limit)
    (target,) = conditions("membership_auc<=0.6", "--target")
    assert not target.holds(run) and target.holds(replace(run, membership_limit=None))


@pytest.mark.parametrize(("momentum", "goes_on"), [(0.5, True), (0.0, False)])
def test_a_kept_optimiser_is_not_taken_for_one_that_began_anew(tmp_path: Path, momentum: float, goes_on: bool) -> None:
    """In the first round it did begin anew, and without momentum there is nothing to keep."""
    options = {**ALL, "train.rounds": 2, "train.keep_optimizer": True, "train.momentum": momentum}
    found = evidence(tmp_path / "run", "fedavg", **options)
    for round, continued in ((1, False), (2, goes_on)):
        message = found.message(round, 0)
        seen = found.attacker.observation(message, ThreatModel())
        assert (seen.schedule is None, seen.zero_gradient_change is None) == (continued, continued)
        assert seen.control_differences == ((CONTINUED,) if continued else ())
        assert infer_labels(found, round, 0).limit == (CONTINUED if continued else None)
        assert found.attacker.observation(message.simulated(dict(message.uploaded)), ThreatModel()).schedule is not None
    assert rounds._corrected(found, [1, 2]) == ([2] if goes_on else [])
    assert keeps_state(found) == goes_on


def test_the_servers_own_update_is_a_first_one_in_fedmias_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what the client's earlier local updates left would be taken off it, and with that its members would be put in."""
    found, updates = evidence(tmp_path / "run", "scaffold", **{**ALL, "train.rounds": 2}), list[bool]()
    seen = other_clients._scores

    def noted(messages: Iterable[Message], *rest: Any) -> Any:
        given = list(messages)
        updates.extend(message.first_update for message in given)
        return seen(given, *rest)

    monkeypatch.setattr(other_clients, "_scores", noted)
    other_clients.against_other_clients(found, 0, candidates(found.federation, 2, 0))
    assert updates == [False, False, False, False, True] * 2  # those of others, the client's, the server's


def test_shadow_clients_without_a_state_do_not_show_what_one_hides(tmp_path: Path) -> None:
    """Their heads are the initial ones. In the first round the clients' are, too."""
    said = {}
    for kept in (1, 2):
        found = evidence(tmp_path / str(kept), "fedper", **{**ALL, "train.rounds": kept, "wire.keep_payloads": [kept]})
        said[kept] = shadow_labels(found, kept, 8, 0).later
    assert said == {1: 0, 2: 4}
    assert "kept from an earlier local update" in str(limit_of_shadows(of_shadows(later=40)))
    assert limit_of_shadows(of_shadows(later=0)) is None


def of_shadows(later: int) -> ShadowLabels:
    """No set of 40 clients that lack a class was found."""
    report = ShadowReport(0.0, 0.5, 0.0, 0.0, 0.0, 40, 40, 0, 0.1, 1.0)
    return ShadowLabels(report, 1, 8, wider=0, unlearned=0, later=later)


@pytest.mark.parametrize("least", [1, 2])
def test_updates_that_did_not_count_left_nothing(tmp_path: Path, least: int) -> None:
    """In the second round client 0 is alone: of fewer than ``train.min_uploads`` the server and the clients keep nothing."""
    schedule = {"train.selection": "schedule", "train.schedule": [[0, 1, 2], [0], [0, 1, 2]], "train.participation": None}
    rounds_ = {**ALL, **schedule, "train.rounds": 3, "train.min_uploads": least}
    found = evidence(tmp_path / "run", "scaffold", **ONE_STEP, **rounds_)
    assert (0 in found.trained_clients(2)) == (least == 1) and found.trained_clients(1) == {0, 1, 2}
    plain, train = plain_change(found, found.message(3, 0)), found.config.train
    assert plain.open is None
    for name, gradient in gradient_of_the_truth(found, 3, 0).items():
        decay = train.weight_decay if gradient.ndim > 1 else train.weight_decay_bias
        step = -train.lr * (gradient + decay * found.message(3, 0).received[name])
        torch.testing.assert_close(plain.of[name], step, rtol=1e-3, atol=1e-6)


def test_an_objective_that_does_not_say_what_it_adds_is_not_read_as_plain_steps(tmp_path: Path) -> None:
    class Foreign(CrossEntropy):
        name = "foreign"

        def correct(self, update: LocalUpdate, learner: Learner) -> None:
            learner.grad.add_(1.0)

    class Declared(Foreign):
        def correction(self, *given: Any) -> dict[str, Tensor]:
            return {}

    found = evidence(tmp_path / "run", "fedprox", **ALL, **{"train.rounds": 1})
    method, message = found.federation.method, found.message(1, 0)
    assert plain_change(found, message).open is None, "its pull is zero at the received weights"
    for kind, known in ((Foreign, False), (Declared, True)):
        method.objective = kind(method.objective.params, method.context)
        assert (plain_change(found, message).open is None) == known
    assert not found.attacker.observation(message, ThreatModel()).control_differences
