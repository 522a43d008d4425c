"""What an audit says of the statistics before round 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedpriv.audit.before_training import told_before
from fedpriv.audit.page.sections import sections
from fedpriv.audit.results.audit import Audit
from fedpriv.client.statistics import PrivateStatistics, Respondent
from fedpriv.data.statistics.cells import CategoryCells, NumberCells
from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.data.statistics.messages import text_message
from fedpriv.data.statistics.totals import Inquiry
from fedpriv.noise_source import SeededSource
from tests.audit.sample_findings import findings

CELLS = (
    NumberCells("age", np.array([30.0, 40.0, np.nan, 50.0]), np.zeros(1)),
    CategoryCells.of("sex", ["f", "f", "m", ""], ["f"]),
)
ROWS = TrainingRows(np.arange(4), CELLS, None, torch.tensor([0, 1, 1, 1]), 2)
INQUIRY = text_message("inquiry", None, Inquiry(("age",), (("sex", ("", "f", "m")),), classes=2))


def test_each_column_is_told_of_in_words() -> None:
    client = Respondent(3, ROWS)
    messages = [client.answer(text_message("columns", None, ("sex",))), INQUIRY, client.answer(INQUIRY)]
    lines = told_before(messages)
    assert [(line.client, line.column, line.says) for line in lines] == [
        (3, "sex", "has the levels f"),
        (3, "", "4 training samples"),
        (3, "age", "3 numbers, mean 40, standard deviation 8.16"),
        (3, "sex", "2 f, 2 of any other level"),
        (3, "", "samples by class: 1, 3"),
    ]
    assert lines[0].bytes == messages[0].nbytes and told_before([]) == ()


def test_noisy_statistics_show_no_numbers() -> None:
    asked = text_message("inquiry", None, Inquiry(("age",)))
    private = PrivateStatistics({"age": (0.0, 100.0)}, 2.0, SeededSource(0))
    (line,) = told_before([asked, Respondent(1, ROWS, private).answer(asked)])
    assert line.says == "3 sums with noise, which its epsilon covers"


def test_the_page_has_a_section_of_them() -> None:
    audit = findings()
    run = replace(audit.runs[0], before=told_before([INQUIRY, Respondent(0, ROWS).answer(INQUIRY)]))

    def titles(of: Audit) -> str:
        return repr(sections(of))

    assert "What is told before training" in titles(replace(audit, runs=(run,)))
    assert "What is told before training" not in titles(replace(audit, runs=(replace(run, before=()),)))


def test_numbers_without_a_deviation_are_told_as_they_are() -> None:
    asked = text_message("inquiry", None, Inquiry(("cholesterol",)))
    columns = (
        NumberCells("cholesterol", np.zeros(239), np.zeros(1)),
        NumberCells("cholesterol", np.full(239, 2023.5), np.zeros(1)),
    )
    for column, says in zip(columns, ("239 numbers, all are 0", "239 numbers, all are 2023.5"), strict=True):
        rows = TrainingRows(np.arange(239), (column,), None, torch.zeros(239), 2)
        assert told_before([asked, Respondent(1, rows).answer(asked)])[1].says == says


def test_sums_of_one_or_two_numbers_tell_them() -> None:
    asked = text_message("inquiry", None, Inquiry(("age",)))
    for held, says in (([0], "1 numbers, which are told with that: 30"), ([0, 3], "2 numbers, which are told with that: 30, 50")):
        rows = TrainingRows(np.array(held), CELLS, None, torch.zeros(4), 2)
        assert told_before([asked, Respondent(1, rows).answer(asked)])[1].says == says
