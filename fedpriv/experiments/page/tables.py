"""The tables of an experiment's section: paragraphs of a heading, a table and the text that explains it; none without results."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from itertools import pairwise

from fedpriv.experiments.by_client import AGES, by_age
from fedpriv.experiments.markdown import by_seed, in_bytes, name_seeds, percent, table
from fedpriv.experiments.measures import Comparison, MethodRow
from fedpriv.experiments.paired import window
from fedpriv.scores.catalogue import ACCURACY

_TARGET = """Target: {levels}. Reached: the first evaluated round at which the mean over the evaluations of the last {window}
is at least the target of the same seed. If fewer rounds are evaluated, that mean is a single evaluation, and the round is
known only up to the distance between evaluations. Ratios and bytes are means over a method's seeds (geometric ones in the
claims), with a dash if it does not reach the target on every seed. *Rounds saved* is the paper's traffic saving, as if a
round cost every method the same; *bytes* are counted, in both directions, with round 0."""
_COST = """Bytes are counted; mean over the seeds of which they were. *Down* includes round 0, the broadcast of the initial
model. *One client's answer* is its upload and its report. Seconds are not a benchmark: machines and their load varied."""
_AGES = """Percent, measured after the last round; in brackets the number of clients, over the seeds that recorded their local
updates. A client's personal layers are from the round in which it last took part, while the shared model it is tested with is
current."""
_TRACES = """Mean over all rounds and seeds (lowest to highest round). Values for single tensors are in the result files only."""


def others(comparison: Comparison) -> list[str]:
    """Which results are other experiments'."""
    names = ", ".join(f"{name} ({other})" for name, other in sorted(comparison.others.items()))
    return [f"Taken from other experiments of this folder, whose runs have the same config: {names}."] if names else []


def probe(comparison: Comparison) -> list[str]:
    """The accuracy of linear classifiers, and which runs have no accuracy at all."""
    silent = [row.label for row in comparison.methods if not row.ranked and not row.probe]
    none = [f"No accuracy: {', '.join(silent)} (self-supervised, and not probed)."] if silent else []
    if not (rows := [row for row in comparison.methods if row.probe]):
        return none
    shares = sorted({share for row in rows for share in row.probe}, key=float, reverse=True)
    seeds = {share: sorted({seed for row in rows for seed in row.probe.get(share, {})}) for share in shares}

    def cell(row: MethodRow, share: str) -> str:
        return by_seed({seed: percent(value) for seed, value in row.probe.get(share, {}).items()}, seeds[share])

    cells = [(row.label, *(cell(row, share) for share in shares)) for row in rows]
    head = " | ".join(["method", *(f"{100 * float(share):g} % of the labels, {name_seeds(seeds[share])}" for share in shares)])
    text = "Percent. Accuracy on all test images of a linear classifier on the frozen encoder after the last round."
    return ["### Linear probe", table(head, cells), text, *none]


