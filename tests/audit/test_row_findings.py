"""What attacks on rows of a table show: the judge, the answer, the sentences, the measures and the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binom

from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.answer import MEMBERS, NOT_KNOWN, NOTHING, SAMPLES, SINGLES, WORDS_OF_TEXTS, concluded
from fedpriv.audit.conditions import conditions, first_met
from fedpriv.audit.judge import attributes, rows
from fedpriv.audit.judge.measures import known_recovered, metrics, most_open
from fedpriv.audit.page.change import changes
from fedpriv.audit.page.findings import findings
from fedpriv.audit.results.audit import Audit, AuditedRun
from fedpriv.audit.results.rows import RowRates
from fedpriv.audit.results.stored import from_json, to_json
from fedpriv.audit.rows.attributes import paired_interval
from fedpriv.audit.rows.figures import by_chance, rates_of
from tests.audit import built
from tests.audit.built import CUT, NO_CONTROL, attribute, member, row
from tests.audit.sample_findings import findings as whole_findings

HARDER = Reason("differs from controls", "239 rows are behind a message, and its control has at most 16")


def table(**changes: Any) -> AuditedRun:
    """A run on a table, on which nothing was found by attacks whose failure is evidence."""
    about: dict[str, Any] = {
        "modalities": (), "images": (), "texts": (), "membership": (member(),), "attributes": (attribute(),),
        "rows": (built.rows(row(cells=20)), built.rows(row(cells=20), kind="single row")),
    }  # fmt: skip
    return concluded(built.run(**(about | changes)))


def test_rows_count_beyond_guesses_alone() -> None:
    whole, some, same = row(cells=50, whole=10), row(cells=35, by_chance=1e-4), row(cells=20, whole=2, sure=0)
    lucky, alike = row(cells=25, by_chance=0.3), RowRates(cells=wilson(50, 50), rows=wilson(10, 10))
    target = built.rows(whole, some, same, lucky)
    beyond = [rows.beyond_guesses(attack.figures, target.baselines) for attack in rows.ran(target)]
    assert beyond == [True, True, False, False]
    assert rows.whole_rows(next(rows.ran(target)).figures, target.baselines)
    assert not rows.beyond_guesses(next(rows.ran(target)).figures, {"twins": alike}), "guesses find as many"
    assert rows.recovered(next(rows.ran(built.rows(whole, baselines={"twins": alike})))).successes == 0


def test_a_failure_counts_only_with_evidence() -> None:
    doubtful, sound = row("tableak", 20, 0, NO_CONTROL), row("closed-form", 20)
    assert rows.best(built.rows(doubtful)) is None and not rows.is_known(built.rows(doubtful))
    assert (best := rows.best(built.rows(doubtful, sound))) is not None and best.outcome.attack == "closed-form"
    part = built.rows(row("tableak", 30, 3, NO_CONTROL))
    assert rows.best(part) is not None and rows.may_be_more(part) == NO_CONTROL.text


def test_by_chance_is_the_probability_under_the_guess() -> None:
    guess = torch.zeros(7, 4, dtype=torch.bool)
    guess[:, 0] = True
    better = guess.clone()
    better[:, 1] = True
    assert by_chance(better, {"typical": guess}) == pytest.approx(1 / 2**7), "each of seven rows is one cell better: 2^-7"
    assert by_chance(guess, {"typical": guess}) == 1.0
    few = by_chance(better[:2], {"typical": guess[:2]})
    assert few == pytest.approx(float(binom.sf(3, 8, 0.25))), "four of eight cells, each right with a quarter"
    assert by_chance(better, {"typical": guess, "others": better}) == 1.0, "the best guess counts"
    rates = rates_of(torch.tensor([[True, True], [True, False]]))
    assert (rates.cells.successes, rates.cells.n, rates.rows.successes, rates.rows.n) == (3, 4, 1, 2)


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({}, NOTHING, "Nothing was found"),
        ({"rows": (built.rows(row(cells=50, whole=10)),)}, SAMPLES, "Samples were recovered"),
        ({"rows": (built.rows(row(cells=35, by_chance=1e-4)),)}, WORDS_OF_TEXTS, "Cells were found"),
        ({"attributes": (attribute(), attribute(10, 1, low=0.1))}, MEMBERS, "Attributes were inferred"),
        ({"rows": (built.rows(row(cells=50, whole=10), kind="single row"),)}, SINGLES, "Single samples leak"),
        ({"rows": (built.rows(row("x", 20, 0, HARDER)),)}, NOT_KNOWN, "Leakage not known"),
        ({"rows": (), "not_run": {"rows": CUT}}, NOT_KNOWN, "Leakage not known"),
        ({"not_run": {"single rows": CUT}}, NOT_KNOWN, "Leakage not known"),
        ({"attributes": (attribute(0, 0, NO_CONTROL),)}, NOT_KNOWN, "Leakage not known"),
        ({"attributes": ()}, NOT_KNOWN, "Leakage not known"),
    ],
)
def test_the_answer_of_a_table(changes: dict[str, Any], level: int, words: str) -> None:
    answer = table(**changes).concluded
    assert (answer.level, answer.words) == (level, words), answer.sentence


def test_sentences_give_the_rates_beside_the_guesses() -> None:
    run = table(rows=(built.rows(row(cells=45, whole=6)),), attributes=(attribute(10, 1, low=0.1), attribute(column="sex")))
    sentence = run.concluded.sentence
    assert "90.0 % of the cells" in sentence and "guesses: 40.0 %" in sentence and "6 of 10 rows right in every cell" in sentence
    (hidden,) = (sentence for sentence in run.verdict if sentence.startswith("An attacker who knows everything else"))
    assert "78% of the values of smoker in 32 rows" in hidden and "+28 percentage points" in hidden and "sex" not in hidden
    chance = concluded(table(rows=(built.rows(row(cells=45, whole=6, sure=1)),)))
    assert "6 of 10 rows right in every cell" in chance.concluded.sentence and "1 hardly by chance" in chance.concluded.sentence
    assert any("known members" in sentence for sentence in table(known_members=tuple(rows.known_members(run.rows))).verdict)
    nothing = " ".join(table().verdict)
    assert "No row behind client 2's message of round 1 was recovered" in nothing
    assert "no significant gain from the messages" in nothing
    unknown = " ".join(table(rows=(built.rows(row("x", 20, 0, HARDER)),)).verdict)
    assert "so what it reveals is not known (x: recovered no more than guesses, which is no evidence: 239 rows" in unknown


def test_measures_of_a_table() -> None:
    run = table(rows=(built.rows(row(cells=45, whole=6)),), attributes=(attribute(10, 1, low=0.1),))
    assert run.metrics["recovered"] == run.metrics["recovered_from_message"] == 0.6
    assert run.metrics["cells"] == run.metrics["cells_from_message"] == 0.9
    assert run.metrics["attribute_advantage"] == pytest.approx(9 / 32)
    assert (
        first_met([run], conditions("cells>0.5")) is not None and first_met([run], conditions("attribute_advantage>0.5")) is None
    )
    assert (open_rate := most_open(run)) is not None and open_rate.rate.successes == 6
    safe = table()
    assert safe.metrics["cells"] == safe.metrics["recovered"] == safe.metrics["attribute_advantage"] == known_recovered(safe) == 0
    assert first_met([safe], conditions("cells>0,recovered>0,attribute_advantage>0")) is None
    unknown = table(rows=(built.rows(row("x", 20, 0, HARDER)),), attributes=(attribute(0, 0, NO_CONTROL),))
    assert known_recovered(unknown) is None and "cells" not in metrics(unknown)
    for wanted in ("cells>0.5", "recovered>0.5", "attribute_advantage>0.5"):
        assert "not known" in str(first_met([unknown], conditions(wanted))), wanted


def test_what_would_change_the_answer_is_a_target_that_the_run_misses() -> None:
    cells = table(rows=(built.rows(row(cells=35, by_chance=1e-4)),))
    hidden = table(attributes=(attribute(10, 1, low=0.1),))
    for run, target in ((cells, "cells<=0"), (hidden, "attribute_advantage<=0")):
        assert target in str(changes(run, [])), target


def test_the_page_shows_a_row_cell_by_cell() -> None:
    run = table(rows=(built.rows(row(cells=45, whole=6)),), attributes=(attribute(10, 1, low=0.1), attribute(0, 0, NO_CONTROL)))
    sections = {str(section.title): str(section) for section in findings(run)}
    attacks = sections["Attacks on rows"]
    assert "46.8" in attacks and "most frequent values (guess)" in attacks and "45 of 50" in attacks
    assert "inconclusive: no control shows" in sections["Hidden values of rows"] and "26 of 32" not in attacks
    none = {str(section.title): str(section) for section in findings(table(rows=(), attributes=(), not_run={"rows": CUT}))}
    assert "No attack on rows was mounted" in none["Attacks on rows"] and CUT.text in none["Attacks on rows"]
    assert "No column was hidden" in none["Hidden values of rows"]
    others = [str(section.title) for section in findings(whole_findings().runs[0])]
    assert "Attacks on rows" not in others and "Hidden values of rows" not in others


def test_rows_survive_json() -> None:
    audit = whole_findings()
    run = table(rows=(built.rows(row(cells=45, whole=6)),))
    audit = replace(audit, runs=(run,))
    assert from_json(Audit, to_json(audit)).runs[0].rows == run.rows


def test_the_interval_of_a_paired_difference() -> None:
    """By hand, of 10 and 2 discordant pairs of 50: (10.5 - 2.5) / 52, and its adjusted Wald error."""
    low, high = paired_interval(10, 2, 50, 0.05)
    error = (10.5 + 2.5 - 64 / 52) ** 0.5 / 52
    assert (low, high) == pytest.approx((8 / 52 - 1.959964 * error, 8 / 52 + 1.959964 * error))
    assert paired_interval(0, 0, 50, 0.05)[0] < 0 < paired_interval(0, 0, 50, 0.05)[1]
    narrow, wide = paired_interval(10, 2, 50, 0.05), paired_interval(10, 2, 50, 0.05 / 39)
    assert wide[0] < narrow[0] and attributes.FEW
