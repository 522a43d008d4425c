"""The comparison with the paper, as Markdown and pictures."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from fedpriv import plots
from fedpriv.errors import UsageError
from fedpriv.experiments import leaks
from fedpriv.experiments.by_client import AGES, by_age, gains
from fedpriv.experiments.claims import MIN_SEEDS, Judgement
from fedpriv.experiments.leakage.comparison import LeakageComparison
from fedpriv.experiments.leakage.pictures import draw
from fedpriv.experiments.leakage.render import section as leakage_section
from fedpriv.experiments.leakage.spec import describes_cells, read_leakage
from fedpriv.experiments.markdown import bullets, table
from fedpriv.experiments.measures import Comparison, MethodRow
from fedpriv.experiments.overview import anchor, overview, place
from fedpriv.experiments.paired import PAIRED, WINDOW
from fedpriv.experiments.results import Result
from fedpriv.experiments.spec import BEST_BASELINE, Claim, Experiment, read
from fedpriv.files import write_atomically

_RULE = """A claim is *reproduced* only if the mean difference over at least 3 seeds has the claimed sign and size and its paired
95 % interval excludes 0; *not reproduced* if that interval falls short of the claim, or every seed does and by more than the
seeds differ from each other; else *inconclusive*. All of it holds for the setting of these runs alone, which is not quite the
paper's: see what differs."""
_TARGET = """Target: {levels}. Reached: the first evaluated round at which the mean over the evaluations of the last {window}
rounds is at least the target of the same seed. Where only every fifth round is evaluated, that mean is a single evaluation, and
the round is known to within 5. Ratios are means over the seeds at which both runs reach it. *Rounds saved* is the paper's traffic
saving, as if a round cost every method the same; *bytes* are those counted, both ways, round 0 included."""
_COST = """Counted on the wire, mean over seeds; *down* includes round 0, the broadcast of the initial model. Seconds are no
benchmark: machines and their load varied."""
_AGES = """Percent; in brackets the number of clients, of all seeds. After the last round, by the number of rounds since a
client's last turn: its private part is that old, while the model that it is tested with is new."""
_GAINS = """The box has the middle half of the clients, of all seeds; the whiskers go from the 5th to the 95th percentile; dots
are the others. Each client is compared with itself: same seed, same data."""
_TRACES = """Mean over all rounds and seeds (least to greatest round); tensor by tensor in the results only."""
_WHAT = {
    "accuracy": "",
    "worst_tenth": " in the worst tenth",
    "fresh_head": " with fresh heads",
    "global_accuracy": " (global model)",
    "early_accuracy": " in the first quarter of the rounds",
    "test_loss_roughness": " (standard deviation of the changes of the test loss, second half)",
    "upload_bytes": ", one upload",
    "probe": " (linear probe)",
}
_WHAT_OF_TWO = {
    "clients_better": "of the clients better off with {} than with {}",
    "speed_up": "fewer rounds of {} to the final accuracy of {}",
    "bytes_saved": "of the bytes saved by {} to the final accuracy of {}",
}


_NAMED = 6  # missing runs that a report lists


def report(path: Path, output: Path | None = None) -> dict[str, Any]:
    """Render one experiment (a YAML) or all of a folder, with the pictures in ``results/``.

    Args:
        output: the Markdown to write; by default ``REPORT.md`` in the folder, or ``results/<stem>.md`` for a single YAML.

    Returns:
        what the report says, as data; ``report`` and, by experiment, ``plot`` and ``gains_plot`` are the files written.

    Raises:
        UsageError: there is no YAML, or one is not valid.
    """
    if path.is_dir():
        files = sorted(path.glob("*.yaml"), key=place)
        if not files:
            raise UsageError(f"no experiment (*.yaml) in {path}")
        output, name = output or path / "REPORT.md", path.absolute().name
    else:
        files, output, name = [path], output or path.parent / "results" / f"{path.stem}.md", path.stem
    parts = [
        f"# {name}: our runs beside the paper",
        "Written by `fedpriv experiment report`; edit the YAML, not this file.",
        _RULE,
    ]
    data, done, waiting = [], [], []
    for file in files:
        record, section = (_of_cells if describes_cells(file) else _of_runs)(file, output.parent)
        data.append(record)
        if len(section) > 1:
            done += [anchor(record), *section]
        else:
            waiting += section
    parts += [*(overview(data) if len(data) > 1 else []), *done]
    if waiting:
        parts += ["## Not run yet", bullets(waiting)]
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, ("\n\n".join(parts) + "\n").encode())
    return {"experiments": data, "report": str(output)}


