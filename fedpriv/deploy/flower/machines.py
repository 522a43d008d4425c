"""The processes of a server's machine and of a client's machine."""

from __future__ import annotations

import email.utils
import json
import math
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedpriv.deploy.flower.needed import require_flower
from fedpriv.deploy.flower.paths import ClientFile, DeploymentPaths, host_port, read_client
from fedpriv.deploy.flower.supervisor import Supervisor
from fedpriv.deploy.flower.tls import trusting, wrong_server
from fedpriv.deploy.frames import line_of
from fedpriv.errors import FedprivError, UsageError, first_line
from fedpriv.untrusted.proxies import by_proxy, go_direct, proxy_for

BEHIND, AHEAD = 300.0, 5.0
"""Seconds by which a client's clock may be behind its server's, or ahead of it: Flower takes no signature from the future."""
START = 600.0
"""Seconds in which a server must answer, as long as it lives: a busy machine takes minutes to import Flower."""
_AWAY = (502, 503, 504)
"""What a reverse proxy answers while the server behind it is not running."""
RETRY = 5.0
"""Seconds after which a client asks again for a server that it cannot reach."""
POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
TASKS = "import sys; from pathlib import Path; from fedpriv.deploy.flower.tasks"


@contextmanager
def server(home: DeploymentPaths) -> Iterator[Supervisor]:
    """A block in which the server's processes run, and its clients' keys are registered. Runs that were broken off with it go on.

    Raises:
        UsageError: its port is taken, or its certificate does not hold.
        FedprivError: it does not answer.
    """
    require_flower()
    from fedpriv.deploy.flower.certificates import check_handshake, check_server_certificate
    from fedpriv.deploy.flower.control import SuperLink
    from fedpriv.deploy.flower.requests import Request

    settings = home.settings()
    check_server_certificate(home.certificate, settings.host)
    _check_free(settings.listen, settings.port, home.server_file)
    address = reachable(settings.listen, settings.port)
    names = [address.rpartition(":")[0].strip("[]"), *(["localhost"] if (home.path / "nginx.conf").exists() else [])]
    for name in names:  # by which this machine's processes reach it, and nginx does
        check_handshake(home.certificate, home.key, home.authority, name)
    link = SuperLink(address, home.authority)
    with Supervisor(home.log, home.path, {"FLWR_HOME": str(home.flower), **POLL}) as supervisor:
        supervisor.start(
            "the SuperLink", "from flwr.superlink.cli import flower_superlink; flower_superlink()",
            "--ssl-ca-certfile", home.authority, "--ssl-certfile", home.certificate, "--ssl-keyfile", home.key,
            "--enable-supernode-auth", "--disable-runtime-dependency-installation", "--host", settings.listen,
            "--port", settings.port, "--database", home.database, "--isolation", "process",
            "--superexec-auth-secret-file", home.secret,
        )  # fmt: skip
        _await_answer(link.answers, supervisor)
        for request in Request.broken_off(home.requests):  # at once: who follows such a run asks the SuperLink for its app
            link.start(request.path)
        link.admit({f"client-{number}": home.public_key(number) for number in range(settings.clients)})
        supervisor.start(
            "the SuperExec", f"{TASKS} import run_server_tasks; run_server_tasks(sys.argv[1], *map(Path, sys.argv[2:]))",
            address, home.secret, home.authority,
        )  # fmt: skip
        yield supervisor


@contextmanager
def client(
    path: Path, plugins: Sequence[Path] = (), tell: Callable[[str], None] = lambda text: None, patience: float = math.inf
) -> Iterator[Supervisor]:
    """A block in which a client's processes run: one that stays with data and net, its node, and the node's apps.

    They start once the server can be reached.

    Args:
        plugins: files that register what runs may name.
        tell: called with the reason while the server cannot be reached.
        patience: seconds after which it is not tried any more.

    Raises:
        UsageError: its file, the server's certificate or a clock is not right.
    """
    require_flower()
    from fedpriv.deploy.flower.certificates import write_secret

    settings = read_client(path)
    go_direct()  # of its processes to each other
    _await_server(settings, tell, patience)
    folder = settings.folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    port = settings.port or free_port()
    if settings.port is not None:
        _check_free("127.0.0.1", port, path)
    private = Path(tempfile.mkdtemp(prefix="fedpriv-"))  # mode 700, and short, as addresses of sockets must be
    try:
        address, secret = private / "local_updates", private / "secret"
        write_secret(secret, secrets.token_bytes(32))
        with Supervisor(folder / "log.txt", folder, {"FLWR_HOME": str(folder / "flower"), **POLL}) as supervisor:
            stays = "from fedpriv.deploy.flower.machines import stay; stay()"
            supervisor.start(f"client {settings.client}", stays, path.absolute(), address, *plugins)
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
    finally:
        shutil.rmtree(private, ignore_errors=True)


