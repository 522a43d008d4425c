"""Who is tried on what, and how many images of the easiest case are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fedpriv.attacks.attack import ImageAttack, image_attacks
from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Reconstruction
from fedpriv.attacks.core.status import Reason, Status
from fedpriv.attacks.lab.attempts import ImageAttempt
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.trial import Attacker, Trial
from fedpriv.attacks.scoring import scores
from fedpriv.attacks.scoring.scores import score, wilson
from fedpriv.audit.images import attempts, reconstructions, target
from fedpriv.audit.images.attempts import SETTLED
from fedpriv.audit.images.reconstructions import on_message, on_single_images
from fedpriv.audit.images.target import Target
from fedpriv.audit.judge.images import ran
from fedpriv.audit.judge.known import samples_not_known
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.audit import Part
from fedpriv.audit.run_audit import AuditOptions
from fedpriv.audit.samples import on_images
from fedpriv.processes import forked_in_order
from tests.audit.built import CUT
from tests.audit.sample_findings import findings
from tests.simulation.small import play

pytestmark = pytest.mark.slow
MIXED = ("analytic", "dlg", "random-head")
PASSED = (Control("positive", True, "it can", 0.1), Control("negative", True, "it does not invent", 0.1))


@pytest.fixture(scope="module", autouse=True)
def _played_once() -> Iterator[None]:
    """The local updates of the 72 clients with one image each are the same in every test; perceptual distances are not looked
    at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "feature_distance", lambda made, true: torch.zeros(len(made)))
        patch.setattr(RunRecord, "alone", cache(RunRecord.alone))
        yield


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("runs") / "fedavg"
    play(folder, "fedavg", **{"train.rounds": 1, "data.clients": 5})
    return RunRecord(folder)


StandIn = Callable[[Attacker[ImageAttack], Sequence[Any], torch.Tensor], ImageAttempt]


def instead_of_all(monkeypatch: pytest.MonkeyPatch, stand_in: StandIn) -> None:
    """In place of all attacks, with and without their controls."""

    def tried(target: Target, attacker: Attacker[ImageAttack], trial: Trial) -> ImageAttempt:
        if (over := trial.cut()) is not None:
            return ImageAttempt(attacker, inapplicable=over)
        return target.with_doubts(stand_in(attacker, target.observe(attacker.threat), target.images))

    monkeypatch.setattr(Target, "run", tried)


def attack_that(recovers: Callable[[int], bool], asked: dict[str, list[int]]) -> StandIn:
    """In place of every attack that optimises: recovers those images, counted from the first that it was ever asked for."""

    def stand_in(attacker: Attacker[ImageAttack], observed: Sequence[Any], images: torch.Tensor) -> ImageAttempt:
        before = sum(asked.setdefault(attacker.attack.name, []))
        asked[attacker.attack.name].append(len(images))
        optimises = attacker.attack.optimises
        keep = torch.tensor([optimises and recovers(before + i) for i in range(len(images))])
        made = torch.where(keep.view(-1, 1, 1, 1), images, 1 - images.round())
        n = len(observed)
        unknown = torch.full((len(images),), -1)
        found = Reconstruction(made, unknown, torch.ones(n), torch.ones(1, n), torch.ones(n), torch.zeros(n))
        control = attacker.attack.control
        promises = control is not None and control.min_recovery > 0
        return ImageAttempt(
            attacker, found, score(made, images), controls=PASSED if promises else PASSED[1:], raw=made, true=images
        )

    return stand_in


