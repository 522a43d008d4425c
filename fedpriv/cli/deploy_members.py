"""``fedpriv deploy status``, ``add-client`` and ``remove-client``: the clients of a deployment, and its runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fedpriv.cli.common import command, console
from fedpriv.cli.deploy import DIR, deploy, link_of, require_flower
from fedpriv.cli.terminal import say

_NAME = click.argument("name", metavar="NAME")
REFRESH = 2.0
"""Seconds between two looks of ``status --watch``."""


@command(deploy, "status")
@DIR
@click.option("--watch", is_flag=True, help="Show it again every 2 s, until Ctrl-C.")
def status(folder: Path, watch: bool) -> dict[str, Any]:
    """Show the clients of a deployment and its runs.

    \b
    Example: fedpriv deploy status DIR --watch
    """
    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.errors import FedprivError

    paths, out = DeploymentPaths.open(folder), console()
    if not watch:
        shown = _state(paths)
        for line in _lines(shown):
            out.print(line, soft_wrap=True)
        return shown
    while True:
        try:
            lines = [*_lines(_state(paths))]
        except FedprivError as error:  # the server is away
            lines = [str(error)]
        out.clear()
        for line in [f"{paths.path}  {time.strftime('%H:%M:%S')}", *lines]:
            out.print(line, soft_wrap=True)
        time.sleep(REFRESH)


@command(deploy, "add-client")
@DIR
@_NAME
def add(folder: Path, name: str) -> dict[str, Any]:
    """Add a client to a deployment, with a new key, while its server runs or not.

    Runs that have begun keep their clients; the next one may choose it.

    \b
    Example: fedpriv deploy add-client DIR hospital-b
    """
    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths, add_client
    from fedpriv.deploy.operation.journal import note

    paths = DeploymentPaths.open(folder)
    link = _running_link(paths)
    member = add_client(paths, name)
    note(paths.journal, "add-client", name)
    if link is not None:
        link.register(member.node, paths.public_key(member.number))
    file, own = paths.client_file(member.number), paths.public_key(member.number).parent
    out = console()
    out.print(f"{name} is client {member.number}: copy {file} and {own}/, then remove {own / 'key'} here", soft_wrap=True)
    if link is None:
        say("no server runs; it admits the client at its start", err=True)
    for run in _running(paths):
        say(f"{run} has begun with its clients and goes on without {name}; the next run may choose it", err=True)
    return {"name": name, "number": member.number, "file": str(file)}


@command(deploy, "remove-client")
@DIR
@_NAME
def remove(folder: Path, name: str) -> dict[str, Any]:
    """Remove a client from a deployment: its key is refused at once, and runs go on without it.

    \b
    Example: fedpriv deploy remove-client DIR hospital-b
    """
    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.operation.journal import note

    paths = DeploymentPaths.open(folder)
    member, link = paths.members.named(name), _running_link(paths)
    note(paths.journal, "remove-client", member.name)
    paths.members.remove(member)
    if link is not None:
        link.unregister(member.node)
    console().print(f"{member.name} (client {member.number}) is removed; its key is refused from now on", soft_wrap=True)
    for run in _running(paths):
        say(f"{run} goes on without it", err=True)
    return {"name": member.name, "number": member.number}


def _running_link(paths: Any) -> Any:
    """The operator's access to the server; ``None`` if none runs, which then reads the clients at its start."""
    from fedpriv.errors import FedprivError, UsageError

    try:
        return link_of(paths)
    except UsageError:
        raise
    except FedprivError:
        return None


def _running(paths: Any) -> list[str]:
    """The names of the runs that have begun and not ended."""
    return [name for name, run in _runs(paths).items() if run["status"].startswith("running")]


def _state(paths: Any) -> dict[str, Any]:
    names = {member.node: member.name for member in paths.members.present()}
    clients = [
        {"name": names.get(node.name, node.name), "node": node.name, "status": node.status} for node in link_of(paths).nodes()
    ]
    return {"clients": clients, "runs": [{"run": name, **run} for name, run in _runs(paths).items()]}


def _runs(paths: Any) -> dict[str, dict[str, Any]]:
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.storage.run_folder import RunFolder

    runs: dict[str, dict[str, Any]] = {}
    for path in sorted(paths.runs.iterdir()):
        if (path / "config.yaml").exists():
            run_folder = RunFolder.open(path)
            records = run_folder.records()
            done = records[-1]["round"] if records else 0
            runs[path.name] = {"status": run_folder.status, "rounds": done, "of": run_folder.config().train.rounds}
    for name, request in Request.latest(paths.requests).items():
        if (error := (request.ended or {}).get("error")) is not None:
            runs.setdefault(name, {"status": "failed", "rounds": 0, "of": None})["error"] = error
    return runs


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    for node in shown["clients"]:
        of = "" if node["name"] == node["node"] else f"  {node['node']}"
        yield f"{node['name']:<12} {node['status']}{of}"
    for run in shown["runs"]:
        if run["of"] is None:
            progress = f"not begun: {run['error']}"
        else:  # the error is that of another request for the run, such as a second one to resume it
            progress = f"round {run['rounds']} of {run['of']}" + (f"; last request: {run['error']}" if "error" in run else "")
        yield f"{run['run']}  {run['status']}, {progress}"
