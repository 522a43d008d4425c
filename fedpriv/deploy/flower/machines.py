"""The processes on a server's machine and on a client's machine."""

from __future__ import annotations

import email.utils
import json
import math
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedpriv.deploy.flower.paths import ClientFile, DeploymentPaths, host_port, read_client
from fedpriv.deploy.flower.supervisor import Supervisor
from fedpriv.deploy.flower.tls import trusting, wrong_server
from fedpriv.deploy.operation.database import compact
from fedpriv.deploy.operation.logs import LogFormat
from fedpriv.errors import FedprivError, UsageError, causes, first_line
from fedpriv.untrusted.names import printable, shortened
from fedpriv.untrusted.proxies import by_proxy, go_direct, proxy_for

BEHIND, AHEAD = 300.0, 5.0
"""Seconds by which a client's clock may be behind its server's, or ahead of it: Flower accepts no signature from the future."""
START = 600.0
"""Seconds for a server to answer after its start: a busy machine takes minutes to import Flower."""
_BAD_GATEWAY = (502, 503, 504)
"""Status codes of a reverse proxy while the server behind it is not running."""
RETRY = 2.0
"""Seconds between a client's attempts to reach its server."""
POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Environment of the processes that start apps: seconds between checks, which cost more than all else while nothing goes on. A
run has one app, a client one for each frame."""
COUNTERS = "counters.json"
"""File in a client's folder."""
TASKS = "import sys; from pathlib import Path; from fedpriv.deploy.flower.tasks"


@contextmanager
def server(paths: DeploymentPaths, log_format: LogFormat = "text") -> Iterator[Supervisor]:
    """A block in which the server's processes run, and its clients' keys are registered. Interrupted runs continue.

    Raises:
        UsageError: its port is taken, or its certificate is invalid.
        FedprivError: it does not answer.
    """
    from fedpriv.deploy.flower.certificates import check_handshake, check_server_certificate
    from fedpriv.deploy.flower.control import SuperLink
    from fedpriv.deploy.flower.requests import Request

    settings = paths.settings()
    check_server_certificate(paths.certificate, settings.host)
    _check_free(settings.listen, settings.port, paths.server_file)
    address = reachable(settings.listen, settings.port)
    names = [address.rpartition(":")[0].strip("[]"), *(["localhost"] if (paths.path / "nginx.conf").exists() else [])]
    for name in names:  # under which the processes of this machine reach it
        check_handshake(paths.certificate, paths.key, paths.authority, name)
    link = SuperLink(address, paths.authority)
    if paths.database.exists():
        compact(paths.database)
    with Supervisor(paths.log, paths.path, {"FLWR_HOME": str(paths.flower), POLL: "2"}, log_format) as supervisor:
        supervisor.start(
            "the SuperLink", f"from fedpriv.deploy.flower.link import run_link; run_link({str(paths.counters)!r})",
            "--ssl-ca-certfile", paths.authority, "--ssl-certfile", paths.certificate, "--ssl-keyfile", paths.key,
            "--enable-supernode-auth", "--disable-runtime-dependency-installation", "--host", settings.listen,
            "--port", settings.port, "--database", paths.database, "--isolation", "process",
            "--superexec-auth-secret-file", paths.secret,
        )  # fmt: skip
        _await_answer(link.answers, supervisor)
        for request in Request.interrupted(paths.requests):  # first: `follow` asks the SuperLink for the run's app
            link.start(request.path)
        link.admit({member.node: paths.public_key(member.number) for member in paths.members.present()})
        supervisor.start(
            "the SuperExec", f"{TASKS} import run_server_tasks; run_server_tasks(sys.argv[1], *map(Path, sys.argv[2:]))",
            address, paths.secret, paths.authority,
        )  # fmt: skip
        yield supervisor


@contextmanager
def client(
    path: Path, plugins: Sequence[Path] = (), warn: Callable[[str], None] = lambda text: None, patience: float = math.inf,
    log_format: LogFormat = "text",
) -> Iterator[Supervisor]:  # fmt: skip
    """A block in which a client's processes run: a long-lived one with data and net, its node, and the node's apps.

    They start once the server can be reached.

    Args:
        plugins: plug-in files.
        warn: called with the reason while the server cannot be reached.
        patience: seconds after which to give up.

    Raises:
        UsageError: its file or the server's certificate is invalid, or a clock is wrong.
    """
    from fedpriv.deploy.flower.certificates import write_secret

    settings = read_client(path)
    go_direct()  # for its processes among themselves
    _await_server(settings, warn, patience)
    folder = settings.folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    port = settings.port or free_port()
    if settings.port is not None:
        _check_free("127.0.0.1", port, path)
    with _private_folder(folder) as private:
        address, secret = Path(private.name, "local_updates"), private / "secret"  # relative, as a socket's path must be short
        write_secret(secret, secrets.token_bytes(32))
        environment = {"FLWR_HOME": str(folder / "flower"), POLL: "0.2"}
        with Supervisor(folder / "log.txt", folder, environment, log_format) as supervisor:
            code = "from fedpriv.deploy.flower.machines import serve_client; serve_client()"
            supervisor.start(f"client {settings.client}", code, path.absolute(), address, *plugins)
            supervisor.start(
                "its SuperNode",
                f"from fedpriv.deploy.flower.node import run_node; run_node({settings.server!r}, {settings.poll})",
                "--root-certificates", settings.certificate, "--superlink", settings.server,
                "--auth-supernode-private-key", settings.key, "--host", "127.0.0.1", "--port", port,
                "--isolation", "process", "--superexec-auth-secret-file", secret,
                "--node-config", f"socket={json.dumps(str(address))}",
            )  # fmt: skip
            supervisor.start(
                "its SuperExec", f"{TASKS} import run_node_tasks; run_node_tasks(sys.argv[1], Path(sys.argv[2]))",
                f"127.0.0.1:{port}", secret,
            )  # fmt: skip
            yield supervisor


