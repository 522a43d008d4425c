"""FedMIA on uploads that runs really sent, and the labels of several of them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpriv.attacks.api.label_rules import RULES, STATED
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.labels.stated import LabelSet
from fedpriv.attacks.scoring.operating_points import area
from fedpriv.audit.membership import other_clients
from fedpriv.audit.membership.candidates import candidates
from fedpriv.audit.membership.inference import FEDMIA, ROWS, membership
from fedpriv.audit.membership.label_leaks import Labels, infer_labels, label_findings, labels_over_rounds
from fedpriv.audit.membership.member_scores import REGRESSIONS
from fedpriv.audit.membership.one_client import attack_client
from fedpriv.audit.membership.other_clients import OwnUpdates, against_other_clients
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowResult
from fedpriv.audit.record.sums import record_of
from fedpriv.audit.results.outcome import Sender
from tests.simulation.small import play

ALL_TAKE_PART = {"data.clients": 4, "train.participation": 1.0, "data.limit": 200, "wire.keep_payloads": "all", "eval.last": 1}


def evidence(folder: Path, method: str, **overrides: Any) -> RunRecord:
    play(folder, method, **{**ALL_TAKE_PART, **overrides})
    return record_of(folder)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    own = {"model.name": "mlp2", "data.partition.name": "iid", "train.batch_size": 10, "train.rounds": 2}
    return evidence(tmp_path_factory.mktemp("kept") / "run", "fedavg", **own)


def test_every_kept_round_of_a_client_counts(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = candidates(kept.federation, 2, 0)
    result = against_other_clients(kept, 0, pool)
    assert result.rounds == (1, 2) and set(result.scores) == {("confidence", ""), ("row distance", "")} == set(result.control)
    assert area(result.scores["row distance", ""], pool.members).low > 0.5
    none = area(result.control["row distance", ""], pool.members)
    assert none.low < 0.5 < none.high
    monkeypatch.setattr(other_clients, "MOST", 1)
    last = against_other_clients(kept, 0, pool)
    assert last.rounds == (2,) and not np.array_equal(last.scores["row distance", ""], result.scores["row distance", ""])


def test_the_servers_own_updates_are_computed_once(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """For FedMIA, the regression over rounds and a control; that of the round itself comes with the shadows."""
    rounds, real = list[int](), OwnUpdates._trained

    def counted(own: OwnUpdates, round: int, parts: int) -> ShadowResult | None:
        rounds.append(round)
        return real(own, round, parts)

    monkeypatch.setattr(OwnUpdates, "_trained", counted)
    result = attack_client(kept, 2, 0, shadows=4, seed=0)
    assert {REGRESSIONS, f"{FEDMIA}, row distance"} <= result.scores.keys()
    assert rounds == [1]


def test_the_message_of_another_client_shows_no_member(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 in the place of client 0, and client 0 not among the others."""
    pool, real = candidates(kept.federation, 2, 0), kept.message
    monkeypatch.setattr(kept, "message", lambda round, client: real(round, max(client, 1)))
    monkeypatch.setattr(kept, "whole_clients", lambda round: [0, 2, 3])
    result = area(against_other_clients(kept, 0, pool).scores["row distance", ""], pool.members)
    assert result.low < 0.5 < result.high


