"""Conditions under which an audit fails."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedpriv.audit import report
from fedpriv.audit.conditions import MEASURES, conditions, first_met
from fedpriv.audit.membership.verdict import NO_RULE
from fedpriv.audit.run_audit import Audited
from fedpriv.cli import main
from fedpriv.errors import UsageError


def run(**changes: Any) -> dict[str, Any]:
    attempt = {"attacker": "analytic", "inapplicable": None, "is_evidence": True, "mse_median": 0.1}
    rate = {"successes": 13, "n": 72, "share": 13 / 72, "low": 0.1, "high": 0.3}
    found = {
        "name": "a run",
        "attacks": [{"attempts": [attempt | {"success": {"0.01": rate}}]}],
        "texts": [],
        "membership": [{"auc": 0.57}, {"auc": 0.76}, {"auc": None}],
        "labels": [{"how": "bias", "exact": True}, {"how": "bias", "exact": False}],
        "epsilon": {"upper": 7.9, "canaries": {"lower": 8.4}},
    }
    return found | changes


def test_classes_by_any_way_count_and_no_way_is_not_known() -> None:
    none = {"how": NO_RULE, "exact": False}
    (labels,) = conditions("labels<=0.5")
    assert labels.value(run(labels=[none])) is None and not labels.holds(run(labels=[none]))
    shadow = {"exact": 1.0, "lacking": 3, "lacking_exact": 3, "p": 0.001}
    assert labels.value(run(labels=[none], label_shadow=shadow)) == 1.0
    assert labels.value(run(labels=[none], label_shadow=shadow | {"p": 0.2})) == 0.0  # mounted, and as good as guessing
    assert labels.value(run(label_shadow=shadow | {"p": 0.2})) == 0.5
    assert labels.value(run(labels_over_rounds=[{"exact": True}])) == 1.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("recovered>0", "a run: recovered is 0.181 (recovered>0)"),
        ("recovered > 0.2", None),
        ("recovered>=0.2,membership_auc>0.7", "a run: membership_auc is 0.76 (membership_auc>0.7)"),
        ("epsilon>8", None),
        ("epsilon>7.5", "a run: epsilon is 7.9 (epsilon>7.5)"),
        ("epsilon_measured>8", "a run: epsilon_measured is 8.4 (epsilon_measured>8)"),
        ("epsilon_excess>0", "a run: epsilon_excess is 0.5 (epsilon_excess>0)"),
        ("epsilon_excess>1", None),
        ("labels>=0.5", "a run: labels is 0.5 (labels>=0.5)"),
        ("labels<0.5", None),
        ("recovered<=1e-3", None),
    ],
)
def test_the_first_condition_that_holds_is_named(text: str, why: str | None) -> None:
    assert first_met([run()], conditions(text)) == why


def test_without_differential_privacy_epsilon_is_infinite() -> None:
    assert first_met([run(epsilon=None)], conditions("epsilon>1e9")) is not None


@pytest.mark.parametrize(("measure", "key"), [("recovered", "attacks"), ("membership_auc", "membership"), ("labels", "labels")])
def test_what_is_not_known_never_passes(measure: str, key: str) -> None:
    unknown = deepcopy(run(**{key: []}))
    assert f"{measure} is not known" in (first_met([unknown], conditions(f"{measure}>0.99")) or "")


@pytest.mark.parametrize("epsilon", [None, {"upper": 7.9}, {"upper": 7.9, "canaries": None}])
@pytest.mark.parametrize("measure", ["epsilon_measured", "epsilon_excess"])
def test_without_canaries_no_epsilon_is_measured(epsilon: dict[str, Any] | None, measure: str) -> None:
    assert f"{measure} is not known" in (first_met([run(epsilon=epsilon)], conditions(f"{measure}>0")) or "")


def test_an_attack_whose_controls_do_not_cover_it_is_not_known() -> None:
    blind = run()
    blind["attacks"][0]["attempts"][0] |= {"is_evidence": False, "success": {"0.01": {"successes": 0, "n": 72, "share": 0.0}}}
    assert MEASURES["recovered"](blind) is None


@pytest.mark.parametrize("text", ["", "recovered", "recovered>", "recovered=0", "recovered>0,", "recovered>1e", "recovered>nan"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as recovered>0"):
        conditions(text)


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown measure; known: recovered, membership_auc"):
        conditions("leaks>0")


@pytest.mark.parametrize(("condition", "code"), [("recovered>0", 3), ("recovered>0.9", 0), ("recovered", 2)])
def test_the_command_exits_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, condition: str, code: int) -> None:
    made = Audited(
        {
            "runs": [
                run(
                    verdict=["A sentence."],
                    answer={"words": "Nothing was found", "change": {"sentence": "A change.", "command": None}},
                )
            ]
        },
        {},
    )
    written: list[Path] = []
    command = sys.modules["fedpriv.cli.audit"]  # the package's name is its command
    monkeypatch.setattr(command, "run_folders", lambda *of: [tmp_path])
    monkeypatch.setattr(command, "send", lambda *of: None)
    monkeypatch.setattr(report, "audit", lambda *of: made)
    monkeypatch.setattr(report, "write", lambda audited, place: written.append(place))
    ended = CliRunner().invoke(main, ["audit", "a-run", "--fail-if", condition])
    assert ended.exit_code == code
    assert bool(written) == (code != 2)  # the report is there either way, and a condition is read before any work
    if code == 3:
        assert "a run: recovered is 0.181 (recovered>0); the report is" in ended.output
