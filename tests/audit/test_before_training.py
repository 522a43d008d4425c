"""What an audit says of the statistics before round 1."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedpriv.audit.answer import answer, concluded
from fedpriv.audit.before_training import told_before, told_totals
from fedpriv.audit.facts import facts
from fedpriv.audit.judge.measures import metrics
from fedpriv.audit.membership.label_leaks import BEFORE_TRAINING, infer_labels, label_findings
from fedpriv.audit.page.change import changes
from fedpriv.audit.page.sections import sections
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.audit import Audit
from fedpriv.audit.results.wire import ToldRows, told_rows
from fedpriv.client.statistics import PrivateStatistics, Respondent
from fedpriv.data.statistics.cells import CategoryCells, NumberCells
from fedpriv.data.statistics.measuring import TrainingRows
from fedpriv.data.statistics.messages import text_message
from fedpriv.data.statistics.totals import Inquiry
from fedpriv.noise_source import SeededSource
from tests.audit import built
from tests.audit.sample_findings import findings
from tests.simulation.small import play

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
        (3, "age", "3 numbers, which are told with that: 30, 40, 50"),
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


def told_of(*clients: tuple[list[float], list[str]]) -> list[ToldRows]:
    """What each client's statistics tell of its rows: a number (NaN: missing) and a level of each."""
    asked, messages = text_message("inquiry", None, Inquiry(("age",), (("sex", ("", "f", "m")),))), []
    for number, (ages, sexes) in enumerate(clients):
        cells = NumberCells("age", np.array(ages), np.zeros(1)), CategoryCells.of("sex", sexes, ["f"])
        rows = TrainingRows(np.arange(len(ages)), cells, None, torch.zeros(len(ages)), 1)
        messages.append(Respondent(number, rows).answer(asked))
    return told_rows(told_before([asked, *messages]))


OTHERS = [30.0, 40.0, 51.0, 53.0, 54.0], ["f", "m", "f", "m", "f"]
NAN = float("nan")


@pytest.mark.parametrize(
    ("ages", "sexes", "cells", "whole"),
    [
        ([30.0, 40.0, 51.0], ["f", "f", "m"], 6, False),
        ([30.0, 40.0, 51.0], ["f", "f", "f"], 6, True),  # they differ in one column
        ([1.0, 5.0, 6.0], ["f", "f", "m"], 3, False),  # 2, 3, 7 have the same sums
        ([0.1, 0.5, 0.6], ["f", "f", "m"], 6, False),  # but not as floats
        ([0.125, 0.515625, 0.625], ["f", "f", "m"], 3, False),  # not of two decimals
        ([5e9, 6e9, 7e9], ["f", "f", "m"], 3, False),  # too far apart for a search
        ([30.0, NAN, NAN], ["f", "f", "f"], 6, True),
        ([30.0, 51.0, NAN, NAN], ["f", "m", "m", "m"], 2, False),
        ([44.5] * 9, ["f", "m", "m"] * 3, 9, False),
        ([44.5] * 9, ["f"] * 9, 18, True),
        ([44.5] * 8 + [45.0], ["f"] * 9, 9, False),
        ([NAN] * 9, [""] * 9, 0, False),
        ([30.0, 40.0, 51.0, 53.0], ["f", "m", "f", "m"], 0, False),
    ],
)
def test_cells_are_told_by_few_rows_and_by_rows_alike(ages: list[float], sexes: list[str], cells: int, whole: bool) -> None:
    told = [rows for rows in told_of((ages, sexes), OTHERS) if rows.client == 0]
    assert [(rows.cells, rows.whole) for rows in told] == ([(cells, whole)] if cells else [])


def test_a_value_that_all_clients_have_is_no_secret() -> None:
    alike = [44.5] * 9, ["f", "m", "m"] * 3
    assert told_of(alike, alike) == told_of(alike) == []
    assert [rows.cells for rows in told_of(alike, ([44.0] * 9, alike[1]))] == [9, 9]


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, dict[str, Any], pd.DataFrame]:
    """A run on a table of four wards: of one patient, of two patients, of well patients alone, and of both kinds. Noise hides
    what its uploads would reveal."""
    folder, draw = tmp_path_factory.mktemp("wards"), np.random.default_rng(0)
    wards = np.repeat(["a", "b", "c", "d"], [1, 2, 9, 9])
    table = pd.DataFrame(draw.normal(size=(21, 3)).round(2), columns=["age", "pressure", "weight"])
    table["outcome"] = np.where((wards == "c") | ((wards == "d") & (table.age > 0)), "well", "sick")
    table["ward"] = wards
    table.to_csv(folder / "train.csv", index=False)
    table.to_csv(folder / "test.csv", index=False)
    changes = {
        "data.name": str(folder), "data.label": "outcome", "data.partition.name": "by_column", "data.partition.column": "ward",
        "data.clients": 4, "train.participation": 1.0, "train.rounds": 1, "wire.keep_payloads": "all",
        "wire.transforms": [{"name": "gaussian", "variance": 1.0}],
    }  # fmt: skip
    play(folder / "run", "fedavg", **changes)
    return RunRecord(folder / "run"), json.loads((folder / "run" / "summary.json").read_text()), table


def test_counts_of_classes_before_round_1_tell_classes(wards: tuple[RunRecord, dict[str, Any], pd.DataFrame]) -> None:
    record, _, table = wards
    messages = [infer_labels(record, *message) for message in record.messages()]
    findings = label_findings(messages)
    counts = [table[table.ward == ward].outcome.eq(kind).sum() for ward in "abcd" for kind in ("sick", "well")]
    read = [message.by[BEFORE_TRAINING].counts for message in messages]
    assert [int(count) for client in read if client is not None for count in client] == counts
    assert all(result.rule == BEFORE_TRAINING and result.stated and result.exact for result in findings.labels)
    run = replace(built.run(), labels=findings.labels, label_rules=findings.rules)
    assert answer(run).words == "Classes were inferred"
    assert metrics(run)["labels"] == 1.0
    assert "eval.metric" in changes(concluded(run), [])[0]


def test_statistics_of_one_row_tell_it(wards: tuple[RunRecord, dict[str, Any], pd.DataFrame]) -> None:
    record, summary, table = wards
    before = facts(record, summary).before
    run = replace(built.run(), before=before)
    assert [(client.client, client.rows, client.columns, client.cells) for client in run.told_rows] == [
        (0, 1, 3, 3),
        (1, 2, 3, 6),
    ]
    assert [client.whole for client in run.told_rows] == [True, False]
    assert answer(run).words == "Samples were recovered"
    assert metrics(run)["recovered"] == 1.0 and metrics(run)["cells"] == 1.0
    assert "--secure-aggregation" in changes(concluded(run), [])[0]
    only_cells = replace(run, before=tuple(line for line in before if line.client))
    assert answer(only_cells).words == "Cells were found" and "recovered" not in metrics(only_cells)
    assert "6 of the 6 cells of the 2 rows of client 1" in answer(only_cells).sentence
    numbers, alone = told_totals(record.store.statistics())[0].moments, table[table.ward == "a"].iloc[0]
    assert [column.mean for column in numbers] == [alone[name] for name in ("age", "pressure", "weight")]