def accuracy(comparison: Comparison) -> list[str]:
    """The clients' accuracy by method, and the score that the runs are ranked by, if that is another one."""
    if not (rows := [row for row in comparison.methods if row.ranked]):
        return []
    last = max(row.averaged_rounds for row in rows)
    diverged = {seed for row in rows for seed in comparison.diverged[row.label]}
    seeds = sorted(diverged | {seed for row in rows for seed in row.never_trained})
    splits = {row.split for row in rows}
    score = rows[0].score if len({row.score for row in rows}) == 1 else ACCURACY
    of_all = {row.label: row.ranked if row.score is score else row.accuracy for row in rows}
    means = {label: statistics.fmean(values.values()) for label, values in of_all.items() if values}
    comparable = [row for row in rows if of_all[row.label].keys() == {*seeds} and len(splits) == 1]
    best = None
    if comparable and (len(comparable) > 1 or len(rows) == 1):
        best = max((means[row.label] for row in comparable), key=score.merit)

    def marked(row: MethodRow, text: str) -> str:
        return f"**{text}**" if row in comparable and means[row.label] == best else text

    fresh = any(row.fresh_head is not None for row in rows)
    before = any(row.before_merge is not None for row in rows)
    cells = [
        (
            row.label + _mark(row, last) + (f" ({row.split})" if len(splits) > 1 else ""),
            *([marked(row, score.shown(means.get(row.label)))] if score is not ACCURACY else []),
            marked(row, percent(row.mean)) if score is ACCURACY else percent(row.mean),
            "–" if row.sd is None else f"{100 * row.sd:.2f}",
            by_seed(
                dict.fromkeys(comparison.diverged[row.label], "diverged")
                | {seed: percent(value) for seed, value in row.accuracy.items()},
                seeds,
            ),
            percent(row.worst_tenth),
            *([percent(row.fresh_head)] if fresh else []),
            percent(row.global_accuracy),
            *([percent(row.before_merge), percent(row.global_before_merge)] if before else []),
            by_seed({seed: str(count) for seed, count in row.never_trained.items()}, seeds),
        )
        for row in rows
    ]
    rounds = f"the last {last} rounds" if last > 1 else "the last round"
    texts = [
        f"Percent. Accuracy: mean over all clients, each on its own {' or '.join(sorted(splits))} data, and over {rounds}. "
        "Worst tenth: the 10 % of the clients with the lowest accuracy. A client that never took part is tested with its initial "
        "head, if its head is personal."
    ]
    if len(comparable) < len(rows):
        texts.append(
            "Bold: the best of those that have every seed."
            if best is not None
            else "None is bold: they have other seeds, or are scored on other data."
        )
    texts += _footnotes(rows, last)
    if lost := [f"{row.label} {n} of {of} (seed {seed})" for row in rows for seed, (n, of) in sorted(row.dropped.items())]:
        texts.append(f"Local trainings that diverged, and were left out: {', '.join(lost)}.")
    if fresh:
        texts.append(
            "Fresh heads: after the last round, with each client's head trained further on the current encoder, instead of a "
            "method's own fine-tuning."
        )
    if before:
        texts.append(
            "Models sent: those of a round's clients, before they are merged, each on its client's own test data and on the "
            "server's test set; means over the clients and the same rounds."
        )
    measured = f"{next(iter(splits))} accuracy" if len(splits) == 1 else "accuracy"
    columns = [
        "method",
        *([score.title] if score is not ACCURACY else []),
        measured,
        "sd over seeds",
        name_seeds(seeds),
        "worst tenth",
        *(["fresh heads"] if fresh else []),
    ]
    columns += [
        "global model, server's test set",
        *(["models sent, own test data", "models sent, server's test set"] if before else []),
    ]
    head = " | ".join([*columns, "clients that never took part"])
    return ["### Accuracy" + " on validation data" * (splits == {"validation"}), table(head, cells), *texts]


def _mark(row: MethodRow, last: int) -> str:
    if row.averaged_rounds == last:
        return ""
    return " ¹" if row.tested_at_end else " ²"


def _footnotes(rows: Sequence[MethodRow], last: int) -> list[str]:
    """What the marks of rows say, whose accuracy is a mean over fewer rounds than that of others."""
    marks = {_mark(row, last) for row in rows}
    fewer = ", ".join(f"{row.averaged_rounds} ({row.label})" for row in rows if _mark(row, last) == " ²")
    notes = {
        " ¹": "¹ Fine-tuned and tested after the last round only, so its accuracy is of that round alone.",
        " ²": f"² Mean over fewer of the last rounds: {fewer}.",
    }
    return [note for mark, note in notes.items() if mark in marks]


def cost(comparison: Comparison) -> list[str]:
    """Bytes and seconds by method."""
    cells = []
    for row in comparison.methods:
        traffic = [in_bytes(value) for value in (row.bytes_up, row.bytes_down, row.bytes_round_zero, row.bytes_per_round)]
        cells.append((row.label, row.rounds, *traffic, in_bytes(row.bytes_per_upload, 3), f"{row.seconds:.0f}"))
    head = "method | rounds | up | down | of it round 0 | per round, both ways | one client's answer | seconds"
    return ["### Cost", table(head, cells), _COST] if cells else []


