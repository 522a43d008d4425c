"""What ``fedpriv deploy init`` writes, and what is said of files, certificates and ports that are not right."""

from __future__ import annotations

import email.utils
import http.server
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

from fedpriv.cli.deploy import _conduct, _say_who_is_awaited
from fedpriv.config import load_config
from fedpriv.deploy.flower import certificates, machines, needed, tls
from fedpriv.deploy.flower.paths import ClientFile, DeploymentPaths, make, read_client
from fedpriv.deploy.handshake import code_version
from fedpriv.deploy.serving import DECLARED, STOP
from fedpriv.errors import FedprivError, UsageError
from fedpriv.files import save_json
from fedpriv.storage.run_folder import RunFolder

needs_flower = pytest.mark.extra("deploy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DeploymentPaths:
    """A deployment of two clients; not to be written into."""
    return make(tmp_path_factory.mktemp("made") / "d", 2, "server.example.org")


def test_init_writes_all_that_two_machines_need(tmp_path: Path, fedpriv: Callable[..., Result]) -> None:
    ended = fedpriv("deploy", "init", tmp_path / "d", "--clients", 3, "--host", "server.example.org")
    assert ended.exit_code == 0, ended.output
    home = DeploymentPaths.open(tmp_path / "d")
    assert (home.settings().clients, home.settings().host, home.settings().port) == (3, "server.example.org", 8400)
    certificates.check_server_certificate(home.certificate, "server.example.org")
    for number in range(3):
        read = read_client(home.client_file(number))
        assert (read.client, read.server, read.data.share) == (number, "server.example.org:8443", "own")
        private, public = (
            load_ssh_private_key(read.key.read_bytes(), None),
            load_ssh_public_key(home.public_key(number).read_bytes()),
        )
        assert private.public_key() == public and read.certificate.read_bytes() == home.authority.read_bytes()
    secret = [home.authority_key, home.key, home.secret, *(home.path / f"client-{n}" / "key" for n in range(3))]
    assert {file.stat().st_mode & 0o777 for file in secret} == {0o600}
    assert home.path.stat().st_mode & 0o777 == 0o700
    units = list((home.path / "systemd").iterdir())
    assert len(units) == 4 and all("KillMode=mixed" in unit.read_text() for unit in units)
    proxy = (home.path / "nginx.conf").read_text()
    assert "location /v1/fleet/" in proxy and "return 403" in proxy and "listen 8443" in proxy and "127.0.0.1:8400" in proxy


def test_an_address_of_version_6_is_in_brackets(tmp_path: Path) -> None:
    home = make(tmp_path / "d", 1, "2001:db8::1", listen="::1")
    assert read_client(home.client_file(0)).server == "[2001:db8::1]:8443"
    assert machines.reachable(home.settings().listen, 8477) == "[::1]:8477"
    certificates.check_server_certificate(home.certificate, "2001:db8::1")
    assert read_client(make(tmp_path / "e", 1, "::1", listen="::1").client_file(0)).server == "[::1]:8443"


def test_a_server_that_clients_reach_without_a_proxy_is_not_said_to_be_behind_one(tmp_path: Path, made: DeploymentPaths) -> None:
    assert "reverse proxy" in made.server_file.read_text()
    home = make(tmp_path / "d", 1, "server.example.org", listen="0.0.0.0")
    assert "proxy" not in home.server_file.read_text() and not (home.path / "nginx.conf").exists()
    assert (home.settings().listen, home.settings().port) == ("0.0.0.0", 8443)


def test_a_server_that_listens_everywhere_is_not_said_to_be_reached_by_its_machine_alone(tmp_path: Path) -> None:
    alone = make(tmp_path / "alone", 1, "server.example.org").server_file.read_text()
    open_to_all = make(tmp_path / "open", 1, "server.example.org", listen="0.0.0.0", inner_port=9000).server_file.read_text()
    assert "machine alone; clients come through a reverse proxy" in alone
    assert "machine alone" not in open_to_all and "only\n# machines that you trust should reach it; clients" in open_to_all


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
    made: DeploymentPaths, tmp_path: Path, fedpriv: Callable[..., Result]
) -> None:
    ended = fedpriv("deploy", "run", made.path, "--run-dir", tmp_path / "elsewhere")
    assert ended.exit_code == 2 and f"must be in {made.runs}" in " ".join(ended.stderr.split())


