"""``fedpriv deploy``: the files of a deployment, its server and its clients; runs and members are in modules of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console
from fedpriv.cli.terminal import FilePath, SafeGroup, say

if TYPE_CHECKING:
    from fedpriv.deploy.operation.logs import LogFormat

DIR = click.argument("folder", metavar="DIR", type=FilePath())


@main.group("deploy", cls=SafeGroup)
def deploy() -> None:
    """Train with clients on other machines, by Flower (extra `deploy`).

    \b
    Example: fedpriv deploy demo --clients 3 --method mpfedcon
    """


@command(deploy, "init")
@DIR
@click.option("--clients", type=click.IntRange(min=1), required=True, help="Number of clients.")
@click.option("--host", required=True, help="Name or address under which clients reach the server.")
@click.option("--port", type=click.IntRange(1, 65535), default=8443, show_default=True, help="Port at which they reach it.")
@click.option("--listen", default="127.0.0.1", show_default=True, help="Address that it listens on; by default behind a proxy.")
def init(folder: Path, clients: int, host: str, port: int, listen: str) -> dict[str, Any]:
    """Write the files of a deployment: authority, certificate, keys, server.yaml, client-N.yaml, systemd units, proxy.

    \b
    Example: fedpriv deploy init DIR --clients 3 --host server.example.org
    """
    from fedpriv.deploy.flower.paths import make
    from fedpriv.deploy.operation.journal import note

    paths = make(folder, clients, host, port, listen)
    note(paths.journal, "init")
    out = console()
    out.print(f"server: fedpriv deploy server {folder}", soft_wrap=True)
    out.print(
        f"client: copy {folder}/client-N.yaml and {folder}/client-N/, then fedpriv deploy client client-N.yaml", soft_wrap=True
    )
    out.print(f"then:   fedpriv deploy run {folder} --method fedavg", soft_wrap=True)
    return {"dir": str(paths.path), "clients": clients, "host": host, "port": port}


@command(deploy, "renew")
@DIR
def renew(folder: Path) -> dict[str, Any]:
    """Make a new certificate of the server, for another 825 days; clients need nothing new.

    \b
    Example: fedpriv deploy renew DIR
    """
    from fedpriv.deploy.flower.paths import DeploymentPaths, renew_certificate
    from fedpriv.deploy.operation.journal import note

    renew_certificate(paths := DeploymentPaths.open(folder))
    note(paths.journal, "renew")
    console().print(f"{paths.certificate} is new: restart the server, and nginx if you use it", soft_wrap=True)
    return {"certificate": str(paths.certificate)}


_LOG_FORMAT = click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Of the lines in its log."
)
_METRICS_PORT = click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Port of 127.0.0.1 for /health and /metrics; default: none.",
)


@command(deploy, "server")
@DIR
@_LOG_FORMAT
@_METRICS_PORT
def server(folder: Path, log_format: LogFormat, metrics_port: int | None) -> None:
    """Run the server of a deployment, until Ctrl-C.

    \b
    Example: fedpriv deploy server DIR --metrics-port 9464 --log-format json
    """
    require_flower()
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.deploy.operation.database import Tended
    from fedpriv.deploy.operation.journal import note
    from fedpriv.deploy.operation.measuring import of_server
    from fedpriv.deploy.operation.metrics import memory
    from fedpriv.errors import FedprivError

    paths = DeploymentPaths.open(folder)
    with machines.server(paths, log_format) as supervisor:
        settings = paths.settings()
        note(paths.journal, "server")
        _warn_of_readable(paths.authority_key, paths.key, paths.secret)
        say(f"server on {settings.listen}:{settings.port}; it writes {paths.log}", err=True)

        def nodes() -> list[tuple[str, str]]:
            try:
                return [(node.name, node.status) for node in link_of(paths).nodes()]
            except FedprivError:  # it is started again
                return []

        def problem() -> str | None:
            try:
                link_of(paths)
            except FedprivError as error:
                return str(error)
            return supervisor.problem()

        with _measured(
            metrics_port, lambda: (*of_server(paths.runs, paths.counters, nodes), *memory(supervisor.pids())), problem
        ):
            supervisor.watch(tend=Tended(paths.database, lambda: Request.idle(paths.requests)))


@command(deploy, "client")
@click.argument("file", metavar="FILE", type=FilePath())
@_LOG_FORMAT
@_METRICS_PORT
def client(file: Path, log_format: LogFormat, metrics_port: int | None) -> None:
    """Run a client of a deployment on its own data, until Ctrl-C.

    It waits for a server that cannot be reached yet.

    \b
    Example: fedpriv deploy client client-2.yaml --metrics-port 9465
    """
    require_flower()
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.paths import read_client
    from fedpriv.deploy.operation.measuring import of_counters
    from fedpriv.deploy.operation.metrics import memory

    settings = read_client(file)
    _warn_of_readable(settings.key)
    plugins = click.get_current_context().meta.get("fedpriv.plugins", ())
    with machines.client(file, plugins, lambda text: say(f"warning: {text}", err=True), log_format=log_format) as supervisor:
        say(f"client of {file}; it writes {supervisor.log}", err=True)
        counters = settings.folder / machines.COUNTERS

        with _measured(metrics_port, lambda: (*of_counters(counters), *memory(supervisor.pids())), supervisor.problem):
            supervisor.watch()


def require_flower() -> None:
    """Raise an error unless Flower is installed, in a version that was tested."""
    from fedpriv.deploy.flower import internals

    internals.require_flower()


@contextmanager
def _measured(port: int | None, measure: Any, problem: Any) -> Iterator[None]:
    """A block in which a port answers ``/health`` and ``/metrics``; ``None``: no port does."""
    from fedpriv.deploy.operation.metrics import served

    if port is None:
        yield
        return
    with served(port, measure, problem):
        say(f"http://127.0.0.1:{port}/metrics and /health", err=True)
        yield


def _warn_of_readable(*secrets: Path) -> None:
    from fedpriv.deploy.flower.certificates import readable_by_others

    for path in readable_by_others(*secrets):
        say(f"warning: other users of this machine may read {path}; chmod 600 {path}", err=True)


def link_of(paths: Any) -> Any:
    """The operator's access to the server of a deployment; an error if it does not answer."""
    from fedpriv.deploy.flower.control import SuperLink
    from fedpriv.deploy.flower.machines import reachable
    from fedpriv.errors import FedprivError

    settings = paths.settings()
    address = reachable(settings.listen, settings.port)
    link = SuperLink(address, paths.authority)
    if not link.answers():
        raise FedprivError(f"no server answers on {address}; `fedpriv deploy server {paths.path}` starts it")
    return link
