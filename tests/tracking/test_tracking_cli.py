"""``fedpriv compare``, ``fedpriv sync``, ``fedpriv ui``."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from fake_runs import make_run, set_status
from PIL import Image

from fedpriv.audit.results.audit import AuditedRun
from fedpriv.audit.results.stored import to_json
from fedpriv.cli import main
from fedpriv.cli.next_commands import ui_command
from fedpriv.cli.ui import _announce
from fedpriv.storage.run_folder import RunFolder
from fedpriv.tracking.access import _limit_answers
from tests.audit.sample_findings import findings
from tests.untrusted.trickling import HEAD, trickling


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_compare_shows_runs_and_writes_the_plot(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"mp-{seed}", seed=seed) for seed in (0, 1)]
    runs.append(make_run(tmp_path, "avg-0", method="fedavg", level=0.6))
    result = call("compare", *runs, "--output", tmp_path / "out.png")
    assert result.exit_code == 0, result.output
    for word in ("mpfedcon", "fedavg", "digits", "1.6 MB", "1.7 MB", "40.0 s", "worst", "over 2 seeds"):
        assert word in result.stdout
    assert result.stderr == ""
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_compare_json(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path, f"mp-{seed}", seed=seed)
    result = call("compare", "mp-0", "mp-1", "--runs-dir", tmp_path, "--output", tmp_path / "out.png", "--json")
    result_json = json.loads(result.stdout.splitlines()[-1])
    summary = json.loads((tmp_path / "mp-0" / "summary.json").read_text())
    assert [run["run"] for run in result_json["runs"]] == ["mp-0", "mp-1"]
    assert result_json["runs"][0]["accuracy"] == summary["accuracy"]
    assert result_json["runs"][0]["worst_tenth"] == min(summary["accuracy_per_client"])
    assert result_json["groups"][0]["accuracy_std"] > 0
    assert result_json["plot"] == str(tmp_path / "out.png")


def audited(folder: Path, run: AuditedRun) -> Path:
    """The folder, with a report of it."""
    (folder / "audit").mkdir()
    run_id = json.loads((folder / "run.json").read_text())["run_id"]
    (folder / "audit" / "audit.json").write_text(json.dumps(to_json(replace(findings(), runs=(replace(run, run_id=run_id),)))))
    return folder


@pytest.mark.slow
def test_compare_shows_what_an_audit_found(tmp_path: Path) -> None:
    plain, masked, _ = findings().runs
    runs = [audited(make_run(tmp_path, "plain"), plain), audited(make_run(tmp_path, "avg", method="fedavg", level=0.6), masked)]
    runs.append(make_run(tmp_path, "other", seed=1))
    result = call("compare", *runs, "--output", tmp_path / "out.png", "--json")
    assert result.exit_code == 0, result.output
    rows = {row["run"]: row for row in json.loads(result.stdout.splitlines()[-1])["runs"]}
    assert (rows["plain"]["recovered"], rows["plain"]["answer"]) == (1.0, plain.concluded.words)
    assert rows["plain"]["membership_auc"] == max(
        membership.points.auc.value for membership in plain.membership if membership.points is not None
    )
    assert rows["plain"]["defence"] == "clip:norm=1.0"
    assert rows["other"]["answer"] is rows["other"]["recovered"] is None
    assert "100.0%" in result.stderr and result.stderr.count("not audited") == 1
    wide = Image.open(tmp_path / "out.png").width
    call("compare", runs[0], runs[2], "--output", tmp_path / "two.png")
    assert Image.open(tmp_path / "two.png").width < wide, "leakage is drawn where there is something to compare"


def test_compare_refuses_a_report_that_is_none(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "plain")
    (folder / "audit").mkdir()
    (folder / "audit" / "audit.json").write_text('{"runs": [{"answer": 3}]}')
    result = call("compare", folder, "--output", tmp_path / "out.png")
    assert result.exit_code == 1 and "audit.json is not what fedpriv writes" in result.stderr


def test_compare_warns_of_other_clients_and_other_lengths(tmp_path: Path) -> None:
    first, two = make_run(tmp_path, "one"), make_run(tmp_path, "two", method="fedavg", rounds=10)
    facts = json.loads((two / "run.json").read_text())
    (two / "run.json").write_text(json.dumps(facts | {"partition_hash": "another"}))
    result = call("compare", first, two, "--output", tmp_path / "out.png")
    assert "digits, seed 0: the clients of the runs hold different samples" in result.stderr
    assert "different lengths (10, 20 rounds)" in result.stderr


def test_compare_warns_of_data_that_changed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name, method=name) for name in ("fedavg", "fedrep", "local")]
    for folder, data_hash in zip(runs, ("a", "b", None), strict=True):  # the last one does not say it
        facts = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(facts | ({"data_hash": data_hash} if data_hash else {})))
    output = ("--output", tmp_path / "out.png")
    assert "scores on other samples of digits are not comparable" in call("compare", *runs, *output).stderr
    assert "other samples" not in call("compare", runs[0], runs[2], *output).stderr


def test_the_plot_has_one_finished_run_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (make_run(tmp_path, name, seed=seed) for name, seed in (("one", 0), ("again", 0), ("other", 1)))
    part = make_run(tmp_path, "part", seed=2)
    (part / "summary.json").unlink()
    (part / "metrics.jsonl").write_text("".join((part / "metrics.jsonl").read_text().splitlines(keepends=True)[:9]))
    set_status(part, "interrupted")
    drawn: list[dict[str, Any]] = []
    monkeypatch.setattr("fedpriv.plots.compare_curves", lambda curves, *more: drawn.append(curves))
    call("compare", first, again, other, part, "--output", tmp_path / "out.png")
    call("compare", part, "--output", tmp_path / "out.png")
    summary = json.loads((first / "summary.json").read_text())
    (first / "summary.json").write_text(json.dumps(summary | {"tested_from": 20}))  # as of one that is fine-tuned at its end
    call("compare", first, "--output", tmp_path / "out.png")
    assert [[len(curve) for curve in curves["mpfedcon"]] for curves in drawn] == [[21, 21], [9], [1]]


def test_compare_of_unfinished_and_mixed_runs(tmp_path: Path) -> None:
    done = make_run(tmp_path, "done")
    part = make_run(tmp_path, "part", dataset="cifar10", rounds=7, status="interrupted")
    none = make_run(tmp_path, "none", method="fedavg", rounds=-1, status="running")
    result = call("compare", done, part, none, "--output", tmp_path / "out.png")
    assert result.exit_code == 0, result.output
    assert "* part: interrupted" in result.stdout and "* none: running or killed" in result.stdout
    assert "7*" in result.stdout
    assert "different data sets (cifar10, digits)" in result.stderr
    with RunFolder(none).alone():
        assert "* none: running, " in call("compare", none, "--output", tmp_path / "out.png").stdout
    result = call("compare", none, "--output", tmp_path / "out.png")
    assert "* none: killed, " in result.stdout and f"`fedpriv resume {none}` continues it" in result.stdout


def test_compare_names_what_differs(tmp_path: Path) -> None:
    first, two = make_run(tmp_path, "one"), make_run(tmp_path, "two")
    (two / "config.yaml").write_text(
        (two / "config.yaml").read_text().replace("mu: 5", "mu: 1").replace("wire:", "wire:\n  keep_payloads: all")
    )
    summary = json.loads(call("compare", first, two, "--output", tmp_path / "out.png", "--json").stdout.splitlines()[-1])
    assert [group["label"] for group in summary["groups"]] == ["mpfedcon, mu 5", "mpfedcon, mu 1"]


def test_compare_of_an_unknown_run(tmp_path: Path) -> None:
    make_run(tmp_path, "known")
    result = call("compare", "knwon", "--runs-dir", tmp_path)
    assert result.exit_code == 2
    assert "did you mean 'known'" in result.stderr


def test_sync_sends_what_was_kept(runs_dir: Path) -> None:
    make_run(runs_dir, "a")
    make_run(runs_dir, "b", uri="none")
    result = call("sync", "--all", "--runs-dir", runs_dir)
    assert result.exit_code == 0, result.output
    assert "a: sent 9 params" in result.stdout and "b: the run is not tracked by MLflow" in result.stdout
    assert "a: nothing new" in call("sync", "a", "--runs-dir", runs_dir).stdout
    assert call("sync", "--runs-dir", runs_dir).exit_code == 2


def test_sync_all_skips_damaged_runs(runs_dir: Path) -> None:
    for name in ("a", "b"):
        make_run(runs_dir, name)
    (runs_dir / "a" / "summary.json").write_text("{")
    (runs_dir / "a0").mkdir()
    (runs_dir / "a0" / "run.json").write_text("{}")  # of a run whose folder was moved while it ran
    result = call("sync", "--all", "--runs-dir", runs_dir)
    assert result.exit_code == 1 and "1 of 2 runs not sent" in result.stderr
    assert "a: not sent: " in result.stdout and "summary.json is damaged" in result.stdout and "b: sent " in result.stdout


def test_sync_while_the_server_is_still_away(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for name in ("a", "b"):
        make_run(runs_dir, name, uri="http://127.0.0.1:9")
    result = call("sync", "--all", "--runs-dir", runs_dir)
    assert result.exit_code == 1
    assert result.stderr.strip() == (
        "fedpriv: tracking server http://127.0.0.1:9 does not answer; 2 of 2 runs not sent, their records are kept"
    )


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nX-Long: ", HEAD], ids=["headers", "body"])
def test_sync_ends_where_a_server_sends_a_byte_now_and_then(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """MLflow tries twice."""
    monkeypatch.setattr("fedpriv.tracking.access.ANSWER", 1.0)
    _limit_answers.cache_clear()
    from mlflow.utils import request_utils

    monkeypatch.setattr(request_utils, "TCPKeepAliveHTTPAdapter", request_utils.TCPKeepAliveHTTPAdapter)
    request_utils._cached_get_request_session.cache_clear()
    with trickling(answer) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        make_run(runs_dir, "a", uri=address)
        result = call("sync", runs_dir / "a")
    _limit_answers.cache_clear()
    request_utils._cached_get_request_session.cache_clear()
    assert result.exit_code == 1 and f"tracking server {address} does not answer" in result.stderr


def test_ui_errors(tmp_path: Path, runs_dir: Path) -> None:
    missing = call("ui", "--runs-dir", tmp_path / "nowhere")
    assert missing.exit_code == 2 and "no runs folder" in missing.stderr
    remote = call("ui", "--tracking-uri", "http://server:5000")
    assert remote.exit_code == 2 and "already" in remote.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = call("ui", "--runs-dir", runs_dir, "--port", port)
    assert busy.exit_code == 2 and f"127.0.0.1:{port}" in busy.stderr and "--port" in busy.stderr


def test_ui_starts_the_server_on_the_store(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    stores: list[str] = []

    def execve(program: str, arguments: list[str], environment: Any) -> None:
        started.append(arguments)
        stores.append(environment["MLFLOW_BACKEND_STORE_URI"])

    monkeypatch.setattr(os, "execve", execve)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    announced = list[str]()
    monkeypatch.setattr("fedpriv.cli.ui._announce", lambda host, port, line: announced.append(line))
    assert call("ui", "--runs-dir", runs_dir, "--port", port).exit_code == 0
    assert f"http://127.0.0.1:{port}/" in announced[0]
    assert stores == [f"sqlite:///{runs_dir}/mlflow.db"]
    assert str(runs_dir / "mlartifacts") in started[0]


def test_the_address_is_shown_when_the_server_answers(capfd: pytest.CaptureFixture[str]) -> None:
    """The first answers are those of a server that still starts."""
    asked = list[str]()

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(503 if len(asked) < 3 else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        _announce("127.0.0.1", server.server_port, "here it is")
        for number in range(3):
            assert "here it is" not in capfd.readouterr().out, number
            server.handle_request()
        os.wait()
    assert asked == ["/health"] * 3 and capfd.readouterr().out == "here it is\n"


def test_ui_makes_the_store_of_runs_that_are_on_their_way(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run does not wait for its first store."""
    store, created, started = runs_dir / "mlflow.db", list[Path](), list[str]()
    store.unlink()
    refused = call("ui", "--runs-dir", runs_dir)
    assert refused.exit_code == 2 and "no MLflow store" in refused.stderr
    make_run(runs_dir, uri="none")
    make_run(runs_dir, name="elsewhere", uri=f"sqlite:///{runs_dir / 'another.db'}")
    assert call("ui", "--runs-dir", runs_dir).exit_code == 2
    make_run(runs_dir, name="tracked", uri=f"sqlite:///{store}")
    monkeypatch.setattr("fedpriv.tracking.create_store", lambda path: (path.touch(), created.append(path)))
    monkeypatch.setattr(os, "execve", lambda *given: started.append(given[0]))
    monkeypatch.setattr("fedpriv.cli.ui._announce", lambda *given: None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    result = call("ui", "--runs-dir", runs_dir, "--port", port)
    assert result.exit_code == 0 and created == [store] and len(started) == 1
    assert f"creating the MLflow store {store}" in result.stdout


@pytest.mark.parametrize("command", ["ui", "sync", "compare"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: fedpriv {command}" in call(command, "--help").output


@pytest.mark.slow
def test_compare_passes_over_what_tracking_keeps_beside_the_runs(tmp_path: Path) -> None:
    """So that ``runs/*`` means the runs."""
    make_run(tmp_path, "mp-0")
    (tmp_path / "mlartifacts").mkdir()
    (tmp_path / "mlflow.db").touch()
    output = tmp_path / "out.png"
    paths = sorted(path for path in tmp_path.iterdir())
    assert call("compare", *paths, "--output", output).exit_code == 0
    result = call("compare", tmp_path / "mlartifacts", "--output", output)
    assert result.exit_code == 2 and "no runs among" in result.stderr


@pytest.mark.slow
def test_the_same_seed_twice_is_no_spread(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name, seed=0) for name in ("a", "b")]
    for paths in ([*runs, runs[0]], [runs[0], runs[0]]):
        result = call("compare", *paths, "--output", tmp_path / "out.png")
        assert result.exit_code == 0 and "±" not in result.stdout


@pytest.mark.parametrize("output", [".", "plot.jpg"])
def test_a_plot_is_a_png(tmp_path: Path, output: str) -> None:
    result = call("compare", make_run(tmp_path, "a"), "--output", tmp_path / output)
    assert result.exit_code == 2 and "PNG" in result.stderr


def test_sync_of_a_folder_without_runs(tmp_path: Path) -> None:
    result = call("sync", "--all", "--runs-dir", tmp_path / "nothing")
    assert result.exit_code == 2 and "holds no runs" in result.stderr


def test_a_server_that_is_away_does_not_keep_runs_from_another(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    make_run(runs_dir, "a", uri="http://127.0.0.1:9")
    make_run(runs_dir, "b", uri=f"sqlite:///{runs_dir / 'mlflow.db'}")
    result = call("sync", "--all", "--runs-dir", runs_dir)
    assert result.exit_code == 1 and "1 of 2 runs not sent" in result.stderr
    assert "b: sent" in result.stdout


def configured(folder: Path, **settings: Any) -> Path:
    """The run with other values in its config, by dotted key."""
    values = yaml.safe_load((folder / "config.yaml").read_text())
    for key, value in settings.items():
        section, name = key.split(".")
        values.setdefault(section, {})[name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return folder


def compared(tmp_path: Path, *runs: Path) -> list[dict[str, Any]]:
    output = call("compare", *runs, "--output", tmp_path / "out.png", "--json").stdout.splitlines()[-1]
    groups: list[dict[str, Any]] = json.loads(output)["groups"]
    return groups


def test_compare_never_takes_another_config_for_another_seed(tmp_path: Path) -> None:
    """However many keys differ: with three of them in a label, two that differ in a fourth had one label."""
    others = {"train.batch_size": 20, "train.lr": 0.1, "train.momentum": 0.9}
    runs = [
        configured(make_run(tmp_path, "a", seed=0), **{"train.weight_decay": 1e-4}),
        configured(make_run(tmp_path, "b", seed=1), **{"train.weight_decay": 0.5}),
        configured(make_run(tmp_path, "c", seed=2), **others),
        configured(make_run(tmp_path, "d", seed=3), **others),
    ]
    groups = compared(tmp_path, *runs)
    assert [group["runs"] for group in groups] == [["a"], ["b"], ["c", "d"]]
    assert groups[1]["label"].endswith("weight decay 0.5")


def test_labels_say_in_words_what_differs(tmp_path: Path) -> None:
    private = {"privacy.level": "sample", "privacy.noise": 1.1}
    runs = [make_run(tmp_path, "a"), configured(make_run(tmp_path, "b"), **private)]
    assert [group["label"] for group in compared(tmp_path, *runs)] == ["mpfedcon, no DP", "mpfedcon, sample-level DP, noise 1.1"]
    pruned = {"wire.transforms": [{"name": "prune", "fraction": 0.1}]}
    runs = [make_run(tmp_path, "c"), configured(make_run(tmp_path, "d"), **pruned)]
    first, second = (group["label"] for group in compared(tmp_path, *runs))
    assert (first, second) == ("mpfedcon, defence clip:norm=1.0", "mpfedcon, defence prune:fraction=0.1")
    runs = [make_run(tmp_path, "e"), configured(make_run(tmp_path, "f"), **{"train.clip_grad_norm": 2.0})]
    assert [group["label"] for group in compared(tmp_path, *runs)] == [
        "mpfedcon, no clip grad norm",
        "mpfedcon, clip grad norm 2.0",
    ]


def test_compare_says_which_models_are_constant_answers(tmp_path: Path) -> None:
    """As their summaries say; one of an earlier version says nothing."""
    runs = [make_run(tmp_path, name) for name in ("a", "b", "c")]
    for run, more in zip(runs, ({"only_answer": "seven"}, {"chance": 0.1, "at_chance": True}, {}), strict=True):
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | more))
    done = CliRunner().invoke(main, ["compare", *map(str, runs), "--output", str(tmp_path / "compare.png")])
    assert "a: the model predicts seven for every test sample" in done.output, done.output
    assert "b: within its 95 % interval, the accuracy is no better than a constant answer's (10.0%)" in done.output
    assert "c: " not in done.output


def test_compare_ignores_executor_and_computed_noise(tmp_path: Path) -> None:
    """Both depend on how many samples the clients of a seed have."""
    private = {"privacy.level": "sample", "privacy.target_epsilon": 8.0}
    first = configured(make_run(tmp_path, "a", seed=0), **{"executor.name": "sequential", "privacy.noise": 0.7}, **private)
    two = configured(make_run(tmp_path, "b", seed=1), **{"executor.name": "vectorized", "privacy.noise": 0.8}, **private)
    (group,) = compared(tmp_path, first, two)
    assert group["label"] == "mpfedcon" and group["runs"] == ["a", "b"]


def test_compare_averages_finished_runs_alone(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, str(seed), seed=seed) for seed in (0, 1)]
    runs.append(configured(make_run(tmp_path, "2", seed=2, rounds=5, status="interrupted"), **{"train.rounds": 20}))
    result = call("compare", *runs, "--output", tmp_path / "out.png", "--json")
    output = json.loads(result.stdout.splitlines()[-1])
    done = [row["accuracy"] for row in output["runs"] if row["status"] == "finished"]
    assert output["groups"][0]["accuracy_mean"] == pytest.approx(sum(done) / 2) and len(done) == 2
    assert "over 2 seeds (1 unfinished run left out)" in call("compare", *runs, "--output", tmp_path / "out.png").stdout


def test_the_end_of_a_run_names_the_ui_that_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def named(uri: str, tracker: str = "mlflow") -> str | None:
        return ui_command({"name": tracker, "uri": uri}, tmp_path, "some/runs")

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert named(beside) == "fedpriv ui --runs-dir some/runs"
    assert named("sqlite:////srv/a b.db") == "fedpriv ui --tracking-uri 'sqlite:////srv/a b.db'"
    assert named("http://tracking.example.org:5000") is None
    assert named("none") is None and named(beside, "tensorboard") is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////srv/all.db")
    assert named("sqlite:////srv/all.db") == "fedpriv ui --runs-dir some/runs"
    assert named(beside) == f"fedpriv ui --tracking-uri {beside}"


def test_ui_of_a_database_that_cannot_be_asked(tmp_path: Path) -> None:
    uri = "postgresql+nosuchdriver://me:secret@127.0.0.1:1/db"
    result = call("ui", "--runs-dir", tmp_path, "--tracking-uri", uri)
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1 and "secret" not in result.stderr
    if find_spec("psycopg") is None:
        result = call("ui", "--runs-dir", tmp_path, "--tracking-uri", "postgresql://me:secret@127.0.0.1:1/db")
        assert "needs the package psycopg, which is not installed" in result.stderr
