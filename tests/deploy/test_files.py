"""The files of ``fedpriv deploy init``, and errors of the deploy commands about files, certificates and ports."""

from __future__ import annotations

import email.utils
import http.server
import json
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedpriv.cli.deploy_runs import _follow, _show_absent
from fedpriv.config import load_config
from fedpriv.deploy.flower import certificates, internals, machines, tls
from fedpriv.deploy.flower.paths import ClientFile, DeploymentPaths, make, read_client
from fedpriv.deploy.server_run import DECLARED, STOP
from fedpriv.deploy.versions import code_version
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import save_json
from fedpriv.storage.run_folder import RunFolder

needs_flower = pytest.mark.extra("deploy")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> DeploymentPaths:
    """A deployment of two clients; not to be written into."""
    return make(tmp_path_factory.mktemp("made") / "d", 2, "server.example.org")


def test_init_writes_all_that_two_machines_need(tmp_path: Path, fedpriv: Callable[..., Result]) -> None:
    ended = fedpriv("deploy", "init", tmp_path / "d", "--clients", 3, "--host", "server.example.org")
    assert ended.exit_code == 0, ended.output
    paths = DeploymentPaths.open(tmp_path / "d")
    assert (paths.settings().clients, paths.settings().host, paths.settings().port) == (3, "server.example.org", 8400)
    certificates.check_server_certificate(paths.certificate, "server.example.org")
    for number in range(3):
        read = read_client(paths.client_file(number))
        assert (read.client, read.server, read.data.share) == (number, "server.example.org:8443", "own")
        private, public = (
            load_ssh_private_key(read.key.read_bytes(), None),
            load_ssh_public_key(paths.public_key(number).read_bytes()),
        )
        assert private.public_key() == public and read.certificate.read_bytes() == paths.authority.read_bytes()
    secret = [paths.authority_key, paths.key, paths.secret, *(paths.path / f"client-{n}" / "key" for n in range(3))]
    assert {file.stat().st_mode & 0o777 for file in secret} == {0o600}
    assert paths.path.stat().st_mode & 0o777 == 0o700
    units = list((paths.path / "systemd").iterdir())
    assert len(units) == 4 and all("KillMode=mixed" in unit.read_text() for unit in units)
    proxy = (paths.path / "nginx.conf").read_text()
    assert "location /v1/fleet/" in proxy and "return 403" in proxy and "listen 8443" in proxy and "127.0.0.1:8400" in proxy


def test_ipv6_addresses_are_in_brackets(tmp_path: Path) -> None:
    paths = make(tmp_path / "d", 1, "2001:db8::1", listen="::1")
    assert read_client(paths.client_file(0)).server == "[2001:db8::1]:8443"
    assert machines.reachable(paths.settings().listen, 8477) == "[::1]:8477"
    certificates.check_server_certificate(paths.certificate, "2001:db8::1")
    assert read_client(make(tmp_path / "e", 1, "::1", listen="::1").client_file(0)).server == "[::1]:8443"


def test_server_yaml_mentions_a_proxy_only_if_there_is_one(tmp_path: Path, deployment: DeploymentPaths) -> None:
    assert "reverse proxy" in deployment.server_file.read_text()
    paths = make(tmp_path / "d", 1, "server.example.org", listen="0.0.0.0")
    assert "proxy" not in paths.server_file.read_text() and not (paths.path / "nginx.conf").exists()
    assert (paths.settings().listen, paths.settings().port) == ("0.0.0.0", 8443)


@needs_flower
def test_a_public_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    from fedpriv.deploy.flower.control import SuperLink

    link = SuperLink("127.0.0.1:1", tmp_path / "ca.crt")
    with pytest.raises(UsageError, match=r"key\.pub does not exist; the server needs the public key of each client"):
        link.admit({"client-0": tmp_path / "key.pub"})
    (tmp_path / "key.pub").write_text("nonsense")
    with pytest.raises(UsageError, match=r"key\.pub holds no public key"):
        link.admit({"client-0": tmp_path / "key.pub"})


@needs_flower
def test_a_run_outside_of_the_deployment_is_refused(
    deployment: DeploymentPaths, tmp_path: Path, fedpriv: Callable[..., Result]
) -> None:
    ended = fedpriv("deploy", "run", deployment.path, "--run-dir", tmp_path / "elsewhere")
    assert ended.exit_code == 2 and f"must be in {deployment.runs}" in " ".join(ended.stderr.split())


