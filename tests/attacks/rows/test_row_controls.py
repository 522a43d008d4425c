"""The controls of attacks on rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from fedpriv.attacks.attack import RowAttack, row_attack, row_attacks
from fedpriv.attacks.core.columns import CategoryColumn, NumberColumn, RowEncoding
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.lab.row_attempts import Rows, harder, run_row_controls
from fedpriv.attacks.lab.row_controls import negative_control, positive_control
from fedpriv.attacks.lab.setting import RowSetting
from fedpriv.attacks.lab.trial import Attacker, Trial
from fedpriv.attacks.rows.closed_form import ClosedForm
from fedpriv.attacks.scoring.row_scores import typical_row
from tests.attacks.sent import messages_of
from tests.marks import quick_first


@dataclass(frozen=True)
class Peek(RowAttack):
    """An attack with a leaking harness: it knows the rows."""

    name: ClassVar = "peek"
    control: ClassVar = RowSetting()
    knows: bool = True

    def run(self, observations: Sequence[Observation], seed: int = 0) -> RowReconstruction:
        setting = RowSetting(rows=len(observations))
        raw = setting.truth(seed)[0] if self.knows else typical_row(setting.encoding).expand(len(observations), -1)
        return RowReconstruction(raw, torch.full((len(raw),), -1), torch.zeros(len(raw)), setting.encoding)


@pytest.mark.parametrize("per_message", quick_first([4, 1, 16]))
def test_the_closed_form_passes_its_controls(per_message: int) -> None:
    attack = ClosedForm()
    setting = RowSetting(rows=max(4, per_message), per_message=per_message)
    for control in (positive_control(attack, setting), negative_control(attack, setting)):
        assert control.passed, control.sentence


def test_a_broken_attack_and_a_leaking_harness_fail_theirs() -> None:
    assert not negative_control(Peek()).passed and positive_control(Peek()).passed
    assert negative_control(Peek(knows=False)).passed and not positive_control(Peek(knows=False)).passed


def test_row_attacks_are_found_by_name() -> None:
    assert row_attack("closed-form") is ClosedForm and "closed-form" in row_attacks()
    with pytest.raises(KeyError, match="tag is an attack on texts, not on rows"):
        row_attack("tag")


def test_an_attempt_is_scored_beside_its_controls() -> None:
    setting = RowSetting(rows=4, per_message=2)
    rows, labels = setting.truth(1)
    target = Rows(rows, labels, setting.encoding, lambda threat: setting.observations(rows, labels, 1))
    attempt = target.run(Attacker.of(ClosedForm, {}), Trial())
    assert attempt.scores is not None and attempt.scores.rows.share == 1 and attempt.is_evidence
    assert [control.name for control in attempt.controls] == ["positive", "negative"]


def test_the_control_has_as_many_rows_as_the_columns_allow() -> None:
    """Four numbers, of which one may be missing, and one category are seven independent entries."""
    numbers = tuple(NumberColumn(name, gaps=name == "d") for name in "abcd")
    table = RowEncoding((*numbers, CategoryColumn("e", ("x", "y"))))
    (message,), _, _ = messages_of(RowSetting(table, rows=6, per_message=6))
    assert ClosedForm.most_rows(message) == 3
    positive, _ = run_row_controls(ClosedForm(), message, 6, 0)
    assert positive.passed and "3 behind one message" in positive.sentence
    assert list(harder(ClosedForm(), message, 6)) == ["6 rows are behind a message, and its control has at most 3"]
    assert not list(harder(ClosedForm(), message, 3))
