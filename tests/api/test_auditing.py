"""The audit as a function: the command's findings, as an object that shows itself."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
import torch

import fedpriv
import fedpriv.audit.report

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