def test_messages_that_are_not_finite_are_left_out(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, ruined = candidates(kept.federation, 2, 0), (1, 0)
    real = other_clients.is_finite
    spoilt = kept.message(*ruined).uploaded

    def finite(uploaded: dict[str, Tensor]) -> bool:
        return real(uploaded) and not all(torch.equal(uploaded[name], tensor) for name, tensor in spoilt.items())

    monkeypatch.setattr(other_clients, "is_finite", finite)
    assert against_other_clients(kept, 0, pool).rounds == (2,)
    monkeypatch.setattr(other_clients, "is_finite", lambda uploaded: False)
    with pytest.raises(Inapplicable, match="in no round are the messages of the client and of 2 others"):
        against_other_clients(kept, 0, pool)


def test_without_two_other_clients_it_is_not_tried(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "whole_clients", lambda round: [0, 1])
    monkeypatch.setattr(kept.store, "clients", lambda round: [0, 1])
    with pytest.raises(Inapplicable, match="needs the messages of 2 other clients of a round, and 1 were kept"):
        against_other_clients(kept, 0, candidates(kept.federation, 2, 0))
    result = membership(kept, 2, [0], shadows=4)
    assert not any(name.startswith(FEDMIA) for name in result.attacks) and "1 were kept" in result.not_tried[FEDMIA].text
    assert result.rounds == () and not any("FedMIA it also" in sentence for sentence in result.threat)


def test_where_its_negative_control_fails_it_is_not_tried(kept: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own local updates, that saw no candidate, are replaced by the client's messages, which saw them."""
    real = other_clients._scores
    shown: list[Any] = []

    def seen(messages: Any, own: Any, statistics: Any) -> Any:
        shown.append(messages)
        mine = len(shown) % 3 == 0  # the others' messages, the client's, the own local update
        return real(shown[-2] if mine else messages, own, statistics)

    monkeypatch.setattr(other_clients, "_scores", seen)
    result = membership(kept, 2, [0], shadows=4)
    reason = result.not_tried[f"{FEDMIA}, {ROWS}"]
    assert reason.text.startswith("its negative control failed: an upload of a client trained on none of the candidates")
    assert f"{FEDMIA}, {ROWS}" not in result.attacks and ROWS in result.attacks and not result.failed_controls
    described = {(item.attacker, item.name): item.passed for item in result.described_controls()}
    assert described[f"{FEDMIA}, {ROWS}", "negative"] is False


RULE = next(rule for rule in RULES if rule != STATED)


def labels(client: int, present: list[int], counts: list[int] | None, applies: bool = True) -> Labels:
    shown = torch.zeros(4, dtype=torch.bool)
    shown[present] = True
    counted = None if counts is None else torch.tensor(counts)
    by = {RULE: LabelSet(shown, counted)} if applies else {}
    return Labels(1, client, Sender(client), by, torch.tensor([6, 4, 0, 0]))


def test_rounds_outvote_a_message_that_is_wrong() -> None:
    messages = [
        labels(0, [0, 1], [8, 2, 0, 0]),
        labels(0, [0, 1, 3], [4, 3, 0, 3]),
        labels(0, [0], [10, 0, 0, 0]),
        labels(0, [0, 1], [2, 8, 0, 0]),
        labels(1, [0], None),
        labels(2, [0, 1], None),
        labels(2, [0, 1], None),
        labels(3, [], None, applies=False),
        labels(3, [0, 1], None),
    ]
    several, sets = labels_over_rounds(messages)
    assert (several.sender, several.messages, several.inferred, several.exact) == (Sender(0), 4, (0, 1), True)
    assert several.round is None
    # the means 6, 3.25 and 0.75, of which the last is not in the set
    assert several.count_accuracy == 1.0 and several.single_exact == 2
    assert several.single_count_accuracy == pytest.approx((0.8 + 0.7 + 0.6 + 0.6) / 4)
    assert (sets.sender, sets.exact, sets.count_accuracy, sets.single_count_accuracy) == (Sender(2), True, None, None)


def test_labels_of_a_run_over_rounds(kept: RunRecord) -> None:
    single = [infer_labels(kept, round, client) for round, client in kept.messages()]
    results = labels_over_rounds(single)
    assert [(item.sender, item.messages) for item in results] == [(Sender(client), 2) for client in range(4)]
    true = {result.sender: result.true for result in label_findings(single).labels}
    assert all(item.true == true[item.sender] and item.count_accuracy for item in results)


@pytest.mark.slow
def test_rounds_add_up_to_more_than_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"model.name": "mlp2", "data.partition.name": "iid", "train.batch_size": 10, "train.rounds": 8, "data.limit": 400}
    run = evidence(tmp_path / "run", "fedavg", **own)
    pools = [candidates(run.federation, 8, client) for client in range(4)]
    members = np.concatenate([pool.members for pool in pools])

    def auc(most: int) -> float:
        monkeypatch.setattr(other_clients, "MOST", most)
        scores = [against_other_clients(run, client, pool).scores["row distance", ""] for client, pool in enumerate(pools)]
        return area(np.concatenate(scores), members).value

    assert auc(8) > auc(1) + 0.03


def test_behind_sums_there_are_no_other_clients(tmp_path: Path) -> None:
    run = evidence(
        tmp_path / "run", "fedavg", **{"wire.secure_aggregation": True, "train.rounds": 1, "data.partition.name": "iid"}
    )
    (round, number), *_ = run.messages()
    with pytest.raises(Inapplicable, match="and 0 were kept"):
        against_other_clients(run, number, candidates(run.federation, round, number))
