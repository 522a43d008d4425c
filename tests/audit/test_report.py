"""``fedpriv audit`` on small runs: what it writes, what it says, and when it says nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.scoring.operating_points import Area
from fedpriv.audit.judge.measures import metrics
from fedpriv.audit.membership.inference import ROWS, Membership, membership
from fedpriv.audit.membership.label_leaks import infer_labels, label_findings
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.report import _compared
from fedpriv.audit.results.audit import Audit
from fedpriv.audit.results.stored import from_json
from fedpriv.cli import main
from fedpriv.errors import FedprivError
from tests.audit.sample_findings import findings
from tests.simulation.small import config, play

QUICK = ("--messages", "1", "--label-shadows", "4", "--membership-shadows", "4", "--workers", "1")


pytestmark = pytest.mark.usefixtures("hardly_any_steps")


def fedpriv(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Finished small runs by name, each made once."""
    folder, folders = tmp_path_factory.mktemp("runs"), dict[str, Path]()
    masked = {"wire.transforms": [{"name": "mask", "last": 1}]}
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "fedavg": ("fedavg", {}),
        "mpfedcon": ("mpfedcon", {}),
        "masked": ("fedavg", masked),
    }

    def run(name: str) -> Path:
        if name not in folders:
            method, own = options[name]
            play(folder / name, method, **own, **{"data.limit": 300})
            folders[name] = folder / name
        return folders[name]

    return run


def test_two_runs_side_by_side(runs: Callable[[str], Path], tmp_path: Path) -> None:
    first, second = runs("fedavg"), runs("masked")
    result = fedpriv("audit", first, second, *QUICK, "--output", tmp_path / "report", "--json")
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout.splitlines()[-1])
    assert [run["name"] for run in output["runs"]] == ["fedavg", "masked"]
    assert f"{first} {second} {' '.join(QUICK)} --output" in output["command"], "as it was typed"
    for folder in (tmp_path / "report", first / "audit", second / "audit"):
        assert {"audit.html", "audit.md", "audit.json", "pictures"} <= {path.name for path in folder.iterdir()}
        assert json.loads((folder / "audit.json").read_text())["runs"] == output["runs"]
    plain, masked = output["runs"]
    assert plain["cost"]["against"] is None and masked["cost"]["against"] == "fedavg"
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (first, second)]
    difference = summaries[1]["accuracy"] - summaries[0]["accuracy"]
    assert masked["cost"]["accuracy_difference"] == pytest.approx(difference)
    assert masked["cost"]["bytes_up_ratio"] == summaries[1]["bytes_up"] / summaries[0]["bytes_up"] < 1
    up = {item["name"] for item in plain["wire"]["tensors"] if item["up"]} - {
        item["name"] for item in masked["wire"]["tensors"] if item["up"]
    }
    assert up == {"head.weight", "head.bias"}
    tried = {item["attack"] for target in masked["images"] for item in target["outcomes"]}
    assert {"random-head", "known-head", "joint-head", "head-free", "analytic"} <= tried
    for run in output["runs"]:
        page = (first / "audit" / "audit.html").read_text()
        assert all(run[key] in page for key in ("run_id", "partition_hash"))
        assert {target["kind"] for target in run["images"]} == {"message", "single image"}
        assert {item["name"] for item in run["membership_controls"]} == {"positive", "negative"}
        assert [item for item in run["membership_controls"] if not (item["passed"] and item["sentence"] in page)] == []
        assert any("row distance" in item["attack"] for item in run["membership"])
        assert all(item["status"]["word"] != "not run" for item in run["membership"])
        for item in run["membership"]:
            area = item["points"]["auc"]
            assert item["together"]["low"] < area["low"] <= area["high"] <= item["together"]["high"]
        assert all(item["inferred"] == item["true"] for item in run["labels"]) or run is masked
        (typed,) = (each for each in from_json(Audit, output).runs if each.name == run["name"])
        values = metrics(typed)
        assert values.keys() >= {"recovered_from_message", "membership_auc"}
        assert ("labels_exact" in values) == (run is not masked)  # where no rule applies, nothing was measured