@contextmanager
def _private_folder(folder: Path) -> Iterator[Path]:
    """A block with a folder of mode 700 for what the client's processes share: a socket and a secret. What a killed process has
    left there is removed.

    Args:
        folder: of the client.

    Raises:
        UsageError: another process runs the client.
    """
    lock, private = FileLock(folder / "running.lock"), folder / "running"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"another process on this machine runs the client of {folder}") from None
    with lock:
        shutil.rmtree(private, ignore_errors=True)
        private.mkdir(mode=0o700)
        try:
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)


def serve_client() -> None:
    """Run the client's long-lived process; ``sys.argv[1:]``: the client's file, the path of the socket, plug-in files."""
    import sys

    from fedpriv.deploy.client.client_node import ClientNode
    from fedpriv.deploy.client.need import hold
    from fedpriv.deploy.client.socket_server import serve
    from fedpriv.deploy.operation.counters import Counters
    from fedpriv.plugins import load_plugins

    try:
        settings = read_client(Path(sys.argv[1]))
        load_plugins([Path(file) for file in sys.argv[3:]])
        hold(settings.requires)
        node = ClientNode(
            settings.client, settings.data, settings.folder, settings.device, settings.check_downloads, settings.requires,
            Counters(settings.folder / COUNTERS),
        )  # fmt: skip
        serve(node, Path(sys.argv[2]))
    except FedprivError as error:
        sys.exit(f"fedpriv: {error}")


class Unreachable(FedprivError):
    """The server does not answer."""


def check_server(settings: ClientFile) -> None:
    """Check the server's certificate and clock, through the same proxy as the client's node
    (:func:`~fedpriv.untrusted.proxies.proxy_for`).

    Raises:
        UsageError: the certificate is invalid here, the clocks differ, or the proxy cannot be used.
        Unreachable: it does not answer, or not within :data:`~fedpriv.deploy.flower.tls.ANSWER` seconds.
    """
    import httpx

    url = f"https://{settings.server}/v1/fleet/"
    context, by = trusting(settings.certificate), by_proxy(url)
    before = time.time()
    try:
        with (
            httpx.Client(verify=context, timeout=20, proxy=proxy_for(url), trust_env=False) as connection,
            connection.stream("GET", url) as answer,
        ):
            date = answer.headers.get("Date")
    except httpx.HTTPError as error:
        if (wrong := wrong_server(f"{settings.server}{by}", error)) is not None:
            raise wrong from None
        raise Unreachable(f"the server {settings.server} cannot be reached{by}: {_reason(error)}") from None
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # such as a kind of proxy that httpx does not know
        raise UsageError(f"the server {settings.server} cannot be reached{by}: {first_line(error)}") from None
    if answer.status_code in _BAD_GATEWAY:
        status = f"{answer.status_code} {answer.reason_phrase}"
        raise Unreachable(f"the server {settings.server} cannot be reached{by}: the proxy in front of it answers {status}")
    after = time.time()
    try:
        there = email.utils.parsedate_to_datetime(date).timestamp() if date else after
    except (ValueError, OverflowError):
        raise UsageError(
            f"{settings.server} sent a time that cannot be read: Date: {shortened(printable(date), 100, 20)}"
        ) from None
    # A server notes the time at some moment between the request and its response.
    if not -AHEAD <= (behind := there - min(max(there, before), after)) <= BEHIND:
        raise UsageError(f"the clocks differ: {settings.server} is {behind:+.0f} s from this machine; set both by NTP")


def _reason(error: BaseException) -> str:
    """Why a connection failed; the system's message if there is one."""
    known = (cause.strerror for cause in causes(error) if isinstance(cause, OSError) and cause.strerror)
    return next(known, first_line(error))


def _await_server(settings: ClientFile, warn: Callable[[str], None], patience: float) -> None:
    """Check the server as soon as it can be reached, as machines may be started in any order."""
    warning, until = "", time.monotonic() + patience
    while True:
        try:
            return check_server(settings)
        except Unreachable as error:
            if time.monotonic() > until:
                raise
            if str(error) != warning:
                warning = str(error)
                warn(f"{warning}; trying again every {RETRY:g} s")
        time.sleep(RETRY)


def _await_answer(answers: Callable[[], bool], supervisor: Supervisor) -> None:
    """Wait until a server that was just started answers."""
    until, before = time.monotonic() + START, _size(supervisor.log)
    while not answers():
        supervisor.look()
        if time.monotonic() > until:
            why = (
                f"{supervisor.log} says why" if _size(supervisor.log) > before else "it has logged nothing; is this machine busy?"
            )
            raise FedprivError(f"the server does not answer within {START:g} s; {why}")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_free(host: str, port: int, where: Path) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"{where}: port {port} on {host} cannot be used: {error.strerror}; another port is needed") from None


def reachable(listen: str, port: int) -> str:
    """``host:port`` under which this machine reaches its own server."""
    return host_port("127.0.0.1" if listen in ("0.0.0.0", "::") else listen, port)