@pytest.mark.parametrize(
    ("recovers", "most", "looked_at"),
    [
        (lambda i: False, 24, [6, 6, 12]),
        (lambda i: False, 72, [6, 6, 12, 24, 24]),
        (lambda i: i < 3, 72, [6]),
        (lambda i: i in (7, 8), 72, [6, 6, 12, 24, 24]),
        (lambda i: 6 <= i < 12, 72, [6, 6]),
    ],
    ids=["none within the budget", "none of 72", "a leak at once", "a leak too rare to be sure", "a leak that shows later"],
)
def test_single_images_are_looked_at_until_the_interval_decides(
    evidence: RunRecord, monkeypatch: pytest.MonkeyPatch, recovers: Callable[[int], bool], most: int, looked_at: list[int]
) -> None:
    asked: dict[str, list[int]] = {}
    instead_of_all(monkeypatch, attack_that(recovers, asked))
    monkeypatch.setattr(target, "on_same_net", lambda *asked: None)  # no real attack is mounted, so none is held against it
    client = evidence.messages()[0][1]
    assert len(evidence.labels(client)) >= 72
    attacked = on_single_images(evidence, 1, client, 0, lambda text: None, most)
    assert asked["dlg"] == looked_at and asked["analytic"] == [72], "a closed form looks at all"
    for one in attacked.attempts:
        assert one.scores is not None and one.images is not None and one.reconstruction is not None
        rate, n = one.scores.recovered[1e-2], sum(asked[one.attacker.name])
        optimises = one.attacker.attack.optimises
        assert (rate.successes, rate.n) == (sum(recovers(i) for i in range(n)) * optimises, n) and len(one.images) == n
        assert (one.reconstruction.raw.shape[0], one.reconstruction.curve.shape[1]) == (n, n)
    if sum(looked_at) < most:
        assert any(one.scores is not None and one.scores.recovered[1e-2].low > SETTLED for one in attacked.attempts)
    rows = attacked.pictures()
    assert len({len(images) for images in rows.values()}) == 1


def test_what_was_found_before_the_budget_ended_is_kept(evidence: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[int]] = {}
    instead_of_all(monkeypatch, attack_that(lambda i: i == 0, asked))
    monkeypatch.setattr(reconstructions, "suited", lambda masked: [Attacker(image_attacks()[n](), ThreatModel()) for n in MIXED])
    monkeypatch.setattr(attempts, "spent", lambda say: CUT if asked.get("dlg") else None)
    attacked = on_single_images(evidence, 1, evidence.messages()[0][1], 0, lambda text: None, 24)
    made = {one.attacker.name: one for one in attacked.attempts}
    assert asked == {"analytic": [72], "dlg": [6]}
    assert made["dlg"].recovered == wilson(1, 6) and made["dlg"].cut == CUT
    assert made["random-head"].scores is None and made["random-head"].inapplicable == CUT
    outcomes = {one.attack: one for one in attacked.described(None).outcomes}
    dlg, not_run = outcomes["dlg"], outcomes["random-head"]
    assert dlg.figures is not None and dlg.figures.success["0.01"] == wilson(1, 6) and dlg.cut == CUT
    assert not_run.figures is None and not_run.status == Status.not_run(CUT)


def bright(attacker: Attacker[ImageAttack], observed: Sequence[Any], images: torch.Tensor) -> ImageAttempt:
    """In place of every attack: recovers bright images."""
    keep = images.flatten(1).mean(1) > 0.33
    made = torch.where(keep.view(-1, 1, 1, 1), images, 1 - images.round())
    n = len(observed)
    found = Reconstruction(made, torch.full((n,), -1), torch.ones(n), torch.ones(1, n), torch.ones(n), torch.zeros(n))
    return ImageAttempt(attacker, found, score(made, images), controls=PASSED, raw=made)