def test_init_does_not_overwrite(deployment: DeploymentPaths, fedpriv: Callable[..., Result]) -> None:
    ended = fedpriv("deploy", "init", deployment.path, "--clients", 1, "--host", "other.example.org")
    assert ended.exit_code == 2 and "holds a deployment already" in ended.output


def test_init_writes_only_into_new_or_empty_folders(tmp_path: Path, fedpriv: Callable[..., Result]) -> None:
    """Folders of clients among those of images would be classes of theirs."""
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "file").touch()
    for name in ("photos", "file"):
        ended = fedpriv("deploy", "init", tmp_path / name, "--clients", 1, "--host", "localhost")
        assert ended.exit_code == 2 and "is not empty; name a new folder" in " ".join(ended.stderr.split()), ended.output
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cats"]
    (tmp_path / "empty").mkdir()
    assert fedpriv("deploy", "init", tmp_path / "empty", "--clients", 1, "--host", "localhost").exit_code == 0


@needs_flower
def test_resume_cancels_an_earlier_stop(tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path / "d", 1, "localhost", inner_port=machines.free_port())
    folder = RunFolder.create(load_config(None, {"run_dir": str(paths.runs / "killed")}), paths.runs)
    folder.update_facts(status="running", deployed={"code": code_version()})
    ended = fedpriv("deploy", "resume", folder.path)
    assert ended.exit_code == 2 and "ended before it could begin" in ended.stderr
    (folder.path / DECLARED).touch()
    (folder.path / STOP).touch()
    assert fedpriv("deploy", "resume", folder.path).exit_code == 1, "no server"
    assert (folder.path / STOP).exists() and not any(paths.requests.iterdir())
    monkeypatch.setattr("fedpriv.cli.deploy_runs.link_of", lambda paths: None)
    monkeypatch.setattr("fedpriv.cli.deploy_runs._follow", lambda *of: None)
    assert fedpriv("deploy", "resume", folder.path).exit_code == 0 and not (folder.path / STOP).exists()


@needs_flower
def test_check_raises_if_an_app_ended_and_was_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.proto.control_pb2 import ListRunsResponse
    from flwr.proto.run_pb2 import Run
    from flwr.proto.transport_pb2 import Scalar

    from fedpriv.deploy.flower.control import SuperLink

    def app(number: int, request: str, status: str, sub: str = "") -> Run:
        run = Run(run_id=number, override_config={"request": Scalar(string=request)})
        run.status.status, run.status.sub_status = status, sub
        return run

    runs: dict[int, Run] = {}

    def listed(asked: Any) -> ListRunsResponse:
        return ListRunsResponse(run_dict={asked.run_id: runs[asked.run_id]} if asked.HasField("run_id") else runs)

    monkeypatch.setattr(SuperLink, "_client", lambda self: nullcontext(SimpleNamespace(ListRuns=listed)))
    link = SuperLink("127.0.0.1:1", tmp_path / "ca.crt")
    for other, goes_on in (
        (app(2, "a", "running"), True),
        (app(2, "a", "pending"), True),
        (app(2, "b", "running"), False),
        (app(2, "a", "finished", "failed"), False),
    ):
        runs |= {1: app(1, "a", "finished", "failed"), 2: other}
        with nullcontext() if goes_on else pytest.raises(FedprivError, match=r"the server's app was ended \(failed\)"):
            assert link.check(1)
    runs[1] = app(1, "a", "finished", "completed")
    assert link.check(1)


@needs_flower
def test_no_request_is_left_where_no_server_answers(tmp_path: Path, fedpriv: Callable[..., Result]) -> None:
    paths = make(tmp_path / "d", 1, "localhost", inner_port=machines.free_port())
    ended = fedpriv("deploy", "run", paths.path)
    assert ended.exit_code == 1 and "no server answers on" in ended.stderr and not any(paths.requests.iterdir())