def to_target(comparison: Comparison) -> list[str]:
    """Rounds and bytes until the target's accuracy, by method."""
    if not comparison.to_target:
        return []
    targets = comparison.results[comparison.experiment.target or ""]
    seeds, cells = sorted(targets), []
    for row in comparison.to_target:
        rounds = by_seed({seed: "not reached" if number is None else str(number) for seed, number in row.rounds.items()}, seeds)
        cells.append(
            (
                row.label,
                "tested after the last round only" if row.tested_at_end else rounds,
                "–" if row.speed_up is None else f"{row.speed_up:.2f}×",
                "–" if row.rounds_saved is None else f"{100 * row.rounds_saved:z.1f} %",
                "–" if row.mean_bytes is None else in_bytes(row.mean_bytes),
                "–" if row.bytes_saved is None else f"{100 * row.bytes_saved:z.1f} %",
            )
        )
    levels = ", ".join(f"{percent(targets[seed].summary['accuracy'])} (seed {seed})" for seed in seeds)
    smoothed = max(window(run) for run in targets.values())
    over = f"{smoothed} rounds" if smoothed > 1 else "round"
    head = f"method | rounds, {name_seeds(seeds)} | speed-up in rounds | rounds saved | bytes until then | bytes saved"
    heading = f"### Until the final accuracy of {comparison.experiment.target} is reached"
    return [heading, table(head, cells), _TARGET.format(levels=levels, window=over)]


def ages(comparison: Comparison) -> list[str]:
    """Accuracy by the rounds since a client's last local update, by method; nothing where all clients are of one span."""
    aged = by_age(comparison.results)
    if len({span for groups in aged.values() for span, (count, _) in enumerate(groups) if count}) < 2:
        return []
    spans = [f"{first} to {following - 1}" for first, following in pairwise(AGES)] + [f"{AGES[-1]} and more"]
    cells = [
        (label, *(f"{percent(mean)} ({count})" if count else "–" for count, mean in groups)) for label, groups in aged.items()
    ]
    head = " | ".join(["method", *(f"{span} rounds" for span in spans)])
    return ["### Accuracy by the rounds since a client last took part", table(head, cells), _AGES]


def traces(comparison: Comparison) -> list[str]:
    """A row for each number that was reported, a column for each method that reported any."""
    seen: dict[str, dict[str, list[float]]] = {}
    for label, of_label in comparison.results.items():
        for result in of_label.values():
            for name, column in result.traces.items():
                if name.count("/") == 1:
                    seen.setdefault(name, {}).setdefault(label, []).extend(value for value in column if value is not None)
    labels = [label for label in comparison.results if any(label in of_name for of_name in seen.values())]
    cells = [(name, *(_range(of_name.get(label, [])) for label in labels)) for name, of_name in seen.items()]
    heading = "### What server and clients reported"
    return [heading, table(" | ".join(["reported", *labels]), cells), _TRACES] if cells else []


def _range(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "–"


def provenance(comparison: Comparison) -> list[str]:
    """With what the results were made."""
    if not (results := [result for of_label in comparison.results.values() for result in of_label.values()]):
        return []
    versions = sorted({", ".join(f"{name} {version}" for name, version in result.versions.items()) for result in results})
    named = {result.git_commit or "not recorded" for result in results}
    named |= {part["git_commit"] for result in results for part in result.continued if "git_commit" in part}
    commits = sorted({re.sub(r"^(\w{12})\w*", r"\1", commit) for commit in named})
    partitions = sorted({(result.seed, result.partition_hash[:12]) for result in results})
    devices = sorted({f"{result.device} ({result.processor})" if result.processor else result.device for result in results})
    return [
        f"Run with {'; '.join(versions)}; commit {', '.join(commits)}; device {', '.join(devices)}; "
        f"partitions {', '.join(f'{digest} (seed {seed})' for seed, digest in partitions)}."
    ]