def stay() -> None:
    """The client's process that stays: ``sys.argv[1:]`` are its file, the address of its socket, and files of plug-ins."""
    import sys

    from fedpriv.deploy.client_node import ClientNode
    from fedpriv.deploy.resident import serve
    from fedpriv.deploy.source import Source
    from fedpriv.plugins import load_plugins

    try:
        settings = read_client(Path(sys.argv[1]))
        load_plugins([Path(file) for file in sys.argv[3:]])
        source = Source(settings.data.name, settings.data.dir, settings.data.share, settings.data.label)
        site = ClientNode(settings.client, source, settings.folder, settings.device, settings.check_downloads, settings.requires)
        serve(site, Path(sys.argv[2]))
    except FedprivError as error:
        sys.exit(f"fedpriv: {error}")


class Unreachable(FedprivError):
    """A server that does not answer at all."""


def check_server(settings: ClientFile) -> None:
    """Ask the server for the time, by the same proxy as the client's node does (:func:`~fedpriv.untrusted.proxies.proxy_for`).

    Raises:
        UsageError: its certificate does not hold here, the clocks differ, or the proxy cannot be used.
        Unreachable: it does not answer, or not within :data:`~fedpriv.deploy.flower.tls.ANSWER` seconds.
    """
    import httpx

    url = f"https://{settings.server}/v1/fleet/"
    context, by = trusting(settings.certificate), by_proxy(url)
    asked = time.time()
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
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # as of a kind of proxy that httpx does not know
        raise UsageError(f"the server {settings.server} cannot be reached{by}: {first_line(error)}") from None
    if answer.status_code in _AWAY:
        said = f"{answer.status_code} {answer.reason_phrase}"
        raise Unreachable(f"the server {settings.server} cannot be reached{by}: the proxy in front of it answers {said}")
    answered = time.time()
    try:
        there = email.utils.parsedate_to_datetime(date).timestamp() if date else answered
    except (ValueError, OverflowError):
        raise UsageError(f"{settings.server} says no time that can be read: Date: {line_of(date)}") from None
    # A busy server says the time at some moment between the question and its answer.
    if not -AHEAD <= (behind := there - min(max(there, asked), answered)) <= BEHIND:
        raise UsageError(f"the clocks differ: {settings.server} is {behind:+.0f} s from this machine; set both by NTP")


def _reason(error: BaseException) -> str:
    """Why a connection failed, in the words of the system if it knows."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return first_line(error)


def _await_server(settings: ClientFile, tell: Callable[[str], None], patience: float) -> None:
    """Check the server as soon as it can be reached: machines are started in any order."""
    told, until = "", time.monotonic() + patience
    while True:
        try:
            return check_server(settings)
        except Unreachable as error:
            if time.monotonic() > until:
                raise
            if str(error) != told:
                told = str(error)
                tell(f"{told}; trying again every {RETRY:g} s")
        time.sleep(RETRY)


def _await_answer(answers: Callable[[], bool], supervisor: Supervisor) -> None:
    """Wait for a server that was just started."""
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
    """A port of this machine that is free at present."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _check_free(host: str, port: int, where: Path) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"{where}: port {port} on {host} cannot be used: {error.strerror}; another port, or end its user"
            ) from None


def reachable(listen: str, port: int) -> str:
    """``host:port`` by which this machine reaches its server."""
    return host_port("127.0.0.1" if listen in ("0.0.0.0", "::") else listen, port)
