"""``fedpriv deploy demo``, ``run``, ``resume`` and ``stop``: runs with the clients of a deployment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedpriv.cli.common import command, console
from fedpriv.cli.deploy import DIR, deploy, link_of, require_flower
from fedpriv.cli.options import config_from, config_options
from fedpriv.cli.terminal import FilePath, say
from fedpriv.untrusted.names import first_few

_SHOWN = 5


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
    require_flower()
    from fedpriv.deploy.flower.demo import demo as play
    from fedpriv.errors import UsageError

    defaults = ("executor.name=sequential", "tracking.uri=none", "train.participation=1")
    given = (*defaults, f"data.clients={clients}", f"train.rounds={rounds}", *assignments)
    config = config_from(None, given, {"method": method})
    if config.data.clients != clients:
        raise UsageError("--set data.clients: use --clients")
    if config.privacy.level == "sample":
        raise UsageError("privacy.level sample: a demo compares with a simulation, and clients draw their noise from secrets")
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; --dir names a new folder")
    with _new_folder(folder) as place:
        results = play(config, place, lambda text: say(text, err=True), _show_rounds)
    out = console()
    if folder is None:
        results.pop("run_dir")
    for name, value in results.items():
        out.print(f"{name:<16} {value}", soft_wrap=True)
    if not results["equal"]:
        why = "; defences that draw random numbers do so from the clients' secrets" if config.wire.transforms else ""
        say(f"fedpriv: the deployed run and the simulation differ{why}", err=True)
        if click.get_current_context().meta.get("fedpriv.json"):
            import json

            click.echo(json.dumps(results))
        sys.exit(1)
    return results


@command(deploy, "run")
@DIR
@click.option("--detach", is_flag=True, help="Return once the run is started; `fedpriv deploy status` shows it.")
@config_options()
def run(
    folder: Path, detach: bool, config_file: Path | None, assignments: tuple[str, ...], **flags: Any
) -> dict[str, Any] | None:
    """Start a run with the clients of a deployment, and show its rounds.

    Its folder is in DIR/runs. Ctrl-C stops the display, not the run; `fedpriv deploy stop` stops the run.

    \b
    Example: fedpriv deploy run DIR --config run.yaml
    """
    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.deploy.operation.journal import note
    from fedpriv.errors import UsageError
    from fedpriv.storage.run_folder import RunFolder, default_name

    paths = DeploymentPaths.open(folder)
    settings, clients = paths.settings(), len(paths.members.all())
    config = config_from(config_file, assignments, flags)
    if config.data.clients != clients:
        if "clients" in config.data.model_fields_set:
            raise UsageError(
                f"data.clients {config.data.clients}: the deployment has numbered {clients} (`fedpriv deploy add-client`)"
            )
        config = config.with_values("data", clients=clients)
    names_data = "name" in config.data.model_fields_set  # else the clients' own, or the default
    run_dir = (config.run_dir or paths.runs / default_name(config, names_data)).absolute()
    RunFolder(run_dir).check_new()  # before any client is asked
    if run_dir.resolve().parent != paths.runs.resolve():
        raise UsageError(f"--run-dir {config.run_dir}: the runs of a deployment must be in {paths.runs}, for `deploy resume`")
    link = link_of(paths)  # before the request is written, so that none is left if no server answers
    if config.train.max_update_norm is None and not config.wire.secure_aggregation:
        say(
            "note: train.max_update_norm is not set: an upload of any finite size is merged, and one can spoil the model",
            err=True,
        )
    request = Request.write(paths.requests, run_dir, config, clients, settings.answer_within)
    note(paths.journal, "run", run_dir.name)
    return _follow(paths, link, request, detach)


@command(deploy, "resume")
@click.argument("run_dir", metavar="RUN", type=FilePath())
@click.option("--detach", is_flag=True, help="Return once the run is started; `fedpriv deploy status` shows it.")
def resume(run_dir: Path, detach: bool) -> dict[str, Any] | None:
    """Continue a run that was stopped or killed, from its last checkpoint.

    RUN is its folder, in the deployment's folder `runs`.

    \b
    Example: fedpriv deploy resume DIR/runs/20260131-120000-mpfedcon-digits-s0-1a2b
    """
    require_flower()
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.flower.requests import Request
    from fedpriv.deploy.operation.journal import note
    from fedpriv.deploy.server_run import STOP, open_to_resume
    from fedpriv.errors import UsageError

    if (run_dir / "server.yaml").exists():
        raise UsageError(f"{run_dir} is a deployment; name one of its runs, in {run_dir / 'runs'}")
    folder = open_to_resume(run_dir)
    paths = DeploymentPaths.open(folder.path.parent.parent)
    settings, link = paths.settings(), link_of(paths)
    (folder.path / STOP).unlink(missing_ok=True)  # left by a kill
    note(paths.journal, "resume", folder.path.name)
    request = Request.write(paths.requests, folder.path, None, folder.config().data.clients, settings.answer_within)
    return _follow(paths, link, request, detach)


@command(deploy, "stop")
@click.argument("run_dir", metavar="RUN", type=FilePath())
def stop(run_dir: Path) -> None:
    """Stop a run after the current round; `fedpriv deploy resume` continues it.

    \b
    Example: fedpriv deploy stop DIR/runs/20260131-120000-mpfedcon-digits-s0-1a2b
    """
    from fedpriv.deploy.flower.paths import DeploymentPaths
    from fedpriv.deploy.operation.journal import note
    from fedpriv.deploy.server_run import STOP
    from fedpriv.errors import UsageError
    from fedpriv.storage.run_folder import RunFolder

    folder = RunFolder.open(run_dir)
    if "deployed" not in folder.facts:
        raise UsageError(f"{run_dir} is not a run with clients on other machines; Ctrl-C stops a simulation after its round")
    if (now := folder.status) not in ("running", "running or killed"):
        hint = f"; {folder.how_to_resume} continues it" if now == "killed" else ""
        raise UsageError(f"{run_dir} is {now}, not running{hint}")
    note(DeploymentPaths.open(folder.path.absolute().parent.parent).journal, "stop", folder.path.name)
    (folder.path / STOP).touch()
    say(f"{run_dir} stops after its round", err=True)


@contextmanager
def _new_folder(given: Path | None) -> Iterator[Path]:
    """A block with a folder: the given one, or a temporary one, which is kept after a failure for its logs."""
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


def _follow(paths: Any, link: Any, request: Any, detach: bool) -> dict[str, Any] | None:
    """Start the run of a request, and show its rounds; the summary."""
    import os
    import time

    from fedpriv.cli.summary import is_scored, ranked
    from fedpriv.deploy.server_run import DECLARED
    from fedpriv.errors import FedprivError
    from fedpriv.storage.run_folder import RunFolder

    run_dir = request.run_dir
    records = RunFolder(run_dir).records()
    done = records[-1]["round"] if records else -1  # rounds that a resumed run does not show again
    number, checked, answers = link.start(request.path), time.monotonic(), True

    def check_alive() -> None:
        nonlocal checked, answers
        if time.monotonic() > checked + 5:
            before, answers = answers, link.check(number)
            if before and not answers:
                say(f"warning: the server does not answer any more; `fedpriv deploy server {paths.path}` starts it", err=True)
            if answers and not before:
                say("the server answers again", err=True)
            checked = time.monotonic()

    shown = os.path.relpath(run_dir)
    if detach:
        console().print(f"started: {shown}", soft_wrap=True)
        return {"run_dir": str(run_dir)}
    _show_absent(link, paths)
    try:
        finished = request.follow(check_alive, _show_rounds(run_dir), lambda text: say(f"warning: {text}", err=True), done)
    except FedprivError as error:
        if request.ended is None and (run_dir / DECLARED).exists():  # its app was killed
            raise FedprivError(f"{error}; `fedpriv deploy resume {shown}` continues the run") from None
        raise
    if not finished:
        console().print(f"Stopped. Continue with: fedpriv deploy resume {shown}", soft_wrap=True)
        sys.exit(130)
    summary = RunFolder.open(run_dir).summary()
    if summary and is_scored(summary):
        for label, value in ranked(summary):
            console().print(f"{label}: {value if isinstance(value, str) else ''.join(value)}", soft_wrap=True)
    console().print(f"run folder: {shown}", soft_wrap=True)
    return summary


def _show_absent(link: Any, paths: Any) -> None:
    """Name the clients that are not connected; the start of a run waits for them."""
    import time

    from fedpriv.deploy.transport import JOIN

    nodes = link.nodes()
    away = [node.name for node in nodes if node.status != "online"]
    if away:
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + JOIN))
        names = first_few(away, _SHOWN)
        say(
            f"waiting for {len(away)} of {len(nodes)} clients to connect, until {until} ({JOIN:g} s): {names}; "
            f"`fedpriv deploy status {paths.path}` shows them",
            err=True,
        )


def _show_rounds(run_dir: Path) -> Callable[[dict[str, Any]], None]:
    """Shows the rounds of a run, with the score that it is ranked by."""
    from functools import cache

    from fedpriv.cli.summary import plain
    from fedpriv.scores.catalogue import ACCURACY, Score, score_named
    from fedpriv.storage.run_folder import RunFolder

    @cache
    def ranked_by() -> Score:  # once there is a round, there is a config
        return score_named(RunFolder(run_dir).config().eval.metric or ACCURACY.name)

    def show(record: dict[str, Any]) -> None:
        metrics, score = record["metrics"], ranked_by()
        parts = [f"round {record['round']}"]
        parts += [f"{score.title} {plain(score, metrics[score.name])}"] if score.name in metrics else []
        parts += [f"loss {metrics['train_loss']:.3f}"] if "train_loss" in metrics else []
        parts += [f"{metrics[key]:g} {key}" for key in ("missing", "refused", "dropped", "untested") if metrics.get(key)]
        parts += [f"up {metrics['bytes_up']:,} down {metrics['bytes_down']:,} bytes", f"{metrics['seconds']:.1f} s"]
        say("  ".join(parts), err=True)

    return show
