"""``--json``: the last line of standard output is one object; everything for people goes to standard error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedpriv.files import load_json
from tests.marks import slow_but
from tests.simulation.small import flags

Fedpriv = Callable[..., Result]
KEYS = {
    "run_id",
    "method",
    "dataset",
    "seed",
    "rounds",
    "accuracy",
    "accuracy_per_client",
    "bytes_up",
    "bytes_down",
    "seconds",
    "run_dir",
}


def last_line(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("method", slow_but(["fedavg"], ["mpfedcon", "fedavg", "local"]))
def test_train(empty_folder: Path, fedpriv: Fedpriv, method: str) -> None:
    result = fedpriv("train", *flags(method, **{"train.rounds": 2}), "--json")
    found = last_line(result)
    assert len(result.stdout.splitlines()) == 1
    assert found.keys() >= KEYS
    (folder,) = (empty_folder / "runs").iterdir()
    assert found == load_json(folder / "summary.json")
    assert (found["method"], found["dataset"], found["seed"], found["rounds"]) == (method, "digits", 0, 2)
    assert (found["run_id"], Path(found["run_dir"])) == (folder.name, folder)
    assert 0 <= found["accuracy"] <= 1 and len(found["accuracy_per_client"]) == 10
    assert found["seconds"] > 0
    assert found["bytes_up"] > 0, "reports, at least"
    assert (found["bytes_down"] > 0) == (method != "local")
    assert "round 2/2" in result.stderr and "accuracy per client" in result.stderr


@pytest.mark.slow
def test_without_it_the_summary_is_for_people(empty_folder: Path, fedpriv: Fedpriv) -> None:
    """Progress on standard error; the summary, whole, on standard output, however narrow that is."""
    deep = empty_folder / ("deep" * 20) / "run[1]" / "run[bold]"
    deep.parent.mkdir(parents=True)
    (deep.parent / ".hidden").touch()
    result = fedpriv("train", *flags("fedavg", **{"train.rounds": 2}), "--run-dir", deep)
    assert result.exit_code == 0
    assert "round 2/2" in result.stderr and "round" not in result.stdout.split("rounds")[0]
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines() if "  " in line)
    assert lines["run folder"].strip() == str(deep.relative_to(empty_folder))
    assert "accuracy per client, mean of the last 2 rounds" in lines
    assert "traffic" in lines and lines["clients that never took part"].strip().endswith(", whose accuracy is in the mean")
    assert f"fedpriv audit '{deep.relative_to(empty_folder)}'" in result.stdout, "as a shell takes it"
    assert f"fedpriv compare '{deep.parent.relative_to(empty_folder)}'/*" in result.stdout


def test_beside_other_files_it_does_not_say_to_compare_all_of_them(empty_folder: Path, fedpriv: Fedpriv) -> None:
    (empty_folder / "notes.txt").touch()
    result = fedpriv("train", *flags("fedavg", **{"train.rounds": 1}), "--run-dir", "my run")
    assert "fedpriv compare 'my run' OTHER_RUN" in result.stdout and "/*" not in result.stdout


def test_beside_a_damaged_run_it_ends_as_usual(empty_folder: Path, fedpriv: Fedpriv) -> None:
    for name in ("a", "b"):
        result = fedpriv("train", *flags("fedavg", **{"train.rounds": 1}), "--run-dir", f"runs/{name}", "--json")
        assert last_line(result)["run_id"] == name and f"fedpriv compare runs/{'*' if name == 'a' else 'b '}" in result.stderr
        (empty_folder / "runs" / name / "summary.json").write_text('{"run_id')


@pytest.mark.parametrize(("sizes", "said"), [((70, 74), "70-74 samples"), ((48, 48), "48 samples"), ((1, 1), "1 sample")])
def test_how_many_samples_the_clients_hold(sizes: tuple[int, int], said: str) -> None:
    from fedpriv.cli.report import _samples

    assert _samples(*sizes) == said


@pytest.mark.slow
def test_resume(empty_folder: Path, fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.simulation import run

    with monkeypatch.context() as broken:
        broken.setattr(run, "write_results", lambda *simulation: 1 / 0)
        assert fedpriv("train", *flags("fedavg", **{"train.rounds": 1}), "--run-dir", "one").exit_code == 1
    result = fedpriv("resume", "one", "--json")
    assert last_line(result).keys() >= KEYS
    assert len(result.stdout.splitlines()) == 1


def test_an_error_is_json_too(fedpriv: Fedpriv) -> None:
    result = fedpriv("train", "--json", "--method", "nothing")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"].startswith("unknown method 'nothing'")
    assert fedpriv("train", "--method", "nothing").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("train --rounds abc", "Invalid value for '--rounds': 'abc'"),
        ("train --no-such-flag", "--no-such-flag"),
        ("train --workers foo", "'foo' is neither a number of processes"),
        ("audit run --budget soon", "'soon': a time above 0"),
        ("resume", "Missing argument 'RUN'"),
        ("tarin", "'tarin'"),
        ("data shwo", "'shwo'"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_json_too(fedpriv: Fedpriv, arguments: str, why: str) -> None:
    result = fedpriv(*arguments.split(), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 2 and why in found["error"] and found["family"] == "usage"
    assert found["error"].removesuffix(".") in " ".join(result.stderr.split())


def test_methods(fedpriv: Fedpriv) -> None:
    result = fedpriv("methods", "--json")
    found = {method["name"]: method for method in last_line(result)["methods"]}
    assert {"mpfedcon", "fedrep", "fedper", "fedavg", "fedavg-ft", "local"} <= found.keys()
    assert found["mpfedcon"]["shares"] == ["encoder"] and found["mpfedcon"]["broadcasts_initial_model"]
    assert found["local"]["shares"] == []
    options = {option["name"]: option for option in found["mpfedcon"]["options"]}
    assert options["mu"]["default"] == 10.0 and options["mu"]["description"]
    assert len(result.stdout.splitlines()) == 1


def test_methods_by_name(fedpriv: Fedpriv) -> None:
    found = last_line(fedpriv("methods", "mean", "fedper", "--json"))
    assert [row["name"] for group in found.values() for row in group] == ["fedper", "mean"]
    assert found["methods"][0]["keeps"] == ["projector", "head"]
    wrong = fedpriv("methods", "fedpr")
    assert wrong.exit_code == 2 and "did you mean 'fed" in wrong.stderr


@pytest.mark.slow
def test_models(fedpriv: Fedpriv) -> None:
    found = {model["name"]: model for model in last_line(fedpriv("models", "--json"))["models"]}
    assert found["cnn10"]["bytes"]["encoder"] == 4 * found["cnn10"]["parameters"]["encoder"]


def test_data_list(fedpriv: Fedpriv) -> None:
    found = last_line(fedpriv("data", "list", "--json"))
    assert "digits" in {row["name"] for row in found["datasets"]}
    assert {"classes", "dirichlet"} <= {row["name"] for row in found["partitions"]}


def test_a_warning_shows_its_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from fedpriv.cli.report import Reporter

    Reporter(Console()).warn("cannot write runs/[red]/a[/x]")
    assert capsys.readouterr().err == "fedpriv: cannot write runs/[red]/a[/x]\n"


def test_a_long_round_shows_its_clients_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    from fedpriv.cli import report

    monkeypatch.setattr(report, "terminal", lambda err: Console(file=StringIO(), force_terminal=True, width=100))
    reporter = report.Reporter(Console())
    seconds = 0.0
    reporter._bar.get_time = lambda: seconds
    reporter.begin(rounds=3, done=0)

    def shown() -> list[str]:
        return [str(task.fields["what"]) for task in reporter._bar.tasks if task.visible]

    reporter.on_answer(1, 8)
    assert shown() == ["round"]
    seconds = report.LONG + 1
    reporter.on_answer(2, 8)
    assert shown() == ["round", "clients"]
    clients = reporter._bar.tasks[-1]
    assert (clients.completed, clients.total) == (2, 8)
    reporter.on_round({"round": 1, "metrics": {"total_bytes_up": 1, "total_bytes_down": 1, "seconds": 3.0}})
    assert shown() == ["round"] and reporter._bar.tasks[0].completed == 1
    reporter.on_answer(3, 8)
    assert shown() == ["round"], "the next round is timed from its own beginning"