@needs_flower
def test_folders_that_are_no_deployed_runs_are_named(
    deployment: DeploymentPaths, tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RunFolder.create(load_config(None, {"run_dir": "run"}), tmp_path)
    for arguments, message in (
        (("resume", deployment.path), "is a deployment; name one of its runs, in"),
        (("resume", "run"), "is not a run with clients on other machines; `fedpriv resume run` continues it"),
        (("run", "run"), "run is a run, and no deployment; `fedpriv resume run` continues it"),
        (("run", deployment.path, "--run-dir", "run"), "holds a run already"),
    ):
        ended = fedpriv("deploy", *arguments)
        assert ended.exit_code == 2 and message in ended.stderr, ended.output


@needs_flower
def test_run_names_the_clients_it_waits_for(deployment: DeploymentPaths, capsys: pytest.CaptureFixture[str]) -> None:
    from fedpriv.deploy.flower.control import Node

    nodes = [Node(7, "client-0", "online"), Node(8, "client-1", "registered")]
    _show_absent(SimpleNamespace(nodes=lambda: nodes), deployment)
    warning = capsys.readouterr().err
    assert (
        warning.startswith("waiting for 1 of 2 clients to connect, until ")
        and " (120 s): client-1; `fedpriv deploy status" in warning
    )
    _show_absent(SimpleNamespace(nodes=lambda: nodes[:1]), deployment)
    assert capsys.readouterr().err == ""


@needs_flower
def test_run_says_once_that_the_server_is_away_and_that_it_is_back(
    deployment: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("fedpriv.cli.deploy_runs.say", lambda text, err: warnings.append(text))
    answers = iter([True, False, False, True, False])
    link = SimpleNamespace(start=lambda path: 1, nodes=list, check=lambda number: next(answers))
    monkeypatch.setattr("fedpriv.cli.deploy_runs.console", lambda: SimpleNamespace(print=lambda *shown, **options: None))
    folder = RunFolder.create(load_config(None, {"run_dir": str(tmp_path / "run")}), tmp_path)
    monkeypatch.setattr("time.monotonic", count(0, 6).__next__)
    follow = lambda alive, *of: [alive() for _ in range(5)] != []  # noqa: E731
    _follow(deployment, link, SimpleNamespace(run_dir=folder.path, path=folder.path, follow=follow), detach=False)
    away, back = "the server does not answer any more", "the server answers again"
    assert [next(text for text in (away, back) if text in line) for line in warnings] == [away, back, away]


@needs_flower
def test_status_shows_runs_and_failed_requests(
    tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.deploy.flower.requests import Request

    paths = make(tmp_path / "d", 1, "localhost")
    monkeypatch.setattr("fedpriv.cli.deploy_members.link_of", lambda paths: SimpleNamespace(nodes=list))
    with RunFolder.begin(load_config(None, {"run_dir": str(paths.runs / "begun")}), paths.runs) as folder:
        folder.update_facts(status="running")
        for name in ("begun", "never"):
            save_json(Request.write(paths.requests, paths.runs / name, None, 1, 60)._note, {"error": "it is refused"})
        shown = " ".join(fedpriv("deploy", "status", paths.path).stdout.split())
        assert "begun running, round 0 of 30; last request: it is refused" in shown
        assert "never failed, not begun: it is refused" in shown
    assert "begun killed, round 0" in " ".join(fedpriv("deploy", "status", paths.path).stdout.split())
    ended = fedpriv("deploy", "stop", folder.path)
    assert ended.exit_code == 2 and "Ctrl-C stops a simulation" in ended.stderr and not (folder.path / STOP).exists()
    folder.update_facts(deployed={})
    ended = fedpriv("deploy", "stop", folder.path)
    assert not paths.journal.exists(), "nothing was stopped"
    assert ended.exit_code == 2 and "is killed, not running; `fedpriv deploy resume" in ended.stderr


@pytest.mark.parametrize("host", ["", "two words", "-x", "a/b", "server.example.org:8443", "a..b"])
def test_an_invalid_host_is_refused(tmp_path: Path, fedpriv: Callable[..., Result], host: str) -> None:
    ended = fedpriv("deploy", "init", tmp_path / "d", "--clients", 1, "--host", host)
    assert ended.exit_code == 2 and "--host" in ended.output and not (tmp_path / "d").exists()


def test_a_certificate_of_another_authority_is_named_at_once(
    deployment: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server would be awaited for minutes."""
    certificates.check_handshake(deployment.certificate, deployment.key, deployment.authority, "127.0.0.1")
    with monkeypatch.context() as patch:  # as in Python 3.13 and later
        context = ssl.create_default_context(cafile=str(deployment.authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        patch.setattr(ssl, "create_default_context", lambda **_: context)
        certificates.check_handshake(deployment.certificate, deployment.key, deployment.authority, "127.0.0.1")
    other = make(tmp_path / "d", 1, "localhost")
    for certificate, key, host, why in (
        (other.certificate, other.key, "127.0.0.1", "unable to get local issuer certificate"),
        (deployment.certificate, other.key, "127.0.0.1", "KEY_VALUES_MISMATCH"),
        (deployment.certificate, deployment.key, "127.0.0.2", "IP address mismatch"),
        (deployment.server_file, deployment.key, "127.0.0.1", "PEM"),
    ):
        with pytest.raises(UsageError, match=f"does not hold for {host} by .*{why}"):
            certificates.check_handshake(certificate, key, deployment.authority, host)


def test_the_file_of_a_deployment_is_not_its_folder(deployment: DeploymentPaths) -> None:
    with pytest.raises(UsageError, match=f"server.yaml is a file; name its folder, {deployment.path}"):
        DeploymentPaths.open(deployment.server_file)


def test_a_folder_without_a_deployment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no server\.yaml"):
        DeploymentPaths.open(tmp_path)


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("client: 0", "client: many", "client = 'many'"),
        ("share: own", "share: all", "data.share"),
        ("server: server.example.org:8443", "server: server.example.org", "expected host:port"),
        ("server: server.example.org:8443", "server: localhost:99999", "expected host:port"),
        ("server: server.example.org:8443", "server: localhost:0", "expected host:port"),
        ("server: server.example.org:8443", "server: a..b:8443", "expected host:port"),
        ("server: server.example.org:8443", f"server: {'a' * 64}.org:8443", "expected host:port"),
        ("server: server.example.org:8443", "server: '[1:2]:8443'", "expected host:port"),
        ("key: client-0/key", "key: client-0/no-key", "does not exist"),
        ("poll: 1", "pol: 1", "did you mean 'poll'"),
    ],
)
def test_an_invalid_client_file_is_refused(deployment: DeploymentPaths, line: str, instead: str, message: str) -> None:
    file = deployment.path / f"other-{abs(hash(instead))}.yaml"
    file.write_text(deployment.client_file(0).read_text().replace(line, instead))
    with pytest.raises(UsageError, match=message):
        read_client(file)


def test_data_beside_the_file_are_found(deployment: DeploymentPaths) -> None:
    (deployment.path / "photos").mkdir()
    file = deployment.path / "with-photos.yaml"
    file.write_text(deployment.client_file(1).read_text().replace("  name: null", "  name: photos"))
    assert read_client(file).data.name == str(deployment.path / "photos")


def test_an_invalid_certificate_is_named(deployment: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"is for .*server\.example\.org, not for other\.example\.org"):
        certificates.check_server_certificate(deployment.certificate, "other.example.org")
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.02)
    old = tmp_path / "old.crt"
    certificates.make_server_certificate(deployment.authority, deployment.authority_key, ["localhost"], old, tmp_path / "old.key")
    with pytest.raises(UsageError, match="expired on"):
        certificates.check_server_certificate(old, "localhost")


def test_a_certificate_that_has_expired_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedpriv: Callable[..., Result]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "SERVER_DAYS", -0.02)
        paths = make(tmp_path / "d", 1, "server.example.org")
    before = {path: path.read_bytes() for path in paths.path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=f"expired on .*; `fedpriv deploy renew {paths.path}` makes a new one"):
        certificates.check_server_certificate(paths.certificate, "server.example.org")
    ended = fedpriv("deploy", "renew", paths.path)
    assert ended.exit_code == 0, ended.output
    certificates.check_server_certificate(paths.certificate, "server.example.org")
    for host in ("server.example.org", "localhost", "127.0.0.1"):
        certificates.check_handshake(paths.certificate, paths.key, paths.authority, host)
    after = {path: path.read_bytes() for path in paths.path.rglob("*") if path.is_file()}
    assert json.loads(after.pop(paths.journal))["did"] == "renew"
    assert after.keys() == before.keys()
    assert {path for path in after if after[path] != before[path]} == {paths.certificate, paths.key}
    assert paths.key.stat().st_mode & 0o777 == 0o600
    paths.authority_key.unlink()
    ended = fedpriv("deploy", "renew", paths.path)
    assert ended.exit_code == 2 and "ca.key does not exist" in " ".join(ended.stderr.split())


def test_a_port_in_use_is_named(deployment: DeploymentPaths) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 cannot be used: Address already in use"):
            machines._check_free("127.0.0.1", port, deployment.server_file)


@contextmanager
def answering(certificate: Path, key: Path, date: float, port: int = 0, status: int = 404) -> Iterator[int]:
    """An HTTPS server whose clock shows ``date``; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def date_time_string(self, timestamp: float | None = None) -> str:
            return email.utils.formatdate(date, usegmt=True)

        def log_message(self, *of: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_a_client_checks_its_server(deployment: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_client(deployment.client_file(0))
    with answering(deployment.certificate, deployment.key, time.time()) as port:
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with (
        answering(deployment.certificate, deployment.key, time.time() - 3600) as port,
        pytest.raises(UsageError, match=r"the clocks differ: .* is -3[56]\d\d s from this machine"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with (  # Flower takes no signature from the future
        answering(deployment.certificate, deployment.key, time.time() - 8) as port,
        pytest.raises(UsageError, match=r"the clocks differ: .* is -[89] s from this machine"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with answering(deployment.certificate, deployment.key, time.time() + 200) as port:
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    now = time.time()  # of which a busy server's answer says that it was asked then, and which comes 12 s later
    with answering(deployment.certificate, deployment.key, now) as port, monkeypatch.context() as patch:
        patch.setattr(machines, "time", SimpleNamespace(time=iter([now, now + 12]).__next__))
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with (
        answering(deployment.certificate, deployment.key, time.time(), status=502) as port,
        pytest.raises(machines.Unreachable, match="the proxy in front of it answers 502"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    foreign = make(tmp_path / "foreign", 1, "server.example.org")
    with answering(foreign.certificate, foreign.key, time.time()) as port, pytest.raises(UsageError, match="does not hold"):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.02)
    old, key = tmp_path / "old.crt", tmp_path / "old.key"
    certificates.make_server_certificate(deployment.authority, deployment.authority_key, ["127.0.0.1"], old, key)
    with answering(old, key, time.time()) as port, pytest.raises(UsageError, match="does not hold: certificate has expired"):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with pytest.raises(machines.Unreachable, match="cannot be reached: Connection refused"):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{machines.free_port()}"}))


@contextmanager
def speaking(certificate: Path, key: Path, tls: bool = True) -> Iterator[int]:
    """A server that begins an answer and goes on with it byte by byte, with TLS or without; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listening = socket.create_server(("127.0.0.1", 0))

    def speak() -> None:
        with suppress(OSError):
            while True:
                connection = listening.accept()[0]
                with suppress(OSError), context.wrap_socket(connection, server_side=True) if tls else connection as asked:
                    asked.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                    while True:
                        asked.sendall(b"x")
                        time.sleep(0.02)

    threading.Thread(target=speak, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def test_unreadable_authority_and_clock_are_named(
    deployment: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = read_client(deployment.client_file(0))
    junk = tmp_path / "junk.crt"
    junk.write_text("junk")
    with pytest.raises(UsageError, match=r"junk\.crt holds no certificate that can be read"):
        machines.check_server(read.model_copy(update={"certificate": junk}))
    monkeypatch.setattr(email.utils, "formatdate", lambda *of, **how: "yesterday")
    with (
        answering(deployment.certificate, deployment.key, 0) as port,
        pytest.raises(UsageError, match=f"127.0.0.1:{port} sent a time that cannot be read: Date: yesterday"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))


@pytest.mark.parametrize(("logged", "why"), [("", "it has logged nothing; is this machine busy"), ("reason", "log.txt says why")])
def test_a_start_timeout_names_the_log_if_it_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: str, why: str
) -> None:
    monkeypatch.setattr(machines, "START", 0.0)
    log = tmp_path / "log.txt"
    log.write_text("of an earlier start\n")

    def answers() -> bool:
        log.write_text(log.read_text() + logged)
        return False

    supervisor: Any = SimpleNamespace(log=log, look=lambda: None)
    with pytest.raises(FedprivError, match=why):
        machines._await_answer(answers, supervisor)


def test_a_client_times_out_on_an_endless_response(deployment: DeploymentPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "ANSWER", 0.5)
    read = read_client(deployment.client_file(0))
    with (
        speaking(deployment.certificate, deployment.key) as port,
        pytest.raises(machines.Unreachable, match=r"cannot be reached: .*(more|timed)"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with (
        speaking(deployment.certificate, deployment.key, tls=False) as port,
        pytest.raises(UsageError, match="does not speak TLS"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))


@needs_flower
def test_the_operator_times_out_and_wrong_servers_are_named(
    deployment: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.deploy.flower.control import SuperLink

    monkeypatch.setattr(tls, "ANSWER", 0.5)
    with speaking(deployment.certificate, deployment.key) as port:
        assert not SuperLink(f"127.0.0.1:{port}", deployment.authority).answers()
    with (
        speaking(deployment.certificate, deployment.key, tls=False) as port,
        pytest.raises(UsageError, match="does not speak TLS"),
    ):
        SuperLink(f"127.0.0.1:{port}", deployment.authority).answers()
    monkeypatch.setattr(tls, "ANSWER", 30.0)
    foreign = make(tmp_path / "foreign", 1, "server.example.org")
    with (
        answering(foreign.certificate, foreign.key, time.time()) as port,
        pytest.raises(UsageError, match="does not hold: unable"),
    ):
        SuperLink(f"127.0.0.1:{port}", deployment.authority).answers()
    assert not SuperLink(f"127.0.0.1:{machines.free_port()}", deployment.authority).answers()


@needs_flower
def test_a_client_waits_for_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "RETRY", 0.05)
    port, warnings = machines.free_port(), list[str]()
    paths = make(tmp_path / "d", 1, "127.0.0.1", port)
    with ExitStack() as stack:

        def warn(reason: str) -> None:  # only now the server is started, and its clock is wrong
            warnings.append(reason)
            stack.enter_context(answering(paths.certificate, paths.key, time.time() - 3600, port))

        with pytest.raises(UsageError, match="the clocks differ"), machines.client(paths.client_file(0), warn=warn):
            pass
    assert warnings == [f"the server 127.0.0.1:{port} cannot be reached: Connection refused; trying again every 0.05 s"]


@needs_flower
def test_a_key_that_others_may_read_is_named(
    tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(settings: ClientFile) -> None:
        raise FedprivError("the test ends here")

    monkeypatch.setattr(machines, "check_server", ends)
    paths = make(tmp_path / "d", 1, "127.0.0.1", machines.free_port())
    key = read_client(paths.client_file(0)).key
    for mode, warned in ((0o600, False), (0o640, True), (0o604, True)):
        key.chmod(mode)
        ended = fedpriv("deploy", "client", paths.client_file(0))
        assert ended.exit_code == 1 and "the test ends here" in ended.output
        assert (f"other users of this machine may read {key}; chmod 600 {key}" in ended.output) == warned


def test_without_flower_the_install_command_is_shown(monkeypatch: pytest.MonkeyPatch, fedpriv: Callable[..., Result]) -> None:
    def missing(name: str) -> str:
        raise internals.PackageNotFoundError(name)

    monkeypatch.setattr(internals, "version", missing)
    for command in (["demo"], ["server", "d"], ["client", "f"], ["run", "d"], ["status", "d"], ["resume", "r"]):
        ended = fedpriv("deploy", *command)
        assert ended.exit_code == 2 and "uv sync --extra deploy, or pip install '.[deploy]'" in ended.output, command


@pytest.mark.parametrize(("error", "kept"), [(FedprivError("none joined"), True), (KeyboardInterrupt(), False), (None, False)])
def test_a_demo_that_failed_leaves_its_files(
    monkeypatch: pytest.MonkeyPatch, fedpriv: Callable[..., Result], tmp_path: Path, error: BaseException | None, kept: bool
) -> None:
    def play(config: object, folder: Path, *of: object) -> Any:
        (folder / "log.txt").write_text("why")
        if error is not None:
            raise error
        return {"run_dir": str(folder), "equal": True}

    monkeypatch.setattr(internals, "require_flower", lambda: None)
    monkeypatch.setitem(sys.modules, "fedpriv.deploy.flower.demo", SimpleNamespace(demo=play))  # the real one imports Flower
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = fedpriv("deploy", "demo")
    left = [path.parent for path in tmp_path.glob("fedpriv-demo-*/log.txt")]
    assert len(left) == kept
    assert all(f"the files of the demo are kept in {folder}" in ended.output for folder in left)


def test_an_untested_flower_is_refused(monkeypatch: pytest.MonkeyPatch, fedpriv: Callable[..., Result]) -> None:
    monkeypatch.setattr(internals, "version", lambda name: "1.40.3")
    ended = fedpriv("deploy", "demo")
    assert ended.exit_code == 2 and "Flower 1.40.3 was not tested" in ended.output
