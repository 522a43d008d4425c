"""``fedpriv deploy``: a run whose clients are on other machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console
from fedpriv.cli.options import config_from, config_options
from fedpriv.cli.terminal import FilePath, SafeGroup, say

_SHOWN = 5
_DIR = click.argument("folder", metavar="DIR", type=FilePath())


@main.group("deploy", cls=SafeGroup)
def deploy() -> None:
    """Train with clients on other machines, by Flower (extra `deploy`).

    \b
    Example: fedpriv deploy demo --clients 3 --method mpfedcon
    """


@command(deploy, "demo")
@click.option("--clients", type=click.IntRange(min=1), default=3, show_default=True, help="Number of clients.")
@click.option("--method", default="mpfedcon", show_default=True, help="A name of `fedpriv methods`.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Number of rounds.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any config key; repeatable.")
@click.option("--dir", "folder", type=FilePath(), help="New folder for all files. Default: a temporary one, kept on failure.")
def demo(clients: int, method: str, rounds: int, assignments: tuple[str, ...], folder: Path | None) -> dict[str, Any]:
    """Run a deployment on this machine, with TLS and keys, and check that it equals a simulation bit for bit.

    \b
    Example: fedpriv deploy demo --clients 3 --method mpfedcon
    """
    from fedpriv.deploy.flower.needed import require_flower
    from fedpriv.errors import UsageError

    require_flower()
    from fedpriv.deploy.flower.demo import demo as play

    usual = ("executor.name=sequential", "tracking.uri=none", "train.participation=1")
    given = (*usual, f"data.clients={clients}", f"train.rounds={rounds}", *assignments)
    config = config_from(None, given, {"method": method})
    if config.data.clients != clients:
        raise UsageError("--set data.clients: --clients sets it")
    if config.privacy.level == "sample":
        raise UsageError("privacy.level sample: a demo compares with a simulation, and clients draw their noise from secrets")
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; --dir names a new folder")
    with _new_folder(folder) as place:
        found = play(config, place, lambda text: say(text, err=True), _show_round).found
    out = console()
    if folder is None:
        found.pop("run_dir")
    for name, value in found.items():
        out.print(f"{name:<16} {value}", soft_wrap=True)
    if not found["equal"]:
        why = "; defences that draw random numbers do so from the clients' secrets" if config.wire.transforms else ""
        say(f"fedpriv: the deployed run and the simulation differ{why}", err=True)
        if click.get_current_context().meta.get("fedpriv.json"):
            import json

            click.echo(json.dumps(found))
        sys.exit(1)
    return found


@command(deploy, "init")
@_DIR
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

    home = make(folder, clients, host, port, listen)
    out = console()
    out.print(f"server: fedpriv deploy server {folder}", soft_wrap=True)
    out.print(
        f"client: copy {folder}/client-N.yaml and {folder}/client-N/, then fedpriv deploy client client-N.yaml", soft_wrap=True
    )
    out.print(f"then:   fedpriv deploy run {folder} --method fedavg", soft_wrap=True)
    return {"dir": str(home.path), "clients": clients, "host": host, "port": port}


@command(deploy, "renew")
@_DIR
def renew(folder: Path) -> dict[str, Any]:
    """Make a new certificate of the server, for another 825 days; clients need nothing new.

    \b
    Example: fedpriv deploy renew DIR
    """
    from fedpriv.deploy.flower import paths as files

    files.renew(home := files.DeploymentPaths.open(folder))
    console().print(f"{home.certificate} is new: start the server again, and nginx where it is used", soft_wrap=True)
    return {"certificate": str(home.certificate)}


@command(deploy, "server")
@_DIR
def server(folder: Path) -> None:
    """Run the server of a deployment, until Ctrl-C.

    \b
    Example: fedpriv deploy server DIR
    """
    from fedpriv.deploy.flower.needed import require_flower

    require_flower()
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.paths import DeploymentPaths

    home = DeploymentPaths.open(folder)
    with machines.server(home) as supervisor:
        settings = home.settings()
        _warn_of_readable(home.authority_key, home.key, home.secret)
        say(f"server on {settings.listen}:{settings.port}; it writes {home.log}", err=True)
        supervisor.watch()


@command(deploy, "client")
@click.argument("file", metavar="FILE", type=FilePath())
def client(file: Path) -> None:
    """Run a client of a deployment on its own data, until Ctrl-C.

    It waits for a server that cannot be reached yet.

    \b
    Example: fedpriv deploy client client-2.yaml
    """
    from fedpriv.deploy.flower.needed import require_flower

    require_flower()
    from fedpriv.deploy.flower import machines
    from fedpriv.deploy.flower.paths import read_client

    _warn_of_readable(read_client(file).key)
    plugins = click.get_current_context().meta.get("fedpriv.plugins", ())
    with machines.client(file, plugins, lambda text: say(f"warning: {text}", err=True)) as supervisor:
        say(f"client of {file}; it writes {supervisor.log}", err=True)
        supervisor.watch()


@command(deploy, "run")
@_DIR
@click.option("--detach", is_flag=True, help="Return once the run is started; `fedpriv deploy status` shows it.")
@config_options()
def run(
    folder: Path, detach: bool, config_file: Path | None, assignments: tuple[str, ...], **flags: Any
) -> dict[str, Any] | None:
    """Start a run with the clients of a deployment, and show its rounds.

    Its folder is in DIR/runs. Ctrl-C stops the display, not the run; to stop the run, use `fedpriv deploy stop`.

    \b
    Example: fedpriv deploy run DIR --config run.yaml
    """
    from fedpriv.deploy.flower.needed import require_flower
    from fedpriv.errors import UsageError

    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.storage.run_folder import RunFolder, default_name

    home = DeploymentPaths.open(folder)
    settings = home.settings()
    config = config_from(config_file, assignments, flags)
    if config.data.clients != settings.clients:
        if "clients" in config.data.model_fields_set:
            raise UsageError(f"data.clients {config.data.clients}: the deployment has {settings.clients} (server.yaml)")
        config = config.model_copy(update={"data": config.data.model_copy(update={"clients": settings.clients})})
    run_dir = (config.run_dir or home.runs / default_name(config)).absolute()
    RunFolder(run_dir).check_new()  # before its clients are asked
    if run_dir.resolve().parent != home.runs.resolve():
        raise UsageError(f"--run-dir {config.run_dir}: the runs of a deployment must be in {home.runs}, for `deploy resume`")
    link = _link(home)  # no request is left where no server takes it
    return _conduct(home, link, Request.write(home.requests, run_dir, config, settings.clients, settings.answer_within), detach)


@command(deploy, "resume")
@click.argument("run_dir", metavar="RUN", type=FilePath())
@click.option("--detach", is_flag=True, help="Return once the run is started; `fedpriv deploy status` shows it.")
def resume(run_dir: Path, detach: bool) -> dict[str, Any] | None:
    """Continue a run that was stopped or killed, from its last checkpoint.

    RUN is its folder, in the deployment's folder `runs`.

    \b
    Example: fedpriv deploy resume DIR/runs/20260131-120000-mpfedcon-digits-s0-1a2b
    """
    from fedpriv.deploy.flower.needed import require_flower

    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.deploy.serving import STOP, to_resume
    from fedpriv.errors import UsageError

    if (run_dir / "server.yaml").exists():
        raise UsageError(f"{run_dir} is a deployment; name one of its runs, in {run_dir / 'runs'}")
    folder = to_resume(run_dir)
    home = DeploymentPaths.open(folder.path.parent.parent)
    settings, link = home.settings(), _link(home)
    (folder.path / STOP).unlink(missing_ok=True)  # of a run that was killed before it could stop
    request = Request.write(home.requests, folder.path, None, settings.clients, settings.answer_within)
    return _conduct(home, link, request, detach)


@command(deploy, "status")
@_DIR
def status(folder: Path) -> dict[str, Any]:
    """Show the clients of a deployment and its runs.

    \b
    Example: fedpriv deploy status DIR
    """
    from fedpriv.deploy.flower.needed import require_flower

    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.storage.run_folder import RunFolder

    home, out = DeploymentPaths.open(folder), console()
    nodes = [{"name": node.name, "status": node.status} for node in _link(home).nodes()]
    runs: dict[str, dict[str, Any]] = {}
    for path in sorted(home.runs.iterdir()):
        if (path / "config.yaml").exists():
            kept = RunFolder.open(path)
            records = kept.records()
            done = records[-1]["round"] if records else 0
            runs[path.name] = {"status": kept.status, "rounds": done, "of": kept.config().train.rounds}
    for name, request in Request.latest(home.requests).items():
        if (error := (request.ended or {}).get("error")) is not None:
            runs.setdefault(name, {"status": "failed", "rounds": 0, "of": None})["error"] = error
    for node in nodes:
        out.print(f"{node['name']:<12} {node['status']}", soft_wrap=True)
    for name, one in runs.items():
        if one["of"] is None:
            about = f"not begun: {one['error']}"
        else:  # a run goes on where a request to resume it was refused, as a second one is
            about = f"round {one['rounds']} of {one['of']}" + (f"; last request: {one['error']}" if "error" in one else "")
        out.print(f"{name}  {one['status']}, {about}", soft_wrap=True)
    return {"clients": nodes, "runs": [{"run": name, **one} for name, one in runs.items()]}


@command(deploy, "stop")
@click.argument("run_dir", metavar="RUN", type=FilePath())
def stop(run_dir: Path) -> None:
    """Stop a run after the current round; `fedpriv deploy resume` continues it.

    \b
    Example: fedpriv deploy stop DIR/runs/20260131-120000-mpfedcon-digits-s0-1a2b
    """
    from fedpriv.deploy.serving import STOP
    from fedpriv.errors import UsageError
    from fedpriv.storage.run_folder import RunFolder

    folder = RunFolder.open(run_dir)
    if "deployed" not in folder.facts:
        raise UsageError(f"{run_dir} is not a run with clients on other machines; Ctrl-C stops a simulation after its round")
    if (now := folder.status) not in ("running", "running or killed"):
        hint = f"; {folder.how_to_resume} continues it" if now == "killed" else ""
        raise UsageError(f"{run_dir} is {now}, not running{hint}")
    (folder.path / STOP).touch()
    say(f"{run_dir} stops after its round", err=True)


@contextmanager
def _new_folder(given: Path | None) -> Iterator[Path]:
    """A block with a folder: the given one, or a temporary one, which is kept after a failure, as its logs say why."""
    import shutil
    import tempfile

    from fedpriv.errors import FedprivError

    if given is not None:
        yield given
        return
    temporary, failed = Path(tempfile.mkdtemp(prefix="fedpriv-demo-")), False
    try:
        yield temporary
    except FedprivError:
        failed = True
        say(f"the files of the demo are kept in {temporary}", err=True)
        raise
    finally:
        if not failed:
            shutil.rmtree(temporary, ignore_errors=True)


def _warn_of_readable(*secrets: Path) -> None:
    from fedpriv.deploy.flower.certificates import readable_by_others

    for path in readable_by_others(*secrets):
        say(f"warning: other users of this machine may read {path}; chmod 600 {path}", err=True)


def _conduct(home: Any, link: Any, request: Any, detach: bool) -> dict[str, Any] | None:
    """Have a request played, and show the rounds of its run."""
    import os
    import time

    from fedpriv.cli.report import accuracy_of
    from fedpriv.deploy.serving import DECLARED
    from fedpriv.errors import FedprivError
    from fedpriv.storage.run_folder import RunFolder

    run_dir = request.run_dir
    records = RunFolder(run_dir).records()
    done = records[-1]["round"] if records else -1  # which a run that is resumed does not show again
    number, looked, answered = link.start(request.path), time.monotonic(), True

    def alive() -> None:
        nonlocal looked, answered
        if time.monotonic() > looked + 5:
            before, answered = answered, link.check(number)
            if before and not answered:
                say(f"warning: the server does not answer any more; `fedpriv deploy server {home.path}` starts it", err=True)
            looked = time.monotonic()

    shown = os.path.relpath(run_dir)
    if detach:
        console().print(f"started: {shown}", soft_wrap=True)
        return {"run_dir": str(run_dir)}
    _say_who_is_awaited(link, home)
    try:
        finished = request.follow(alive, _show_round, lambda text: say(f"warning: {text}", err=True), done)
    except FedprivError as error:
        if request.ended is None and (run_dir / DECLARED).exists():  # its app was ended, and can say no more
            raise FedprivError(f"{error}; `fedpriv deploy resume {shown}` goes on with the run") from None
        raise
    if not finished:
        console().print(f"Stopped. Go on with: fedpriv deploy resume {shown}", soft_wrap=True)
        sys.exit(130)
    summary = RunFolder.open(run_dir).summary()
    if summary and summary["accuracy"] is not None:
        console().print(f"{accuracy_of(summary)}: {summary['accuracy']:.3f}", soft_wrap=True)
    console().print(f"run folder: {shown}", soft_wrap=True)
    return summary


def _say_who_is_awaited(link: Any, home: Any) -> None:
    """Name the clients that are not connected, for which the beginning of a run waits."""
    import time

    from fedpriv.deploy.transport import JOIN

    away = [node.name for node in link.nodes() if node.status != "online"]
    if away:
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + JOIN))
        names = ", ".join(away[:_SHOWN]) + (", ..." if len(away) > _SHOWN else "")
        say(
            f"waiting for {len(away)} of {home.settings().clients} clients to connect, until {until} ({JOIN:g} s): {names}; "
            f"`fedpriv deploy status {home.path}` shows them",
            err=True,
        )


def _link(home: Any) -> Any:
    from fedpriv.deploy.flower.control import SuperLink
    from fedpriv.deploy.flower.machines import reachable
    from fedpriv.errors import FedprivError

    settings = home.settings()
    address = reachable(settings.listen, settings.port)
    link = SuperLink(address, home.authority)
    if not link.answers():
        raise FedprivError(f"no server answers on {address}; `fedpriv deploy server {home.path}` starts it")
    return link


def _show_round(record: dict[str, Any]) -> None:
    metrics = record["metrics"]
    parts = [f"round {record['round']}"]
    parts += [f"{name} {metrics[key]:.3f}" for name, key in (("accuracy", "accuracy"), ("loss", "train_loss")) if key in metrics]
    parts += [f"{metrics[key]:g} {key}" for key in ("missing", "refused", "dropped", "untested") if metrics.get(key)]
    parts += [f"up {metrics['bytes_up']:,} down {metrics['bytes_down']:,} bytes", f"{metrics['seconds']:.1f} s"]
    say("  ".join(parts), err=True)