def test_processes_change_nothing(evidence: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_all(monkeypatch, bright)
    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", lambda *asked: PASSED)
    client, at_once = evidence.messages()[0][1], list[int]()

    def counted(calls: Any, some: int) -> Any:
        at_once.append(some)
        return forked_in_order(calls, some)

    monkeypatch.setattr(attempts, "forked_in_order", counted)
    alone, together = (on_single_images(evidence, 1, client, 0, lambda text: None, 24, workers) for workers in (1, 3))
    assert alone.described(None) == together.described(None) and set(at_once) == {1, 3}
    assert any(figures.success["0.01"].successes for _, figures in ran(alone.described(None)))


def test_none_of_72_leaves_5_percent_open() -> None:
    assert round(SETTLED, 3) == 0.051 == round(wilson(0, 72).high, 3)


def test_who_is_promised_nothing_gets_no_more_images(evidence: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[int]] = {}
    instead_of_all(monkeypatch, attack_that(lambda i: False, asked))
    monkeypatch.setattr(reconstructions, "suited", lambda masked: [Attacker(image_attacks()[n](), ThreatModel()) for n in MIXED])
    on_single_images(evidence, 1, evidence.messages()[0][1], 0, lambda text: None, 24)
    assert asked == {"analytic": [72], "dlg": [6, 6, 12], "random-head": [6]}


def test_who_fails_on_the_same_net_is_tried_on_more_images_and_may_find_some(
    evidence: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[int]] = {}
    instead_of_all(monkeypatch, attack_that(lambda i: 8 <= i < 10, asked))
    failed = Control("same net", False, "recovers 0 of 4 from this net", 0.1)
    monkeypatch.setattr(target, "on_same_net", lambda *given: failed)
    tried = [Attacker(image_attacks()[name](), ThreatModel()) for name in ("dlg", "random-head")]
    monkeypatch.setattr(reconstructions, "suited", lambda masked: tried)
    attacked = on_single_images(evidence, 1, evidence.messages()[0][1], 0, lambda text: None, 24)
    made = {one.attacker.name: one for one in attacked.attempts}
    assert asked["dlg"] == [6, 6, 12] and made["dlg"].recovered == wilson(2, 24)
    assert [reason.kind for reason in made["dlg"].reasons] == ["same net"]
    assert asked["random-head"] == [6], "which is promised nothing"


@pytest.mark.parametrize("by", ["analytic", "dlg"])
def test_nobody_is_tried_after_one_that_recovered_all(evidence: RunRecord, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    def stand_in(attacker: Attacker[ImageAttack], observed: Sequence[Any], images: torch.Tensor) -> ImageAttempt:
        assert attacker.name in ("analytic", by), "it can find no more"
        made = images if attacker.name == by else 1 - images.round()
        return ImageAttempt(attacker, None, score(made, images), controls=PASSED, raw=made)

    instead_of_all(monkeypatch, stand_in)
    monkeypatch.setattr(reconstructions, "suited", lambda masked: [Attacker(image_attacks()[n](), ThreatModel()) for n in MIXED])
    attacked = on_single_images(evidence, 1, evidence.messages()[0][1], 0, lambda text: None, 24)
    said = {one.attacker.name: one.inapplicable for one in attacked.attempts}
    left = "analytic recovered all 72" if by == "analytic" else "dlg recovered all of the first 6"
    assert said["random-head"] == Reason("not needed", left) and said[by] is None


def test_a_message_of_many_images_is_no_failure_of_those_that_cannot_reach_so_many(evidence: RunRecord) -> None:
    round, client = evidence.messages()[0]
    attacked = on_message(evidence, round, client, 0, lambda text: None)
    said = {one.attacker.name: one for one in attacked.attempts}
    n = len(evidence.labels(client))
    reach = "at this budget its control recovers up to 4 at once"
    assert said["dlg"].inapplicable == Reason("too many samples", f"{n} images behind one message; {reach}")
    assert said["analytic"].is_evidence and f"{min(n, 128)} behind one message" in said["analytic"].controls[0].sentence
    assert {one.attacker for one in attacked.controls()} == {"analytic"}


def test_a_single_client_that_diverges_leaves_its_case_open_and_the_rest_as_it_is(
    evidence: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message would have been attacked, so nothing is known of the easiest case; the attacks before it still count."""
    monkeypatch.setattr(RunRecord, "alone", RunRecord.alone.__wrapped__)  # not the local updates that were played once
    monkeypatch.setattr(
        "fedpriv.audit.record.shadow_updates.ShadowUpdates.run", lambda updates, data, numbers: [None for _ in numbers]
    )
    monkeypatch.setattr("fedpriv.audit.samples.on_message", lambda *asked: "attacked")
    not_run = dict[Part, Reason]()
    assert on_images(evidence, AuditOptions(), not_run, lambda text: None) == ["attacked"]
    assert "a simulated client with a single sample diverged" in str(not_run["single images"])
    (run, *_) = findings().runs
    assert "single images can be recovered" in set(samples_not_known(replace(run, not_run=not_run)))
    assert "single images can be recovered" not in set(samples_not_known(run))