def test_runs_of_different_executors_are_compared() -> None:
    """DP-SGD trains client by client, where the undefended run may have trained groups; a run records which."""
    plain, defended, _ = findings().runs
    plain = replace(plain, config_yaml=config("fedavg", **{"executor.name": "vectorized", "executor.group_size": 2}).to_yaml())
    private = {"privacy.level": "sample", "privacy.noise": 1.0, "executor.workers": 2, "threads": 2}
    defended = replace(defended, config_yaml=config("fedavg", **private).to_yaml(), cost=replace(defended.cost, against=None))
    assert _compared([plain, defended])[1].cost.against == plain.name
    other = replace(defended, config_yaml=config("fedavg", **private, seed=1).to_yaml())
    assert _compared([plain, other])[1].cost.against is None


def made_of(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The membership attacks that were run."""
    return [item for item in run["membership"] if item["points"] is not None]


def refused(run: dict[str, Any], round: int) -> str:
    """Why no attack of a round was run."""
    (item,) = (item for item in run["membership"] if item["attack"] == "every membership attack" and item["round"] == round)
    return str(item["status"]["reasons"][0]["text"])


@pytest.mark.slow
def test_membership_is_attacked_in_each_round_that_is_looked_at(runs: Callable[[str], Path], monkeypatch: Any) -> None:
    options = ("--messages", 2, "--label-shadows", 0, "--membership-shadows", 4, "--workers", 1, "--json")
    known = dict[int, Membership]()

    def once(*asked: Any) -> Membership:
        known[asked[1]] = known.get(asked[1]) or membership(*asked)
        return known[asked[1]]

    monkeypatch.setattr("fedpriv.audit.run_audit.on_images", lambda *asked: [])
    monkeypatch.setattr("fedpriv.audit.membership.rounds.membership", once)
    (run,) = json.loads(fedpriv("audit", runs("mpfedcon"), *options).stdout.splitlines()[-1])["runs"]
    by_round = {round: {item["attack"] for item in made_of(run) if item["round"] == round} for round in (1, 3)}
    assert sorted({item["round"] for item in made_of(run)}) == [1, 3]
    assert all("class centres" in attacks and "row distance" in attacks for attacks in by_round.values())
    assert {item.partition(" (")[0].partition(",")[0] for item in by_round[3] - by_round[1]} == {"FedMIA"}
    assert {item["together"]["of"] for item in made_of(run)} == {len(made_of(run))}
    assert not any("class centres" in item for item in run["answer"]["not_tried"])

    def only_last(*asked: Any) -> Membership:
        if asked[1] != 3:
            raise FedprivError("no candidates are left")
        return once(*asked)

    monkeypatch.setattr("fedpriv.audit.membership.rounds.membership", only_last)
    (run,) = json.loads(fedpriv("audit", runs("mpfedcon"), *options).stdout.splitlines()[-1])["runs"]
    assert {item["round"] for item in made_of(run)} == {3} and refused(run, 1) == "no candidates are left"

    def blamed(*asked: Any) -> Membership:
        result = once(*asked)
        return replace(result, controls=result.controls | {ROWS: Area(0.9, 0.8, 1.0)}) if asked[1] == 3 else result

    monkeypatch.setattr("fedpriv.audit.membership.rounds.membership", blamed)
    (run,) = json.loads(fedpriv("audit", runs("mpfedcon"), *options).stdout.splitlines()[-1])["runs"]
    assert {item["round"] for item in made_of(run)} == {1}
    assert refused(run, 3).startswith("row distance found members in the negative control")
    failed = [item for item in run["membership_controls"] if not item["passed"]]
    assert [item["attacker"] for item in failed] == ["row distance"] and "round 3: an upload" in failed[0]["sentence"]


@pytest.mark.slow
def test_the_analytic_attack_finds_images_of_a_real_run(runs: Callable[[str], Path]) -> None:
    """The positive control of the whole way from the wire to the page: a linear first layer gives images away."""
    result = fedpriv("audit", runs("mpfedcon"), *QUICK, "--membership-shadows", 0, "--label-shadows", 0, "--json")
    (run,) = json.loads(result.stdout.splitlines()[-1])["runs"]
    easiest = next(target for target in run["images"] if target["kind"] == "single image")
    analytic = next(item["figures"] for item in easiest["outcomes"] if item["attack"] == "analytic")
    near = analytic["success"]["0.01"]
    assert near["successes"] == near["n"] and analytic["mse_median"] < 1e-9
    assert run["labels"] and all(item["inferred"] == item["true"] and item["stated"] for item in run["labels"])
    assert run["centers"] and run["membership"] == []
    message = next(target for target in run["images"] if target["kind"] == "message")
    hits = max(item["figures"]["success"]["0.01"]["successes"] for item in message["outcomes"] if item["figures"])
    assert hits and [item["rate"]["successes"] for item in run["known_members"]] == [hits]
    assert any(f"Reconstructed samples are known members: {hits} of" in sentence for sentence in run["verdict"])
    assert not any("distinguished from guessing" in sentence for sentence in run["verdict"])


def test_labels_are_told_by_the_last_layer(runs: Callable[[str], Path]) -> None:
    evidence = RunRecord(runs("fedavg"))
    for round, client in evidence.messages():
        (labels,) = label_findings([infer_labels(evidence, round, client)]).labels
        assert labels.true == tuple(sorted(set(evidence.truth(client).labels.tolist())))
        assert labels.exact and labels.count_accuracy is not None and 0 < labels.count_accuracy <= 1
    hidden = RunRecord(runs("masked"))
    (labels,) = label_findings([infer_labels(hidden, *hidden.messages()[0])]).labels
    assert labels.inferred == () and not labels.exact and labels.rule is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["positive", "negative"])
def test_who_fails_a_control_is_not_tried(runs: Callable[[str], Path], tmp_path: Path, monkeypatch: Any, name: str) -> None:
    """Neither run, nor said to have failed; on the page stand its control and the reason."""
    sentence = "as a control would have it"

    def only_analytic_passes(attacker: Any, *asked: Any) -> tuple[Control, ...]:
        return (Control(name, attacker.attack.name == "analytic", sentence, 0.1),)

    monkeypatch.setattr("fedpriv.attacks.lab.attempts.run_controls", only_analytic_passes)
    monkeypatch.setattr("fedpriv.attacks.image.dlg.Dlg.run", lambda *asked: pytest.fail("it was run"))
    few = ("--membership-shadows", 0, "--label-shadows", 0)
    result = fedpriv("audit", runs("fedavg"), *QUICK, *few, "--output", tmp_path / "report", "--json")
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout.splitlines()[-1])
    (run,) = output["runs"]
    for target in run["images"]:
        statuses = {item["attack"]: item["status"] for item in target["outcomes"]}
        kind = "not needed" if target["kind"] == "single image" else "control failed"
        assert statuses["dlg"]["word"] == "not run" and [item["kind"] for item in statuses["dlg"]["reasons"]] == [kind]
        assert statuses["analytic"]["word"] != "not run"
    assert {(item["attacker"], item["passed"]) for item in output["controls"]} >= {("dlg", False), ("analytic", True)}
    assert output["controls"] == run["controls"]
    for page in ("audit.html", "audit.md"):
        assert sentence in (tmp_path / "report" / page).read_text()


def test_what_cannot_be_audited(runs: Callable[[str], Path], tmp_path: Path, monkeypatch: Any) -> None:
    play(tmp_path / "silent", "local", **{"train.rounds": 1})
    result = fedpriv("audit", tmp_path / "silent", *QUICK)
    assert result.exit_code == 2 and "with method local no weights are sent" in result.stderr
    play(tmp_path / "dropped", "fedavg", **{"train.rounds": 1, "wire.keep_payloads": "none"})
    result = fedpriv("audit", tmp_path / "dropped", *QUICK)
    assert result.exit_code == 2 and "kept no payloads" in result.stderr and "--keep-payloads" in result.stderr
    (play(tmp_path / "begun", "fedavg", **{"train.rounds": 1}).folder.path / "summary.json").unlink()
    result = fedpriv("audit", tmp_path / "begun", *QUICK)
    assert result.exit_code == 2 and "not finished" in result.stderr and "resume" in result.stderr
    (tmp_path / "silent" / "summary.json").unlink()
    result = fedpriv("audit", tmp_path / "silent", *QUICK)
    assert "not finished" in result.stderr, "as of a run that was killed in its first round, and may keep payloads yet"
    began: list[str] = []
    monkeypatch.setattr("fedpriv.audit.report.audit_run", lambda *asked: began.append("work"))
    result = fedpriv("audit", runs("fedavg"), tmp_path / "begun", *QUICK)
    assert result.exit_code == 2 and "begun is not finished" in result.stderr and not began
    result = fedpriv("audit", runs("fedavg"), "--messages", 0)
    assert result.exit_code == 2 and "at least 1" in result.stderr
    assert fedpriv("audit").exit_code == 2


@pytest.mark.parametrize("where", ["/proc/report", "taken/report"])
def test_where_the_report_cannot_be_written_nothing_is_audited(
    runs: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("fedpriv.audit.report.audit", lambda *_: pytest.fail("the audit has begun"))
    (tmp_path / "taken").write_text("a file")
    result = fedpriv("audit", runs("fedavg"), *QUICK, "--output", tmp_path / where)
    assert result.exit_code == 2 and f"cannot write {tmp_path / where}: " in result.stderr, result.output
    assert "--output names another folder" in result.stderr


@pytest.mark.slow
def test_what_canaries_show_stands_beside_the_ledgers_epsilon(tmp_path: Path) -> None:
    private = {"privacy.level": "client", "privacy.noise": 1.0, "privacy.canaries": 50, "train.rounds": 1, "data.limit": 100}
    play(tmp_path / "run", "fedavg", **private)
    few = ("--messages", 1, "--singles", 1, "--label-shadows", 0, "--membership-shadows", 0)
    result = fedpriv("audit", tmp_path / "run", *few, "--fail-if", "epsilon_measured>=0")
    assert result.exit_code == 3 and "epsilon_measured is 0" in result.output
    results = json.loads((tmp_path / "run" / "audit" / "audit.json").read_text())["runs"][0]
    canaries = results["epsilon"]["canaries"]
    lower = max(bound["epsilon"] for bound in canaries["bounds"])
    assert canaries["claim"] == results["epsilon"]["upper"] > lower and canaries["canaries"] == 50
    (sentence,) = (item for item in results["verdict"] if item.startswith("Lower bounds of epsilon from 50 canaries"))
    assert sentence in (tmp_path / "run" / "audit" / "audit.md").read_text()


def test_a_budget_that_is_spent_is_said_and_nothing_is_known(runs: Callable[[str], Path], tmp_path: Path) -> None:
    result = fedpriv("audit", runs("mpfedcon"), *QUICK, "--budget", "0.001s", "--output", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout.splitlines()[-1])["runs"]
    cut = "the audit's budget of 0.001 s was spent"
    why = [reason for target in run["images"] for item in target["outcomes"] for reason in item["status"]["reasons"]]
    assert {"kind": "budget spent", "text": cut} in why and not any(
        item["figures"] for it in run["images"] for item in it["outcomes"]
    )
    assert {reason["kind"] for reason in why} <= {"budget spent", "does not apply", "too many samples", "too many steps"}
    parts = ("shadow clients", "class centres", "membership")
    assert run["not_run"] == {part: {"kind": "budget spent", "text": cut} for part in parts}
    assert run["answer"]["words"] in ("Leakage not known", "Classes were inferred")
    assert cut in (tmp_path / "audit.html").read_text(encoding="utf-8").replace("&#39;", "'")


@pytest.mark.parametrize("text", ["0s", "soon", "-2m", "inf"])
def test_a_budget_is_a_time(text: str, tmp_path: Path) -> None:
    result = fedpriv("audit", tmp_path, "--budget", text)
    assert result.exit_code == 2 and "90s, 2m or 1h" in result.output


@pytest.mark.slow
def test_the_clients_that_an_audit_simulates_hold_no_canaries(tmp_path: Path) -> None:
    private = {"privacy.level": "sample", "privacy.noise": 1.0, "privacy.canaries": 20}
    private |= {"data.limit": 400, "train.rounds": 1, "train.participation": 0.1}
    play(tmp_path / "run", "fedavg", **private)
    result = fedpriv("audit", tmp_path / "run", *QUICK, "--json")
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout.splitlines()[-1])["runs"]
    assert run["epsilon"]["canaries"] is not None and {item["kind"] for item in run["images"]} == {"message", "single image"}


@pytest.mark.slow
def test_two_processes_find_what_one_finds(runs: Callable[[str], Path]) -> None:
    def found(workers: int) -> dict[str, Any]:
        result = fedpriv("audit", runs("mpfedcon"), *QUICK[:-1], workers, "--json", "--profile")
        assert result.exit_code == 0, result.output
        assert "membership: 4 shadow models" in result.stderr and "share" in result.stderr
        (run,) = json.loads(result.stdout.splitlines()[-1])["runs"]
        return dict(run)

    def timeless(leaf: Any) -> Any:
        if isinstance(leaf, dict):
            return {key: timeless(value) for key, value in leaf.items() if "second" not in key}
        return [timeless(item) for item in leaf] if isinstance(leaf, list) else leaf

    assert timeless(found(2)) == timeless(found(1))
