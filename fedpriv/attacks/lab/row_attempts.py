"""Attempts of attacks on rows of a table: which controls are run, and how their reconstructions are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.attack import RowAttack, for_audits, row_attacks
from fedpriv.attacks.core.columns import RowEncoding, made_up_rows
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.row_reconstruction import RowReconstruction
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.row_controls import row_controls
from fedpriv.attacks.lab.trial import Attacker, Mounted, NotTried, SampleAttempt, SampleTask, Trial, difference_reasons
from fedpriv.attacks.scoring.row_scores import RowScores, in_order, score_rows, sure_rows
from fedpriv.attacks.scoring.scores import Rate, wilson

MADE_UP = 300
"""Number of made-up rows that show how alike rows are by chance, where no public ones are known."""


@dataclass(frozen=True)
class RowAttempt(SampleAttempt[RowAttack, RowReconstruction, RowScores]):
    """The result of one attacker on rows.

    Attributes:
        sure: the rows that are right in every cell, and hardly by chance (:func:`sure_rows`).
    """

    sure: Rate | None = None


@dataclass(frozen=True)
class Rows(SampleTask[RowAttack, RowReconstruction, RowAttempt]):
    """Rows to attack, and the messages on them.

    Attributes:
        rows: the true ones ``(n, F)``, as the net takes them.
        encoding: of their columns.
    """

    rows: Tensor
    labels: Tensor
    encoding: RowEncoding
    observe: Callable[[ThreatModel], list[Observation]]

    @property
    def others(self) -> Tensor:
        """Rows of such a table that are behind no message ``(o, F)``: made-up ones."""
        return made_up_rows(self.encoding, MADE_UP, torch.Generator().manual_seed(0)).to(self.rows)

    def controls(self, attacker: Attacker[RowAttack], part: Sequence[Observation], seed: int) -> tuple[Control, ...]:
        return run_row_controls(attacker.attack, part[0], self.samples_behind(part), seed)

    def not_tried(self, attacker: Attacker[RowAttack], reason: NotTried) -> RowAttempt:
        return RowAttempt(attacker, inapplicable=reason.reason, controls=reason.controls)

    def judge(self, attacker: Attacker[RowAttack], mounted: Mounted[RowReconstruction], trial: Trial) -> RowAttempt:
        """Score the rows, matched to the true ones within each message. Those that an attack did not find have no right cell.

        Where a message states no number of rows, an attack may return more of them than there are. Those that match none have no
        part in the scores.
        """
        (result,), observed = mounted.results, mounted.first
        assert isinstance(result, RowReconstruction), "the one part was not refused"
        raw, index = in_order(result.raw, self.rows, self.encoding, len(observed))
        guessed = result.labels[index].masked_fill(index < 0, -1)
        sure = sure_rows(result.raw, raw, self.rows, self.others, self.encoding, len(observed))
        clauses = (*observed[0].control_differences, *harder(attacker.attack, observed[0], self.samples_behind(observed)))
        return RowAttempt(
            attacker, result, score_rows(raw, self.rows, self.encoding, guessed, self.labels), controls=mounted.controls,
            reasons=difference_reasons(clauses), raw=raw, sure=wilson(int(sure.sum()), len(sure)),
        )  # fmt: skip


def suited_to_rows(hidden: bool = False) -> list[Attacker[RowAttack]]:
    """The attackers of audits for messages on rows; closed forms first.

    Args:
        hidden: whether the last layer was not sent.
    """
    return [Attacker.of(kind, options) for kind, options in for_audits(row_attacks().values(), hidden)]


def run_row_controls(attack: RowAttack, observation: Observation, behind: int, seed: int) -> tuple[Control, ...]:
    """The controls of an attack with its own options; none where it declares no setting for them.

    Args:
        observation: a message to attack. The controls have its columns and kind of labels, and as many local steps if the attack
            simulates them.
        behind: rows behind each message. The controls have as many, up to what the attack declares for such columns.
    """
    if (setting := attack.control) is None:
        return ()
    if observation.encoding is not None:
        setting = replace(setting, encoding=observation.encoding, classes=observation.classes, numbers=observation.numbers)
    if setting.steps and observation.schedule is not None:
        setting = replace(setting, steps=observation.schedule.steps)
    per_message = min(behind, attack.most_rows(observation) or behind)
    return row_controls(attack, replace(setting, per_message=per_message, rows=max(setting.rows, per_message)), seed)


def harder(attack: RowAttack, first: Observation, behind: int) -> Iterator[str]:
    """How messages like the first are harder than those of the positive control: clauses."""
    if first.num_examples is None and behind > 1:
        yield f"messages do not say how many rows are behind them ({behind}), and those of its control do"
    if (most := attack.most_rows(first)) is not None and behind > most:
        yield f"{behind} rows are behind a message, and its control has at most {most}"
    if clause := attack.harder(first):
        yield clause
