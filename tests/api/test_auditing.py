"""The audit as a function: the command's findings, as an object that shows itself."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedpriv
import fedpriv.audit.report
from fedpriv.audit.answer import CLASSES, NOT_KNOWN, NOTHING, SAMPLES, WORDS
from fedpriv.audit.run_audit import Audited

QUICK: dict[str, Any] = {"messages": 1, "label_shadows": 0, "membership_shadows": 0, "singles": 1, "budget": 1e-6}


@pytest.fixture(scope="module")
def report(run: fedpriv.Run) -> fedpriv.Report:
    """Of an audit whose budget leaves no time for attacks that cost some."""
    threads, said = torch.get_num_threads(), list[str]()
    found = fedpriv.audit(run, say=said.append, **QUICK)
    assert torch.get_num_threads() == threads and any("what left the clients" in text for text in said)
    return found


def test_the_package_and_the_function_are_one() -> None:
    assert fedpriv.audit.report.audit  # type: ignore[attr-defined]  # the package, which the command imports from


def test_its_findings_are_those_of_the_command(run: fedpriv.Run, report: fedpriv.Report) -> None:
    assert list(report.answers) == [run.name] and report.answer == report.runs[0].concluded.words
    assert report.verdict == list(report.runs[0].verdict) and report.audit.options["messages"] == 1
    assert json.loads((run.path / "audit" / "audit.json").read_text()) == report.to_json()
    assert "budget" in " ".join(report.runs[0].concluded.not_tried)
    told = "messages=1, label_shadows=0, membership_shadows=0, singles=1, budget=1e-06"
    assert report.audit.command == f"fedpriv.audit(['{run.name}'], {told})"


def test_conditions_of_the_command(report: fedpriv.Report) -> None:
    exact = sum(one.exact for one in report.runs[0].labels) / len(report.runs[0].labels)
    assert report.met(f"labels>={exact}") is not None and report.met("labels>1") is None
    with pytest.raises(fedpriv.UsageError):
        report.met("leakage>0")


def test_it_shows_itself(report: fedpriv.Report) -> None:
    (page,) = re.findall('<iframe sandbox srcdoc="([^"]*)"', report._repr_html_())
    assert html.unescape(page) == report.html() and report.answer in page
    assert report.answer in repr(report) and "\n" not in repr(report)
    assert report.answer in report.markdown()


def test_what_cannot_be_audited(run: fedpriv.Run, tmp_path: Any) -> None:
    with fedpriv.rounds(run.config, run_dir=tmp_path / "half") as rounds:
        next(rounds)
    with pytest.raises(fedpriv.UsageError, match=r"is not finished; `fedpriv resume"):
        fedpriv.audit(rounds.run)
    with pytest.raises(fedpriv.UsageError, match="messages = 0: at least 1"):
        fedpriv.audit(run, messages=0)
    for name, text in (("budget", "2m"), ("singles", "6")):
        with pytest.raises(fedpriv.UsageError, match=f"{name} = '{text}': .* number"):
            fedpriv.audit(run, **{name: text})


@pytest.fixture
def audited_as(
    run: fedpriv.Run, report: fedpriv.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Callable[..., fedpriv.Report]]:
    """A copy of the run without an audit, and a function that audits it with a given answer."""
    folder = tmp_path / "copy"
    shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("audit"))

    def found(level: int, **options: Any) -> fedpriv.Report:
        (own,) = report.audit.runs
        answered = replace(own, answer=replace(own.concluded, words=WORDS[level], level=level))
        audited = Audited(replace(report.audit, runs=(answered,)), report.pictures)
        monkeypatch.setattr(fedpriv.audit.report, "audit", lambda *given: audited)
        return fedpriv.audit(folder, **options)

    return folder, found


def answer_in(folder: Path) -> str:
    (run,) = json.loads((folder / "audit.json").read_text(encoding="utf-8"))["runs"]
    return str(run["answer"]["words"])


@pytest.mark.parametrize(
    ("first", "second"), [(SAMPLES, NOT_KNOWN), (SAMPLES, NOTHING), (SAMPLES, CLASSES), (NOTHING, NOT_KNOWN)]
)
def test_the_audit_that_says_more_stands(
    audited_as: tuple[Path, Callable[..., fedpriv.Report]], caplog: pytest.LogCaptureFixture, first: int, second: int
) -> None:
    folder, found = audited_as
    own, later = folder / "audit", folder / "audit" / "later"
    found(first)
    assert not caplog.messages
    (own / "unfinished").mkdir()
    report = found(second)
    assert (report.answer, answer_in(own), answer_in(later)) == (WORDS[second], WORDS[first], WORDS[second])
    assert (later / "audit.html").exists() and not (own / "unfinished").exists()
    (told,) = caplog.messages
    assert all(part in told for part in (WORDS[first], WORDS[second], str(later), f"delete {own}"))
    shutil.rmtree(own)
    found(second)
    found(first)  # the other order
    assert answer_in(own) == WORDS[first] and not later.exists()
    assert len(caplog.messages) == 1


def test_an_answer_of_the_same_kind_is_replaced_by_the_newer(
    audited_as: tuple[Path, Callable[..., fedpriv.Report]], caplog: pytest.LogCaptureFixture
) -> None:
    folder, found = audited_as
    found(SAMPLES)
    (folder / "audit" / "audit.md").write_text("old", encoding="utf-8")
    found(SAMPLES)
    assert (folder / "audit" / "audit.md").read_text(encoding="utf-8") != "old" and not caplog.messages


def test_a_weaker_report_for_which_a_folder_is_named_is_only_there(
    audited_as: tuple[Path, Callable[..., fedpriv.Report]], tmp_path: Path
) -> None:
    folder, found = audited_as
    found(SAMPLES)
    found(NOT_KNOWN, output=tmp_path / "there")
    assert answer_in(folder / "audit") == WORDS[SAMPLES] and answer_in(tmp_path / "there") == WORDS[NOT_KNOWN]
    assert not (folder / "audit" / "later").exists()


@pytest.mark.parametrize("change", [{"format": 1}, {"runs": "none"}, {"runs": []}, None])
def test_a_report_that_cannot_be_read_is_replaced(
    audited_as: tuple[Path, Callable[..., fedpriv.Report]], change: dict[str, Any] | None
) -> None:
    folder, found = audited_as
    found(SAMPLES)
    path = folder / "audit" / "audit.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    path.write_text("{" if change is None else json.dumps(stored | change), encoding="utf-8")
    found(NOT_KNOWN)
    assert answer_in(folder / "audit") == WORDS[NOT_KNOWN]


def test_the_report_on_another_run_is_replaced(audited_as: tuple[Path, Callable[..., fedpriv.Report]]) -> None:
    folder, found = audited_as
    found(SAMPLES)
    path = folder / "audit" / "audit.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    stored["runs"][0]["run_id"] = "another"
    path.write_text(json.dumps(stored), encoding="utf-8")
    found(NOT_KNOWN)
    assert answer_in(folder / "audit") == WORDS[NOT_KNOWN]