def _of_runs(file: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """An experiment as data, and as a section of a report in ``folder``."""
    comparison = Comparison.of(read(file))
    pictures = {"plot": _draw(comparison), "gains_plot": _draw_gains(comparison)}
    data = {**comparison.as_data(), **{name: path and str(path) for name, path in pictures.items()}}
    return data, _section(comparison, {name: os.path.relpath(path, folder) for name, path in pictures.items() if path})


def _of_cells(file: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """A leakage experiment as data, and as a section of a report in ``folder``."""
    leakage = LeakageComparison.of(read_leakage(file))
    pictures = draw(leakage.cells, file.parent / "results", file.stem)
    data = {**leakage.as_data(), "plot": [str(path) for path in pictures.values()]}
    return data, leakage_section(leakage, [(what, os.path.relpath(path, folder)) for what, path in pictures.items()])


def _draw(comparison: Comparison) -> Path | None:
    results, file = comparison.results, comparison.experiment.path
    runs = {label: [of_label[seed].records() for seed in sorted(of_label)] for label, of_label in results.items() if of_label}
    if not runs:
        return None
    if not any(record["metrics"]["accuracy"] is not None for of_label in runs.values() for seed in of_label for record in seed):
        return None  # self-supervised: there is no accuracy to draw
    path = file.parent / "results" / f"{file.stem}.png"
    plots.compare_curves(runs, path)
    return path


def _draw_gains(comparison: Comparison) -> Path | None:
    if (found := gains(comparison.results)) is None:
        return None
    file = comparison.experiment.path
    path = file.parent / "results" / f"{file.stem}-gains.png"
    plots.client_gains(found.of, found.alone, path)
    return path


def _section(comparison: Comparison, pictures: Mapping[str, str]) -> list[str]:
    """A section of the report.

    Args:
        pictures: ``plot`` and ``gains_plot``, as the report links them, as far as they were drawn.
    """
    experiment, missing = comparison.experiment, comparison.missing
    total = len(experiment.select())
    claims = f"{len(experiment.claims)} claim{'s' * (len(experiment.claims) != 1)}"
    if not comparison.begun and not comparison.complaints:
        return [f"{experiment.title}: {total} runs, {claims} and what differs, in `{experiment.path.name}`."]
    parts = [f"## {experiment.title}"]
    if missing:
        named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
        parts.append(f"**Unfinished**: {total - len(missing)} of {total} runs are done. Missing: {named}.")
    parts += [f"**Attention**: {complaint}." for complaint in comparison.complaints]
    if comparison.others:
        parts.append(_others(comparison))
    if comparison.methods:
        parts += _accuracy([row for row in comparison.methods if row.mean is not None])
        parts += _probe([row for row in comparison.methods if row.probe])
        if silent := [row.label for row in comparison.methods if row.mean is None and not row.probe]:
            parts.append(f"No accuracy: {', '.join(silent)} (self-supervised, and not probed).")
        parts += ["### Cost", _cost(comparison.methods), _COST]
    parts += leaks.section(comparison.results)
    if comparison.to_target:
        parts += [f"### Until the final accuracy of {experiment.target} is reached", *_to_target(comparison)]
    if "plot" in pictures:
        parts.append(f"![accuracy by round and by bytes]({pictures['plot']})")
    if "gains_plot" in pictures:
        parts += ["### What each client gains over training alone", f"![gains by client]({pictures['gains_plot']})", _GAINS]
    if aged := by_age(comparison.results):
        parts += ["### Accuracy by the age of a client's last turn", _ages(aged), _AGES]
    if traces := _traces(comparison.results):
        parts += ["### What the merges and the clients reported", traces, _TRACES]
    if comparison.judgements:
        rows = [_claim(judgement, experiment) for judgement in comparison.judgements]
        head = "claim | the paper, or what we hold against it | ours | each seed | 95 % interval | verdict"
        parts += ["### What the paper says", table(head, rows)]
        if len(experiment.seeds) < MIN_SEEDS:
            parts.append(
                f"{len(experiment.seeds)} seeds are too few to call a difference reproduced; only what is counted can be."
            )
    if experiment.meaning:
        parts += ["### What that means", bullets(experiment.meaning)]
    if experiment.notes:
        parts += ["### What differs from the paper", bullets(experiment.notes)]
    if comparison.methods:
        parts.append(_provenance([result for of_label in comparison.results.values() for result in of_label.values()]))
    return parts


def _others(comparison: Comparison) -> str:
    """What is said of results that are other experiments'."""
    runs: dict[str, list[str]] = {}
    for name, other in comparison.others.items():
        runs.setdefault(other, []).append(name)
    told = "; ".join(f"{', '.join(names)} of `{other}.yaml`" for other, names in sorted(runs.items()))
    return f"Runs of the same config in other experiments of this folder: {told}."


def _probe(rows: Sequence[MethodRow]) -> list[str]:
    if not rows:
        return []
    shares = sorted({share for row in rows for share in row.probe}, key=float, reverse=True)
    cells = [
        (row.label, *(_by_seed({seed: _percent(value) for seed, value in row.probe.get(share, {}).items()}) for share in shares))
        for row in rows
    ]
    head = " | ".join(["method", *(f"{100 * float(share):g} % of the labels, each seed" for share in shares)])
    text = "Percent. Accuracy on all test images of a linear classifier on the frozen encoder after the last round."
    return ["### Linear probe", table(head, cells), text]


def _accuracy(rows: Sequence[MethodRow]) -> list[str]:
    if not rows:
        return []
    best, last = max(row.mean or 0.0 for row in rows), max(row.averaged_rounds for row in rows)
    fresh = any(row.fresh_head is not None for row in rows)
    cells = [
        (
            row.label + (" ¹" if row.averaged_rounds < last else ""),
            f"**{_percent(row.mean)}**" if row.mean == best else _percent(row.mean),
            "–" if row.sd is None else f"{100 * row.sd:.2f}",
            _by_seed({seed: _percent(value) for seed, value in row.accuracy.items()}),
            _percent(row.worst_tenth),
            *([_percent(row.fresh_head)] if fresh else []),
            _percent(row.global_accuracy),
            _by_seed({seed: str(count) for seed, count in row.never_trained.items()}),
        )
        for row in rows
    ]
    texts = [
        f"Percent. Accuracy: mean over all clients and over the last {last} rounds. Worst tenth: of the clients. A client "
        "that was never sampled is tested with the initial head, where it has one of its own."
    ]
    if any(row.averaged_rounds < last for row in rows):
        texts.append("¹ Tested as it is meant after the last round only, so that round alone counts.")
    if fresh:
        texts.append("Fresh heads: after the last round, with each client's head trained further on the present encoder.")
    columns = ["method", "accuracy", "sd over seeds", "each seed", "worst tenth", *(["fresh heads"] if fresh else [])]
    head = " | ".join([*columns, "global model, server's test set", "clients never trained"])
    return ["### Accuracy", table(head, cells), *texts]


def _cost(rows: Sequence[MethodRow]) -> str:
    cells = []
    for row in rows:
        traffic = [_bytes(value) for value in (row.bytes_up, row.bytes_down, row.bytes_round_zero, row.bytes_per_round)]
        cells.append((row.label, row.rounds, *traffic, _bytes(row.bytes_per_upload, 3), f"{row.seconds:.0f}"))
    return table("method | rounds | up | down | of it round 0 | per round, both ways | one upload | seconds", cells)


def _to_target(comparison: Comparison) -> list[str]:
    cells = []
    for row in comparison.to_target:
        reached = [count for count in row.bytes.values() if count is not None]
        rounds = _by_seed({seed: "not reached" if number is None else str(number) for seed, number in row.rounds.items()})
        cells.append(
            (
                row.label,
                "tested after the last round only" if row.tested_at_end else rounds,
                "–" if row.speed_up is None else f"{row.speed_up:.2f}×",
                "–" if row.rounds_saved is None else f"{100 * row.rounds_saved:.1f} %",
                "–" if not reached else _bytes(statistics.fmean(reached)),
                "–" if row.bytes_saved is None else f"{100 * row.bytes_saved:.1f} %",
            )
        )
    targets = comparison.results[comparison.experiment.target or ""]
    levels = ", ".join(f"{_percent(targets[seed].summary['accuracy'])} (seed {seed})" for seed in sorted(targets))
    head = "method | rounds, each seed | speed-up in rounds | rounds saved | bytes until then | bytes saved"
    return [table(head, cells), _TARGET.format(levels=levels, window=WINDOW)]


def _ages(aged: Mapping[str, Sequence[tuple[int, float | None]]]) -> str:
    spans = [f"{first} to {following - 1}" for first, following in pairwise(AGES)] + [f"{AGES[-1]} and more"]
    cells = [
        (label, *(f"{_percent(mean)} ({count})" if count else "–" for count, mean in groups)) for label, groups in aged.items()
    ]
    return table(" | ".join(["method", *(f"{span} rounds" for span in spans)]), cells)


def _traces(results: Mapping[str, Mapping[int, Result]]) -> str:
    """A row for each reported number, a column for each run that reported any; empty where none did."""
    seen: dict[str, dict[str, list[float]]] = {}
    for label, of_label in results.items():
        for result in of_label.values():
            for name, column in result.traces.items():
                if name.count("/") == 1:
                    seen.setdefault(name, {}).setdefault(label, []).extend(value for value in column if value is not None)
    labels = [label for label in results if any(label in of_name for of_name in seen.values())]
    cells = [(name, *(_range(of_name.get(label, [])) for label in labels)) for name, of_name in seen.items()]
    return table(" | ".join(["reported", *labels]), cells) if cells else ""


def _range(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "–"


def _claim(judgement: Judgement, experiment: Experiment) -> tuple[str, ...]:
    claim = judgement.claim
    names = [judgement.opponent or "the best other method" if label == BEST_BASELINE else label for label in claim.labels]
    if claim.metric in _WHAT_OF_TWO:
        unit = _WHAT_OF_TWO[claim.metric].format(*names)
    else:
        best = f", the best other of {len(experiment.configs) - 1}" if judgement.opponent else ""
        unit = " − ".join(names) + best + _WHAT[claim.metric]
    low_high = judgement.interval and ", ".join(_number(claim, bound) for bound in judgement.interval)
    return (
        claim.id,
        " ".join(claim.statement.split()),
        f"– ({unit})" if judgement.mean is None else f"**{_number(claim, judgement.mean)}** {unit}",
        _by_seed({seed: _number(claim, value) for seed, value in judgement.values.items()}),
        f"[{low_high}]" if low_high else "–",
        str(judgement.verdict),
    )


def _number(claim: Claim, value: float) -> str:
    if claim.metric == "upload_bytes":
        return _bytes(value, 3) if value >= 0 else f"-{_bytes(-value, 3)}"
    if claim.metric == "test_loss_roughness":
        return f"{value:+.4f} nats"
    if claim.metric == "speed_up":
        return f"{value:.2f}×"
    if claim.metric in PAIRED or claim.of:
        return f"{100 * value:.1f} %"
    return f"{100 * value:+.2f}"


def _provenance(results: Sequence[Result]) -> str:
    versions = sorted({", ".join(f"{name} {version}" for name, version in result.versions.items()) for result in results})
    commits = sorted({re.sub(r"^(\w{12})\w*", r"\1", result.git_commit or "not recorded") for result in results})
    partitions = sorted({(result.seed, result.partition_hash[:12]) for result in results})
    devices = sorted({result.device for result in results})
    return (
        f"Run with {'; '.join(versions)}; commit {', '.join(commits)}; device {', '.join(devices)}; "
        f"partitions {', '.join(f'{digest} (seed {seed})' for seed, digest in partitions)}."
    )


def _by_seed(values: Mapping[int, str]) -> str:
    return ", ".join(values[seed] for seed in sorted(values)) or "–"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _bytes(value: float, precision: int = 1) -> str:
    return "0" if not value else str(decimal(round(value), precision=precision))
