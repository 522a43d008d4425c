"""``fedpriv compare``: runs side by side, in a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedpriv.cli import main
from fedpriv.cli.common import RUNS_DIR, command, console, png, run_folders, writable
from fedpriv.cli.terminal import FilePath, say
from fedpriv.errors import UsageError
from fedpriv.scores.catalogue import ACCURACY, beside
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from rich.table import Table

    from fedpriv.api.comparison.groups import Group
    from fedpriv.api.comparison.stored import StoredRun
    from fedpriv.scores.catalogue import Score
    from fedpriv.tracking import Record

_PATH = FilePath()


@command(main, "compare")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@RUNS_DIR
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
    from fedpriv.api.comparison.comparability import contradictions, not_comparable, repeated
    from fedpriv.api.comparison.comparing import as_row, gains_between
    from fedpriv.api.comparison.gains import signed
    from fedpriv.api.comparison.groups import groups_between, reference_of
    from fedpriv.api.comparison.side_by_side import Comparison
    from fedpriv.api.comparison.tables import as_csv, as_latex, as_markdown, mean_over, over_all_rounds
    from fedpriv.files import write_atomically
    from fedpriv.plots import compare_curves

    folders = run_folders(runs, runs_dir)
    compared = Comparison(folders)
    rows, named, score = compared.rows, compared.labels, compared.score
    contradicted = contradictions(named, rows)
    groups = groups_between(compared, against)
    reference = reference_of(groups, against)

    out = console(width=160)
    numbered = out.width < 104  # too narrow for names, which are printed below
    out.print(_table(rows, numbered, score))
    if any(group.averaged_rounds is not None for group in groups):
        key = "on validation data (train.patience)" if compared.at_best else "(eval.last)"
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
        paired = {"from_best": difference} if against is None else {"against": group.against, "difference": difference}
        of_group = {"label": group.label, "runs": group.runs, "repeated": group.repeated}
        summaries.append(of_group | beside_it | ranked | paired)
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
        gap = group.difference
        if gap is not None and (gap.over == "runs" or against is not None):
            by = f"{signed(score, gap.mean)}{' points' if score.in_percent else ''}"
            out.print(f"{named_by}: {by} ({gap.interval(score)})", soft_wrap=True)
        elif gap is None and (group.pairs or against is not None):
            why = f"only {group.pairs or 0} of {group.counted} and {reference.counted} runs have the same seed and clients"
            out.print(f"{named_by}: no difference, as {why}", soft_wrap=True)
    gains = gains_between(compared)
    for gain in gains:
        out.print(str(gain), soft_wrap=True)
    if {row["split"] for row in rows} == {"validation"}:
        out.print("scores are on the clients' validation data (eval.split), not on their test data", soft_wrap=True)
    for why in (*contradicted.values(), *not_comparable(compared.runs, rows)):
        say(f"warning: {why}", err=True)
    repeats = repeated(named, rows)
    distinct = {label: [index for index in own if not repeats[index]] for label, own in members.items()}
    done = {label: [index for index in own if rows[index]["status"] == "finished"] for label, own in distinct.items()}
    drawn = {label: [compared.runs[index] for index in done[label] or own] for label, own in distinct.items()}
    curves = {printable(label): list(map(_tested, runs_of_label)) for label, runs_of_label in drawn.items()}
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
    """A note on a run that is unfinished, at chance level, or has no accuracy, which its numbers do not show."""
    from fedpriv.cli.summary import constant_answer
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


def _tested(run: StoredRun) -> list[Record]:
    """The records of a run, without the rounds before a fine-tuning at its end, whose accuracies are not comparable."""
    first = run.summary.get("tested_from", 1)
    return [record for record in run.records if first == 1 or record["round"] >= first]


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
