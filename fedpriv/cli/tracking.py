"""``fedpriv ui``, ``fedpriv compare`` and ``fedpriv sync``."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import command, console, png, run_folders, writable
from fedpriv.cli.terminal import FilePath, say
from fedpriv.errors import FedprivError, UsageError
from fedpriv.scores.catalogue import ACCURACY, beside
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from rich.table import Table

    from fedpriv.api.groups import Group
    from fedpriv.scores.catalogue import Score
    from fedpriv.tracking import Record

_PATH = FilePath()
_runs_dir = click.option("--runs-dir", type=_PATH, default="runs", show_default=True, help="Where the runs are.")


@command(main, "ui")
@_runs_dir
@click.option(
    "--tracking-uri", help="MLflow store to show; default: MLFLOW_TRACKING_URI, else the SQLite file in the runs folder."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True, help="Port to listen on.")
def ui(runs_dir: Path, tracking_uri: str | None, host: str, port: int) -> None:
    """Open the runs in MLflow, until Ctrl-C.

    \b
    Example: fedpriv ui --port 5001
    """
    from fedpriv.tracking import artifact_dir, create_store, default_uri, named_store, sqlite_path, tracked_in, whole_address
    from fedpriv.tracking.access import check_database

    if not runs_dir.is_dir() and tracking_uri is None:
        raise UsageError(f"there is no runs folder {runs_dir}; --runs-dir names another, `fedpriv train` makes one")
    uri = default_uri(runs_dir) if tracking_uri is None else named_store(tracking_uri)
    if uri.startswith(("http://", "https://")):
        raise UsageError(f"{uri} is a tracking server already: open it in a browser")
    arguments = ["--host", host, "--port", str(port), "--workers", "1"]
    if (store := sqlite_path(uri)) is not None:
        if not store.is_file() and any(tracked_in(file.parent) == store for file in runs_dir.glob("*/run.json")):
            say(f"creating the MLflow store {store}, which has no runs yet")
            create_store(store)  # or wait until another process has created it
        if not store.is_file():
            raise UsageError(f"no MLflow store {store}; `fedpriv train` makes one, --runs-dir or --tracking-uri name another")
        arguments += ["--artifacts-destination", str(artifact_dir(store))]
    elif uri.startswith(("postgresql", "mysql", "mssql")):
        check_database(uri)  # MLflow would show a traceback
    _check_port(host, port)
    # By default MLflow opens its pages for language-model applications.
    page = "#/experiments?workflowType=machine_learning"
    shown = "localhost" if host == "0.0.0.0" else host
    say("MLflow starts, which takes some seconds; Ctrl-C ends it")
    sys.stdout.flush()
    _announce(host, port, f"MLflow shows the runs at http://{shown}:{port}/{page}")
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # By its environment: other users see the arguments of a process, and a database's address may hold a password.
    environment = settings | dict(os.environ) | {"MLFLOW_BACKEND_STORE_URI": whole_address(uri)}
    # In place of this process, so that Ctrl-C and kill reach the server itself and leave no orphan.
    os.execve(sys.executable, [sys.executable, "-m", "mlflow", "server", *arguments], environment)


def _announce(host: str, port: int, line: str) -> None:
    """Start a process that prints a line once the server answers, and ends then, or with this process."""
    server = os.getpid()
    if os.fork():
        return
    while os.getppid() == server:
        connection = HTTPConnection(host, port, timeout=2)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == HTTPStatus.OK:
                say(line)
                sys.stdout.flush()
                break
        except (OSError, HTTPException):
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(0.2)
    os._exit(0)


def _check_port(host: str, port: int) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port just left is free
            probe.bind(address)
    except OSError as error:
        other = port + 1 if port < 65535 else 5001
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); --port {other} may be free") from None


@command(main, "sync")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every run of the runs folder, those of its sweeps, too.")
@_runs_dir
@click.option("--tracking-uri", help="Send to this MLflow store. Required if a run names a store other than yours.")
def sync_runs(runs: tuple[str, ...], every: bool, runs_dir: Path, tracking_uri: str | None) -> dict[str, Any]:
    """Send records to MLflow that it does not have yet.

    A run keeps its records while the tracking server cannot be reached. No record is sent twice.

    RUN is a run folder, a run id, or the beginning of a folder's name.

    \b
    Example: fedpriv sync --all
    """
    from fedpriv.tracking import ForeignStore, ServerAway, TrackingError, find_run, sync, target_uri
    from fedpriv.tracking.folder import SWEEPS, check_run

    if every == bool(runs):
        raise UsageError("name the runs to send, or use --all")
    if every:  # a damaged run does not keep the others back
        configs = [path for kind in ("*", f"{SWEEPS}/*/runs/*") for path in sorted(runs_dir.glob(f"{kind}/config.yaml"))]
        folders = [path.parent for path in configs if (path.parent / "run.json").exists()]
    else:
        folders = [find_run(name, runs_dir) for name in runs]
    if not folders:
        raise UsageError(f"{runs_dir} holds no runs; --runs-dir names another folder")
    away: set[str] = set()  # servers that did not answer are not tried again for other runs
    results: list[dict[str, Any]] = []
    failures: list[FedprivError] = []
    tolerated = FedprivError if every else (TrackingError, ForeignStore)
    for folder in folders:
        uri = ""
        try:
            if every:
                check_run(folder)
            uri = target_uri(folder, tracking_uri)
            if uri in away:
                continue
            report = sync(folder, tracking_uri)
        except tolerated as error:
            failures.append(error)
            console().print(f"{folder.name}: not sent: {error}", soft_wrap=True)
            if isinstance(error, ServerAway):
                away.add(uri)
            continue
        if report.uri is None:
            outcome = "the run is not tracked by MLflow; --tracking-uri sends it anyway"
        elif report.params or report.points or report.artifacts:
            outcome = f"sent {report.params} params, {report.points} points, {report.artifacts} files"
        else:
            outcome = "nothing new"
        console().print(f"{folder.name}: {outcome}", soft_wrap=True)
        results.append({"run": folder.name, "uri": report.uri, "mlflow_run_id": report.mlflow_run_id, "points": report.points,
                        "params": report.params, "artifacts": report.artifacts, "status": report.status})  # fmt: skip
    if failures:
        left = len(folders) - len(results)
        raise FedprivError(f"{failures[-1]}; {left} of {len(folders)} runs not sent, their records are kept")
    return {"runs": results}


@command(main, "compare")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@_runs_dir
@click.option("--output", type=_PATH, default="compare.png", show_default=True, callback=png, help="The plot, a PNG.")
@click.option("--against", metavar="LABEL", help="Give differences from this group. Default: from the best one.")
@click.option("--csv", type=_PATH, callback=writable, help="Write the groups as CSV: mean, deviation, paired interval, bytes.")
@click.option("--latex", type=_PATH, callback=writable, help="Write the groups as a LaTeX tabular.")
@click.option("--markdown", type=_PATH, callback=writable, help="Write the groups as a Markdown table.")
def compare(
    runs: tuple[str, ...],
    runs_dir: Path,
    output: Path,
    against: str | None,
    csv: Path | None,
    latex: Path | None,
    markdown: Path | None,
) -> dict[str, Any]:
    """Compare runs in a table and a plot.

    The plot shows the score that the runs are ranked by (eval.metric) over rounds and over bytes, and of two or more audited runs
    against leakage. Runs that are ranked by different scores are compared by accuracy. Recovered:
    the largest share that an attack of `fedpriv audit` recovered, of the samples behind a message, or of simulated clients
    with a single sample (the easiest case). AUC: that of the best membership attack.

    RUN is a run folder, a run id, or the beginning of a folder's name. Runs that differ only in the seed, or in the seed of the
    partition, are a group, with mean, standard deviation, and the paired difference from the best group. With runs of `local` or
    `pooled` among them, it says what the others gain over clients that train alone, and lose against training on all data in one
    place.

    With train.patience in one of the runs, and validation data in all, the score of a run is that of its best round.

    LABEL is that of a group, or a beginning of it that no other label has.

    \b
    Example: fedpriv compare runs/a runs/b
             fedpriv compare runs/* --against fedavg --latex table.tex
    """
    from fedpriv.api.comparability import contradictions, labels, not_comparable, repeated
    from fedpriv.api.comparing import as_row, common_score, figures, gains_between, in_best_rounds
    from fedpriv.api.gains import signed
    from fedpriv.api.groups import groups_between, reference_of
    from fedpriv.api.tables import as_csv, as_latex, as_markdown, mean_over, over_all_rounds
    from fedpriv.files import write_atomically
    from fedpriv.plots import compare_curves

    folders = run_folders(runs, runs_dir)
    at_best = in_best_rounds(folders)
    rows = [figures(folder, at_best) for folder in folders]
    named, score = labels(folders, rows), common_score(rows)
    contradicted = contradictions(named, rows)
    groups = groups_between(folders, named, at_best, against)
    reference = reference_of(groups, against)

    out = console()
    if not out.is_terminal:
        out.width = 160  # for a file, which has no width
    numbered = out.width < 104  # too narrow for names, which are printed below
    out.print(_table(rows, numbered, score))
    if any(group.averaged_rounds is not None for group in groups):
        key = "on validation data (train.patience)" if at_best else "(eval.last)"
        out.print(f"scores of a finished run: {mean_over(groups)} {key}", soft_wrap=True)
    if (short := over_all_rounds(groups)) is not None:
        out.print(short, soft_wrap=True)
    for number, (folder, row) in enumerate(zip(folders, rows, strict=True), 1):
        if (note := _note(folder, row)) is not None:
            out.print(note, soft_wrap=True)
        if numbered:
            out.print(f"{number} = {row['run']}", soft_wrap=True)
    summaries = []
    members = {group.label: [index for index, label in enumerate(named) if label == group.label] for group in groups}
    for group in groups:
        beside_it = {f"{beside(score).name}_mean": group.usual.mean, f"{beside(score).name}_std": group.usual.std}
        ranked = {f"{score.name}_mean": group.value.mean, f"{score.name}_std": group.value.std}
        difference = None if group.difference is None else asdict(group.difference)
        compared = {"from_best": difference} if against is None else {"against": group.against, "difference": difference}
        of_group = {"label": group.label, "runs": group.runs, "repeated": group.repeated}
        summaries.append(of_group | beside_it | ranked | compared)
        if (line := spread_of(group)) is not None:
            out.print(line, soft_wrap=True)
        elif group.contradicted:
            out.print(f"{group.label}: no mean, as runs with the same config and seed differ in their results", soft_wrap=True)
        elif group.repeated:
            out.print(f"{group.label}: no spread over seeds{_left_out_of(group)}", soft_wrap=True)
    for group in groups:
        if reference is None or group is reference:
            continue
        named_by = f"{group.label} against {'the best, ' if against is None else ''}{reference.label}"
        paired = group.difference
        if paired is not None and (paired.over == "runs" or against is not None):
            by = f"{signed(score, paired.mean)}{' points' if score.in_percent else ''}"
            out.print(f"{named_by}: {by} ({paired.interval(score)})", soft_wrap=True)
        elif paired is None and (group.pairs or against is not None):
            why = f"only {group.pairs or 0} of {group.counted} and {reference.counted} runs have the same seed and clients"
            out.print(f"{named_by}: no difference, as {why}", soft_wrap=True)
    gains = gains_between(folders)
    for gain in gains:
        out.print(str(gain), soft_wrap=True)
    if {row["split"] for row in rows} == {"validation"}:
        out.print("scores are on the clients' validation data (eval.split), not on their test data", soft_wrap=True)
    for why in (*contradicted.values(), *not_comparable(folders, rows)):
        say(f"warning: {why}", err=True)
    repeats = repeated(named, rows)
    distinct = {label: [index for index in own if not repeats[index]] for label, own in members.items()}
    done = {label: [index for index in own if rows[index]["status"] == "finished"] for label, own in distinct.items()}
    curves = {printable(label): [_tested(folders[index]) for index in done[label] or own] for label, own in distinct.items()}
    try:
        leaks = {printable(label): _leaks([rows[index] for index in own], score) for label, own in members.items()}
        compare_curves(curves, output, leaks, score)
        for file, written in ((csv, as_csv), (latex, as_latex), (markdown, as_markdown)):
            if file is not None:
                write_atomically(file, written(groups).encode())
                out.print(f"table: {file}", soft_wrap=True)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or output}: {error.strerror}; name another file") from None
    out.print(f"plot: {output}", soft_wrap=True)
    gained = [as_row(gain) for gain in gains]
    return {"runs": rows, "groups": summaries, "metric": score.name, "gains": gained, "plot": str(output)}


def spread_of(group: Group) -> str | None:
    """``label: 95.1% ± 0.3% over 3 seeds``; ``None``: there is no spread."""
    average, spread, score = group.value.mean, group.value.std, group.score
    if average is None or spread is None:
        return None
    what = "" if score is ACCURACY else f"{score.title} "
    return f"{group.label}: {what}{score.shown(average)} ± {score.shown(spread)} over {_count_seeds(group)}{_left_out_of(group)}"


def _table(rows: Sequence[dict[str, Any]], numbered: bool, score: Score) -> Table:
    """A line for each run; with columns on privacy if any run has a defence or was audited."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("#" if numbered else "run", overflow="fold")
    table.add_column("method", overflow="fold", min_width=6)
    table.add_column("data set", overflow="fold", min_width=6)
    # Beside another score, the accuracy (or R2) is shown too.
    usual, ends = beside(score), ("worst\n10%", "best")
    first, spread = ((), ends) if score is usual else ((score.title.replace(" ", "\n"), *ends), ())
    for name in ("seed", "rounds", *first, usual.title, *spread, "up", "down", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    private = any(row["answer"] is not None or row["defence"] != "none" for row in rows)
    if private:
        table.add_column("defence", overflow="fold", min_width=6)
        for name in ("epsilon", "recovered", "AUC"):
            table.add_column(name, justify="right", no_wrap=True)
    for number, row in enumerate(rows, 1):
        table.add_row(
            str(number) if numbered else row["run"], row["method"], Path(row["dataset"]).name, str(row["seed"]),
            f"{row['rounds']}{'' if row['status'] == 'finished' else '*'}",
            *_scores(row, score),
            _size(row["bytes_up"]), _size(row["bytes_down"]), _duration(row["seconds"]), *(_private(row) if private else ()),
        )  # fmt: skip
    return table


def _scores(row: dict[str, Any], score: Score) -> tuple[str, ...]:
    """The cells of a run's scores."""
    usual = beside(score)
    shown = usual.shown(row["scores"].get(usual.name))
    if score is usual and row["metric"] != usual.name:  # the worst and best clients are of another score
        return shown, "-", "-"
    spread = score.shown(row["worst_tenth"]), score.shown(row["best"])
    return (shown, *spread) if score is usual else (score.shown(row["score"]), *spread, shown)


def _note(folder: Path, row: dict[str, Any]) -> str | None:
    """What the numbers of a run do not show: that it is unfinished, at chance level, or has no accuracy."""
    from fedpriv.cli.report import constant_answer
    from fedpriv.storage.run_folder import RunFolder

    if row["status"] != "finished":
        hint = f"; {RunFolder(folder).how_to_resume} continues it" if row["status"] == "killed" else ""
        return f"* {row['run']}: {row['status']}, as of its last evaluation{hint}"
    if (constant := constant_answer(row)) is not None:
        return f"{row['run']}: {constant}"
    if not row["scores"]:
        outcome = ", ".join(f"{value:.1%} with {float(share):.0%} of the labels" for share, value in row["probe"].items())
        outcome = f"linear probe {outcome}" if outcome else f"see fedpriv probe {row['run']}"
        return f"{row['run']}: no accuracy, self-supervised; {outcome}"
    return None


def _count_seeds(group: Group) -> str:
    """What an accuracy is averaged over: ``3 seeds``, or runs of seeds and partitions if several runs have the same seed."""
    seeds, partitions = group.seeds, group.partitions
    text = f"{seeds} seed{'s' * (seeds > 1)}"
    return (
        text if seeds == group.counted else f"{group.counted} runs of {text} and {partitions} partition{'s' * (partitions > 1)}"
    )


def _left_out_of(group: Group) -> str:
    """How many runs of a label are left out of its summary, by reason."""
    counts = {"repeated": len(group.repeated), "unfinished": group.unfinished}
    text = ", ".join(f"{count} {why} run{'s' * (count > 1)}" for why, count in counts.items() if count)
    return f" ({text} left out)" if text else ""


def _tested(folder: Path) -> list[Record]:
    """The records of a run, without the rounds before a fine-tuning at its end, whose accuracies are not comparable."""
    from fedpriv.api.comparing import summary
    from fedpriv.tracking import read_records

    first = summary(folder).get("tested_from", 1)
    return [record for record in read_records(folder) if first == 1 or record["round"] >= first]


def _leaks(rows: Sequence[dict[str, Any]], score: Score) -> list[tuple[float, float]]:
    """(share recovered, score) of the runs that have both."""
    known = ((row["recovered"], row["scores"].get(score.name)) for row in rows)
    return [(recovered, value) for recovered, value in known if recovered is not None and value is not None]


def _private(row: dict[str, Any]) -> tuple[str, ...]:
    """The table cells on a run's defences and leakage."""
    from fedpriv.audit.formats import bound

    epsilon = "-" if row["epsilon"] is None else bound(row["epsilon"])
    if row["answer"] is None:
        return row["defence"], epsilon, "not audited", ""
    recovered = "not known" if row["recovered"] is None else f"{row['recovered']:.1%}"
    return row["defence"], epsilon, recovered, "-" if row["membership_auc"] is None else f"{row['membership_auc']:.2f}"


def _size(count: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 999.95 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s" if minutes else f"{seconds:.1f} s"