def test_init_does_not_overwrite(made: DeploymentPaths, fedpriv: Callable[..., Result]) -> None:
    ended = fedpriv("deploy", "init", made.path, "--clients", 1, "--host", "other.example.org")
    assert ended.exit_code == 2 and "holds a deployment already" in ended.output


def test_init_writes_into_no_folder_that_holds_something_else(tmp_path: Path, fedpriv: Callable[..., Result]) -> None:
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
def test_resume_takes_back_a_stop_that_was_not_honoured(
    tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make(tmp_path / "d", 1, "localhost", inner_port=machines.free_port())
    folder = RunFolder.create(load_config(None, {"run_dir": str(home.runs / "killed")}), home.runs)
    folder.update_facts(status="running", deployed={"code": code_version()})
    ended = fedpriv("deploy", "resume", folder.path)
    assert ended.exit_code == 2 and "ended before it could begin" in ended.stderr
    (folder.path / DECLARED).touch()
    (folder.path / STOP).touch()
    assert fedpriv("deploy", "resume", folder.path).exit_code == 1, "no server"
    assert (folder.path / STOP).exists() and not any(home.requests.iterdir())
    monkeypatch.setattr("fedpriv.cli.deploy._link", lambda home: None)
    monkeypatch.setattr("fedpriv.cli.deploy._conduct", lambda *of: None)
    assert fedpriv("deploy", "resume", folder.path).exit_code == 0 and not (folder.path / STOP).exists()


@needs_flower
def test_who_follows_a_run_is_told_that_its_app_ended_unless_another_has_taken_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    home = make(tmp_path / "d", 1, "localhost", inner_port=machines.free_port())
    ended = fedpriv("deploy", "run", home.path)
    assert ended.exit_code == 1 and "no server answers on" in ended.stderr and not any(home.requests.iterdir())


@needs_flower
def test_what_is_no_run_of_a_deployment_is_named_before_its_server_is_asked(
    made: DeploymentPaths, tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RunFolder.create(load_config(None, {"run_dir": "run"}), tmp_path)
    for arguments, said in (
        (("resume", made.path), "is a deployment; name one of its runs, in"),
        (("resume", "run"), "is not a run with clients on other machines; `fedpriv resume run` continues it"),
        (("run", "run"), "run is a run, and no deployment; `fedpriv resume run` continues it"),
        (("run", made.path, "--run-dir", "run"), "holds a run already"),
    ):
        ended = fedpriv("deploy", *arguments)
        assert ended.exit_code == 2 and said in ended.stderr, ended.output


@needs_flower
def test_a_run_says_whom_it_waits_for(made: DeploymentPaths, capsys: pytest.CaptureFixture[str]) -> None:
    from fedpriv.deploy.flower.control import Node

    nodes = [Node(7, "client-0", "online"), Node(8, "client-1", "registered")]
    _say_who_is_awaited(SimpleNamespace(nodes=lambda: nodes), made)
    said = capsys.readouterr().err
    assert (
        said.startswith("waiting for 1 of 2 clients to connect, until ") and " (120 s): client-1; `fedpriv deploy status" in said
    )
    _say_who_is_awaited(SimpleNamespace(nodes=lambda: nodes[:1]), made)
    assert capsys.readouterr().err == ""


@needs_flower
def test_a_run_says_once_that_its_server_is_away(made: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("fedpriv.cli.deploy.say", lambda text, err: said.append(text))
    answers = iter([True, False, False, True, False])
    link = SimpleNamespace(start=lambda path: 1, nodes=list, check=lambda number: next(answers))
    monkeypatch.setattr("fedpriv.cli.deploy.console", lambda: SimpleNamespace(print=lambda *shown, **options: None))
    folder = RunFolder.create(load_config(None, {"run_dir": str(tmp_path / "run")}), tmp_path)
    monkeypatch.setattr("time.monotonic", count(0, 6).__next__)
    follow = lambda alive, *of: [alive() for _ in range(5)] != []  # noqa: E731
    _conduct(made, link, SimpleNamespace(run_dir=folder.path, path=folder.path, follow=follow), detach=False)
    assert len(said) == 2 and all("the server does not answer any more" in text for text in said)


@needs_flower
def test_the_status_of_a_run_is_not_that_of_a_request(
    tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.deploy.flower.requests import Request

    home = make(tmp_path / "d", 1, "localhost")
    monkeypatch.setattr("fedpriv.cli.deploy._link", lambda home: SimpleNamespace(nodes=list))
    with RunFolder.begin(load_config(None, {"run_dir": str(home.runs / "begun")}), home.runs) as folder:
        folder.update_facts(status="running")
        for name in ("begun", "never"):
            save_json(Request.write(home.requests, home.runs / name, None, 1, 60)._note, {"error": "it is refused"})
        shown = " ".join(fedpriv("deploy", "status", home.path).stdout.split())
        assert "begun running, round 0 of 30; last request: it is refused" in shown
        assert "never failed, not begun: it is refused" in shown
    assert "begun killed, round 0" in " ".join(fedpriv("deploy", "status", home.path).stdout.split())
    ended = fedpriv("deploy", "stop", folder.path)
    assert ended.exit_code == 2 and "Ctrl-C stops a simulation" in ended.stderr and not (folder.path / STOP).exists()
    folder.update_facts(deployed={})
    ended = fedpriv("deploy", "stop", folder.path)
    assert ended.exit_code == 2 and "is killed, not running; `fedpriv deploy resume" in ended.stderr


@pytest.mark.parametrize("host", ["", "two words", "-x", "a/b", "server.example.org:8443", "a..b"])
def test_a_host_that_is_none_is_refused(tmp_path: Path, fedpriv: Callable[..., Result], host: str) -> None:
    ended = fedpriv("deploy", "init", tmp_path / "d", "--clients", 1, "--host", host)
    assert ended.exit_code == 2 and "--host" in ended.output and not (tmp_path / "d").exists()


def test_a_certificate_of_another_authority_is_named_at_once(
    made: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server would be awaited for minutes."""
    certificates.check_handshake(made.certificate, made.key, made.authority, "127.0.0.1")
    with monkeypatch.context() as patch:  # as in Python 3.13 and later
        context = ssl.create_default_context(cafile=str(made.authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        patch.setattr(ssl, "create_default_context", lambda **_: context)
        certificates.check_handshake(made.certificate, made.key, made.authority, "127.0.0.1")
    other = make(tmp_path / "d", 1, "localhost")
    for certificate, key, host, why in (
        (other.certificate, other.key, "127.0.0.1", "unable to get local issuer certificate"),
        (made.certificate, other.key, "127.0.0.1", "KEY_VALUES_MISMATCH"),
        (made.certificate, made.key, "127.0.0.2", "IP address mismatch"),
        (made.server_file, made.key, "127.0.0.1", "PEM"),
    ):
        with pytest.raises(UsageError, match=f"does not hold for {host} by .*{why}"):
            certificates.check_handshake(certificate, key, made.authority, host)


def test_the_file_of_a_deployment_is_not_its_folder(made: DeploymentPaths) -> None:
    with pytest.raises(UsageError, match=f"server.yaml is a file; name its folder, {made.path}"):
        DeploymentPaths.open(made.server_file)


def test_a_folder_without_a_deployment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no server\.yaml"):
        DeploymentPaths.open(tmp_path)


@pytest.mark.parametrize(
    ("line", "instead", "told"),
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
def test_a_client_file_that_is_not_right(made: DeploymentPaths, line: str, instead: str, told: str) -> None:
    file = made.path / f"other-{abs(hash(instead))}.yaml"
    file.write_text(made.client_file(0).read_text().replace(line, instead))
    with pytest.raises(UsageError, match=told):
        read_client(file)


def test_data_beside_the_file_are_found(made: DeploymentPaths) -> None:
    (made.path / "photos").mkdir()
    file = made.path / "with-photos.yaml"
    file.write_text(made.client_file(1).read_text().replace("  name: null", "  name: photos"))
    assert read_client(file).data.name == str(made.path / "photos")


def test_a_certificate_that_does_not_hold(made: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"is for .*server\.example\.org, not for other\.example\.org"):
        certificates.check_server_certificate(made.certificate, "other.example.org")
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.02)
    old = tmp_path / "old.crt"
    certificates.make_server_certificate(made.authority, made.authority_key, ["localhost"], old, tmp_path / "old.key")
    with pytest.raises(UsageError, match="expired on"):
        certificates.check_server_certificate(old, "localhost")


def test_a_certificate_that_has_expired_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedpriv: Callable[..., Result]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "SERVER_DAYS", -0.02)
        home = make(tmp_path / "d", 1, "server.example.org")
    before = {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=f"expired on .*; `fedpriv deploy renew {home.path}` makes a new one"):
        certificates.check_server_certificate(home.certificate, "server.example.org")
    ended = fedpriv("deploy", "renew", home.path)
    assert ended.exit_code == 0, ended.output
    certificates.check_server_certificate(home.certificate, "server.example.org")
    for host in ("server.example.org", "localhost", "127.0.0.1"):
        certificates.check_handshake(home.certificate, home.key, home.authority, host)
    after = {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()
    assert {path for path in after if after[path] != before[path]} == {home.certificate, home.key}
    assert home.key.stat().st_mode & 0o777 == 0o600
    home.authority_key.unlink()
    ended = fedpriv("deploy", "renew", home.path)
    assert ended.exit_code == 2 and "ca.key does not exist" in " ".join(ended.stderr.split())


def test_a_port_that_is_taken(made: DeploymentPaths) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 cannot be used: Address already in use"):
            machines._check_free("127.0.0.1", port, made.server_file)


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


def test_a_client_checks_its_server(made: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_client(made.client_file(0))
    with answering(made.certificate, made.key, time.time()) as port:
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with (
        answering(made.certificate, made.key, time.time() - 3600) as port,
        pytest.raises(UsageError, match=r"the clocks differ: .* is -3[56]\d\d s from this machine"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with (  # Flower takes no signature from the future
        answering(made.certificate, made.key, time.time() - 8) as port,
        pytest.raises(UsageError, match=r"the clocks differ: .* is -[89] s from this machine"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with answering(made.certificate, made.key, time.time() + 200) as port:
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    now = time.time()  # of which a busy server's answer says that it was asked then, and which comes 12 s later
    with answering(made.certificate, made.key, now) as port, monkeypatch.context() as patch:
        patch.setattr(machines, "time", SimpleNamespace(time=iter([now, now + 12]).__next__))
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with (
        answering(made.certificate, made.key, time.time(), status=502) as port,
        pytest.raises(machines.Unreachable, match="the proxy in front of it answers 502"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    foreign = make(tmp_path / "foreign", 1, "server.example.org")
    with answering(foreign.certificate, foreign.key, time.time()) as port, pytest.raises(UsageError, match="does not hold"):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.02)
    old, key = tmp_path / "old.crt", tmp_path / "old.key"
    certificates.make_server_certificate(made.authority, made.authority_key, ["127.0.0.1"], old, key)
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
                one = listening.accept()[0]
                with suppress(OSError), context.wrap_socket(one, server_side=True) if tls else one as asked:
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


def test_what_a_client_cannot_read_of_its_server_is_named(
    made: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = read_client(made.client_file(0))
    junk = tmp_path / "junk.crt"
    junk.write_text("junk")
    with pytest.raises(UsageError, match=r"junk\.crt holds no certificate that can be read"):
        machines.check_server(read.model_copy(update={"certificate": junk}))
    monkeypatch.setattr(email.utils, "formatdate", lambda *of, **how: "yesterday")
    with (
        answering(made.certificate, made.key, 0) as port,
        pytest.raises(UsageError, match=f"127.0.0.1:{port} says no time that can be read: Date: yesterday"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))


@pytest.mark.parametrize(("said", "why"), [("", "it has logged nothing; is this machine busy"), ("reason", "log.txt says why")])
def test_a_server_that_does_not_answer_in_time_is_sought_in_a_log_that_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, why: str
) -> None:
    monkeypatch.setattr(machines, "START", 0.0)
    log = tmp_path / "log.txt"
    log.write_text("of an earlier start\n")

    def answers() -> bool:
        log.write_text(log.read_text() + said)
        return False

    supervisor: Any = SimpleNamespace(log=log, look=lambda: None)
    with pytest.raises(FedprivError, match=why):
        machines._await_answer(answers, supervisor)


def test_a_client_does_not_wait_for_ever_for_an_answer_that_never_ends(
    made: DeploymentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "ANSWER", 0.5)
    read = read_client(made.client_file(0))
    with (
        speaking(made.certificate, made.key) as port,
        pytest.raises(machines.Unreachable, match=r"cannot be reached: .*(more|timed)"),
    ):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))
    with speaking(made.certificate, made.key, tls=False) as port, pytest.raises(UsageError, match="does not speak TLS"):
        machines.check_server(read.model_copy(update={"server": f"127.0.0.1:{port}"}))


@needs_flower
def test_an_operator_does_not_wait_for_ever_and_is_told_what_is_wrong_with_a_server(
    made: DeploymentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv.deploy.flower.control import SuperLink

    monkeypatch.setattr(tls, "ANSWER", 0.5)
    with speaking(made.certificate, made.key) as port:
        assert not SuperLink(f"127.0.0.1:{port}", made.authority).answers()
    with speaking(made.certificate, made.key, tls=False) as port, pytest.raises(UsageError, match="does not speak TLS"):
        SuperLink(f"127.0.0.1:{port}", made.authority).answers()
    monkeypatch.setattr(tls, "ANSWER", 30.0)
    foreign = make(tmp_path / "foreign", 1, "server.example.org")
    with (
        answering(foreign.certificate, foreign.key, time.time()) as port,
        pytest.raises(UsageError, match="does not hold: unable"),
    ):
        SuperLink(f"127.0.0.1:{port}", made.authority).answers()
    assert not SuperLink(f"127.0.0.1:{machines.free_port()}", made.authority).answers()


@needs_flower
def test_a_client_waits_for_a_server_that_is_not_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "RETRY", 0.05)
    port, told = machines.free_port(), list[str]()
    home = make(tmp_path / "d", 1, "127.0.0.1", port)
    with ExitStack() as stack:

        def tell(reason: str) -> None:  # only now the server is started, and its clock is wrong
            told.append(reason)
            stack.enter_context(answering(home.certificate, home.key, time.time() - 3600, port))

        with pytest.raises(UsageError, match="the clocks differ"), machines.client(home.client_file(0), tell=tell):
            pass
    assert told == [f"the server 127.0.0.1:{port} cannot be reached: Connection refused; trying again every 0.05 s"]


@needs_flower
def test_a_key_that_others_may_read_is_named(
    tmp_path: Path, fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(settings: ClientFile) -> None:
        raise FedprivError("the test ends here")

    monkeypatch.setattr(machines, "check_server", ends)
    home = make(tmp_path / "d", 1, "127.0.0.1", machines.free_port())
    key = read_client(home.client_file(0)).key
    for mode, warned in ((0o600, False), (0o640, True), (0o604, True)):
        key.chmod(mode)
        ended = fedpriv("deploy", "client", home.client_file(0))
        assert ended.exit_code == 1 and "the test ends here" in ended.output
        assert (f"other users of this machine may read {key}; chmod 600 {key}" in ended.output) == warned


def test_without_flower_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch, fedpriv: Callable[..., Result]) -> None:
    def missing(name: str) -> str:
        raise needed.PackageNotFoundError(name)

    monkeypatch.setattr(needed, "version", missing)
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
        return SimpleNamespace(found={"run_dir": str(folder), "equal": True})

    monkeypatch.setattr(needed, "require_flower", lambda: None)
    monkeypatch.setitem(sys.modules, "fedpriv.deploy.flower.demo", SimpleNamespace(demo=play))  # the real one imports Flower
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = fedpriv("deploy", "demo")
    left = [path.parent for path in tmp_path.glob("fedpriv-demo-*/log.txt")]
    assert len(left) == kept
    assert all(f"the files of the demo are kept in {folder}" in ended.output for folder in left)


def test_an_untested_flower_is_refused(monkeypatch: pytest.MonkeyPatch, fedpriv: Callable[..., Result]) -> None:
    monkeypatch.setattr(needed, "version", lambda name: "1.40.3")
    ended = fedpriv("deploy", "demo")
    assert ended.exit_code == 2 and "Flower 1.40.3 was not tested" in ended.output
