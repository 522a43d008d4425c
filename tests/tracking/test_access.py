"""Which stores runs may be sent to, with which secrets, and files that never contain one."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_runs import make_run

from fedpriv.cli import main
from fedpriv.config import TrackingConfig, load_config
from fedpriv.tracking import ForeignStore, TrackingError, parent_run, sync, target_uri, whole_address
from fedpriv.untrusted import addresses

SECRET = "hunter2xyz"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_whole", {})
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("URI", "USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


class Listener:
    """A server that notes who asks and refuses."""

    def __init__(self) -> None:
        self.heard: list[str | None] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.heard.append(self.headers["Authorization"])
                self.send_response(401)
                self.end_headers()
                self.wfile.write(f"no such user me:{SECRET}".encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.server.shutdown()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def holds_secret(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_the_store_of_a_sweeps_runs_is_that_of_the_runs_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "sweeps" / "lr" / "runs", uri=f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    assert target_uri(run) == f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    for other in ("", "runs/sweeps/", "runs/sweeps/lr/"):
        foreign = make_run(
            tmp_path / "runs" / "sweeps" / "lr" / "runs",
            other.replace("/", "-") or "x",
            uri=f"sqlite:///{tmp_path}/{other}mlflow.db",
        )
        with pytest.raises(ForeignStore):
            target_uri(foreign)


def test_a_password_reaches_only_the_server(tmp_path: Path, listener: Listener) -> None:
    folder = make_run(tmp_path / "runs")
    shown = f"http://me:***@{listener.host}"
    for extra in ((), ("--json",), ("--debug",)):
        result = call("sync", folder, "--tracking-uri", f"http://me:{SECRET}@{listener.host}", *extra)
        assert result.exit_code == 1 and shown in result.output
        assert SECRET not in result.output
    assert set(listener.heard) == {basic("me", SECRET)}
    assert json.loads((folder / "tracking.json").read_text())["uri"] == shown
    assert not holds_secret(tmp_path)


@pytest.mark.parametrize("by", ["environment", "config"])
def test_processes_below_a_run_have_the_password_of_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    uri = f"http://me:{SECRET}@host:5000"
    if by == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    begun = SimpleNamespace(set_terminated=lambda run, status: None)
    monkeypatch.setattr("fedpriv.tracking.parents._parent", lambda folder, uri, experiment, name: (begun, "f" * 32))
    with parent_run(tmp_path, TrackingConfig(uri=uri if by == "config" else None), "above"):
        assert (os.environ["MLFLOW_RUN_ID"], os.environ["MLFLOW_TRACKING_URI"]) == ("f" * 32, uri)
    assert os.environ.get("MLFLOW_TRACKING_URI") == (uri if by == "environment" else None)


@pytest.mark.parametrize("given", [f"http://me:{SECRET}@host:5000", "http://me:***@host:5000/"])
def test_a_parent_run_is_found_with_or_without_a_password(runs_dir: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    from mlflow import MlflowClient

    store = f"sqlite:///{runs_dir / 'mlflow.db'}"
    monkeypatch.chdir(runs_dir)  # which is where MLflow puts files by default
    monkeypatch.setattr("fedpriv.tracking.access.whole_address", lambda shown: store)
    monkeypatch.setenv("MLFLOW_RUN_ID", "f" * 32)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    report = sync(make_run(runs_dir, rounds=1), f"http://me:{SECRET}@host:5000")
    tags = MlflowClient(tracking_uri=store).get_run(report.mlflow_run_id or "").data.tags
    assert (report.uri, tags.get("mlflow.parentRunId")) == ("http://me:***@host:5000", "f" * 32)


def test_a_later_command_needs_the_password_again(tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shown = make_run(tmp_path / "runs"), f"http://me:***@{listener.host}"
    result = call("sync", folder, "--tracking-uri", shown)
    assert result.exit_code == 1 and "set MLFLOW_TRACKING_PASSWORD" in result.stderr and len(result.stderr.splitlines()) == 1
    assert listener.heard == []
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pa/ss")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    assert call("sync", folder, "--tracking-uri", shown).exit_code == 1
    assert listener.heard[-1] == basic("me", "pa/ss")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    monkeypatch.setattr(addresses, "_whole", {})
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    assert call("sync", folder, "--tracking-uri", shown).exit_code == 1
    assert listener.heard[-1] == "Bearer t0ken"


def test_mlflows_file_of_credentials_is_for_its_owner_alone(tmp_path: Path, listener: Listener) -> None:
    folder, file = make_run(tmp_path / "runs"), tmp_path / ".mlflow" / "credentials"
    file.parent.mkdir()
    file.write_text(f"[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = {SECRET}\n")
    file.chmod(0o644)
    result = call("sync", folder, "--tracking-uri", f"http://{listener.host}")
    assert result.exit_code == 1 and "chmod 600" in result.stderr and listener.heard == []
    file.chmod(0o600)
    assert call("sync", folder, "--tracking-uri", f"http://me:***@{listener.host}").exit_code == 1
    assert set(listener.heard) == {basic("me", SECRET)}


def test_a_databases_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrackingError, match="set MLFLOW_TRACKING_PASSWORD"):
        whole_address("postgresql://me:***@host/db")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "p@ss")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    assert whole_address("postgresql://me:***@host/db") == "postgresql://me:p%40ss@host/db"
    with pytest.raises(TrackingError, match="MLFLOW_TRACKING_URI with the password"):
        whole_address("postgresql://host/db?password=***")


@pytest.mark.parametrize(("file", "content"), [("run.json", "tracking"), ("tracking.json", "cursor")])
def test_a_folder_does_not_say_who_gets_the_users_credentials(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, file: str, content: str
) -> None:
    uri = f"http://{listener.host}"
    folder = make_run(tmp_path / "runs", uri=uri if content == "tracking" else None)
    if content == "cursor":
        (folder / file).write_text(json.dumps({"uri": uri, "experiment": "fedpriv"}))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    with pytest.raises(ForeignStore, match="neither MLFLOW_TRACKING_URI nor beside the run"):
        sync(folder)
    for every in ((folder,), ("--all", "--runs-dir", tmp_path / "runs")):
        result = call("sync", *every)
        assert result.exit_code == 1 and f"--tracking-uri {uri}" in result.stderr
    assert listener.heard == []
    call("sync", folder, "--tracking-uri", uri)
    assert set(listener.heard) == {basic("me", SECRET)}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{uri}/")
    assert target_uri(folder) == uri


def test_the_configs_store_counts_if_run_json_has_none(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    config = load_config(None, {"tracking.uri": f"http://{listener.host}", "data.clients": 2})
    (folder / "config.yaml").write_text(config.to_yaml())
    refused = call("resume", folder)
    assert refused.exit_code == 2 and f"--tracking-uri http://{listener.host}" in refused.stderr


def test_resume_refuses_a_foreign_store_and_takes_a_named_one(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "runs", status="interrupted", uri=f"http://{listener.host}")
    refused = call("resume", folder)
    assert refused.exit_code == 2 and f"--tracking-uri http://{listener.host}" in refused.stderr
    played: list[Path] = []

    def resume(path: Path, *_: object) -> None:
        played.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedpriv.simulation.run.resume", resume)
    assert call("resume", folder, "--tracking-uri", f"http://me:{SECRET}@{listener.host}").exit_code == 130
    assert played == [folder]
    assert json.loads((folder / "run.json").read_text())["tracking"]["uri"] == f"http://me:***@{listener.host}"


def test_tracking_json_does_not_permit_the_folders_store(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mine.example")
    folder = make_run(tmp_path / "runs", status="interrupted", uri=f"http://{listener.host}")
    (folder / "tracking.json").write_text(json.dumps({"uri": "http://mine.example", "experiment": "fedpriv"}))
    refused = call("resume", folder)
    assert refused.exit_code == 2 and f"--tracking-uri http://{listener.host}" in refused.stderr


def test_runs_that_were_moved_with_their_store_are_told_of_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs", status="interrupted", uri=f"sqlite:///{tmp_path}/old/mlflow.db")
    refused = call("resume", folder)
    assert refused.exit_code == 2 and f"--tracking-uri sqlite:///{tmp_path}/runs/mlflow.db" in refused.stderr


@pytest.mark.parametrize("password", [SECRET, f"pa'ss {SECRET}"])
@pytest.mark.parametrize("where", ["config.yaml", "run.json"])
def test_a_password_that_an_older_version_stored_is_not_uploaded(runs_dir: Path, where: str, password: str) -> None:
    folder = make_run(runs_dir)
    text, uri = (folder / where).read_text(), f"http://me:{password}@host"
    (folder / where).write_text(text.replace("uri: null", f"uri: {uri}").replace('"uri": null', f'"uri": "{uri}"'))
    result = call("sync", folder, "--tracking-uri", f"sqlite:///{runs_dir / 'mlflow.db'}")
    assert result.exit_code == 2 and "holds the password" in result.stderr and SECRET not in result.output
    assert not holds_secret(runs_dir / "mlartifacts")


@pytest.mark.parametrize("password", [SECRET, f"pa'ss\"-{SECRET}"])
def test_what_is_written_and_shown_of_a_config_has_no_password(tmp_path: Path, password: str) -> None:
    uri = f"http://me:{password}@host:5000"
    config = load_config(None, {"tracking.uri": uri})
    assert config.tracking.uri == "http://me:***@host:5000"
    assert SECRET not in config.to_yaml() + repr(config) + config.model_dump_json()
    for extra in ((), ("--json",)):
        result = call("train", "--tracking-uri", uri, "--dump-config", *extra)
        assert result.exit_code == 0 and SECRET not in result.output and "http://me:***@host:5000" in result.output
    (tmp_path / "c.yaml").write_text(f"tracking: {{uri: {json.dumps(uri)}}}\n")
    assert SECRET not in call("train", "--config", tmp_path / "c.yaml", "--dump-config").output


@pytest.mark.parametrize("name", ["it's", 'a"b', "a`b", "a\nb", "<b>&amp;", "é%20"])
def test_a_run_with_a_strange_id_is_sent_once(runs_dir: Path, name: str) -> None:
    folder = make_run(runs_dir, "plain")
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"run_id": name}))
    folder = folder.rename(runs_dir / name)
    first = sync(folder)
    (folder / "tracking.json").unlink()
    assert sync(folder).mlflow_run_id == first.mlflow_run_id


def test_a_store_from_elsewhere_does_not_say_where_artifacts_go(runs_dir: Path, listener: Listener) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{runs_dir / 'mlflow.db'}"
    MlflowClient(tracking_uri=uri).create_experiment("fedpriv", f"http://{listener.host}/artifacts")
    with pytest.raises(TrackingError, match=f"would send artifacts to http://{listener.host}"):
        sync(make_run(runs_dir))
    assert listener.heard == []


def test_a_store_in_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    result = call("sync", folder, "--tracking-uri", "sqlite:////proc/x.db")
    assert result.exit_code == 1 and "cannot create /proc/x.db" in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "uri", ["foo", "http://", "ftp://host", "http://me:hunter2xyz@host:x", "http://me:a hunter2xyz@host", "http://[::1"]
)
def test_what_is_no_address_is_refused(tmp_path: Path, uri: str) -> None:
    folder = make_run(tmp_path)
    for command in (("sync", folder), ("ui", "--runs-dir", tmp_path), ("resume", folder)):
        result = call(*command, "--tracking-uri", uri)
        assert result.exit_code == 2 and SECRET not in result.output and len(result.stderr.splitlines()) == 1, result.output
