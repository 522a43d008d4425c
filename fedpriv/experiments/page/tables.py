"""The tables of an experiment's section: paragraphs of a heading, a table and the text that explains it; none without results."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from itertools import pairwise

from fedpriv.experiments.by_client import AGES, by_age
from fedpriv.experiments.markdown import table
from fedpriv.experiments.measures import Comparison
from fedpriv.experiments.page.figures import by_seed, in_bytes, percent
from fedpriv.experiments.paired import WINDOW

_TARGET = """Target: {levels}. Reached: the first evaluated round at which the mean over the evaluations of the last {window}
rounds is at least the target of the same seed. Where fewer rounds are evaluated, that mean is a single evaluation, and the round
is known to within the distance of two evaluations. Ratios are means over the seeds at which both runs reach it (geometric ones in
the claims). *Rounds saved* is the paper's traffic saving, as if a round cost every method the same; *bytes* are those counted,
both ways, round 0 included."""
_COST = """Counted on the wire, mean over seeds; *down* includes round 0, the broadcast of the initial model. Seconds are no
benchmark: machines and their load varied."""
_AGES = """Percent, measured after the last round; the number of clients over all seeds is in brackets. Columns: rounds since the
client last took part. Its personal layers are that old, while the shared model it is tested with is current."""
_TRACES = """Mean over all rounds and seeds (lowest to highest round). Values for single tensors are in the result files only."""


def others(comparison: Comparison) -> list[str]:
    """Which results are other experiments'."""
    told = ", ".join(f"{name} ({other})" for name, other in sorted(comparison.others.items()))
    return [f"Taken from other experiments of this folder, whose runs have the same config: {told}."] if told else []


def probe(comparison: Comparison) -> list[str]:
    """The accuracy of linear classifiers, and which runs have no accuracy at all."""
    silent = [row.label for row in comparison.methods if row.mean is None and not row.probe]
    none = [f"No accuracy: {', '.join(silent)} (self-supervised, and not probed)."] if silent else []
    if not (rows := [row for row in comparison.methods if row.probe]):
        return none
    shares = sorted({share for row in rows for share in row.probe}, key=float, reverse=True)
    cells = [
        (row.label, *(by_seed({seed: percent(value) for seed, value in row.probe.get(share, {}).items()}) for share in shares))
        for row in rows
    ]
    head = " | ".join(["method", *(f"{100 * float(share):g} % of the labels, each seed" for share in shares)])
    text = "Percent. Accuracy on all test images of a linear classifier on the frozen encoder after the last round."
    return ["### Linear probe", table(head, cells), text, *none]


def accuracy(comparison: Comparison) -> list[str]:
    """The clients' accuracy by method."""
    if not (rows := [row for row in comparison.methods if row.mean is not None]):
        return []
    best, last = max(row.mean or 0.0 for row in rows), max(row.averaged_rounds for row in rows)
    fresh = any(row.fresh_head is not None for row in rows)
    before = any(row.before_merge is not None for row in rows)
    cells = [
        (
            row.label + (" ¹" if row.averaged_rounds < last else ""),
            f"**{percent(row.mean)}**" if row.mean == best else percent(row.mean),
            "–" if row.sd is None else f"{100 * row.sd:.2f}",
            by_seed({seed: percent(value) for seed, value in row.accuracy.items()}),
            percent(row.worst_tenth),
            *([percent(row.fresh_head)] if fresh else []),
            percent(row.global_accuracy),
            *([percent(row.before_merge), percent(row.global_before_merge)] if before else []),
            by_seed({seed: str(count) for seed, count in row.never_trained.items()}),
        )
        for row in rows
    ]
    texts = [
        f"Percent. Accuracy: mean over all clients and over the last {last} rounds. Worst tenth: of the clients. A client "
        "that was never sampled is tested with its initial head, if its head is personal."
    ]
    if any(row.averaged_rounds < last for row in rows):
        texts.append("¹ Fine-tuned and tested after the last round only, so its accuracy is of that round alone.")
    if fresh:
        texts.append(
            "Fresh heads: after the last round, with each client's head trained further on the present encoder, in place of a "
            "method's own fine-tuning."
        )
    if before:
        texts.append(
            "Models sent: those of a round's clients, before they are merged, each on its client's own test data and on the "
            "server's test set; means over the clients and the same rounds."
        )
    columns = ["method", "accuracy", "sd over seeds", "each seed", "worst tenth", *(["fresh heads"] if fresh else [])]
    columns += [
        "global model, server's test set",
        *(["models sent, own test data", "models sent, server's test set"] if before else []),
    ]
    head = " | ".join([*columns, "clients never trained"])
    return ["### Accuracy", table(head, cells), *texts]


def cost(comparison: Comparison) -> list[str]:
    """Bytes and seconds by method."""
    cells = []
    for row in comparison.methods:
        traffic = [in_bytes(value) for value in (row.bytes_up, row.bytes_down, row.bytes_round_zero, row.bytes_per_round)]
        cells.append((row.label, row.rounds, *traffic, in_bytes(row.bytes_per_upload, 3), f"{row.seconds:.0f}"))
    head = "method | rounds | up | down | of it round 0 | per round, both ways | one upload | seconds"
    return ["### Cost", table(head, cells), _COST] if cells else []


def to_target(comparison: Comparison) -> list[str]:
    """Rounds and bytes until the target's accuracy, by method."""
    if not comparison.to_target:
        return []
    cells = []
    for row in comparison.to_target:
        reached = [count for count in row.bytes.values() if count is not None]
        rounds = by_seed({seed: "not reached" if number is None else str(number) for seed, number in row.rounds.items()})
        cells.append(
            (
                row.label,
                "tested after the last round only" if row.tested_at_end else rounds,
                "–" if row.speed_up is None else f"{row.speed_up:.2f}×",
                "–" if row.rounds_saved is None else f"{100 * row.rounds_saved:.1f} %",
                "–" if not reached else in_bytes(statistics.fmean(reached)),
                "–" if row.bytes_saved is None else f"{100 * row.bytes_saved:.1f} %",
            )
        )
    targets = comparison.results[comparison.experiment.target or ""]
    levels = ", ".join(f"{percent(targets[seed].summary['accuracy'])} (seed {seed})" for seed in sorted(targets))
    head = "method | rounds, each seed | speed-up in rounds | rounds saved | bytes until then | bytes saved"
    heading = f"### Until the final accuracy of {comparison.experiment.target} is reached"
    return [heading, table(head, cells), _TARGET.format(levels=levels, window=WINDOW)]


def ages(comparison: Comparison) -> list[str]:
    """Accuracy by the rounds since a client's last turn, by method."""
    if not (aged := by_age(comparison.results)):
        return []
    spans = [f"{first} to {following - 1}" for first, following in pairwise(AGES)] + [f"{AGES[-1]} and more"]
    cells = [
        (label, *(f"{percent(mean)} ({count})" if count else "–" for count, mean in groups)) for label, groups in aged.items()
    ]
    head = " | ".join(["method", *(f"{span} rounds" for span in spans)])
    return ["### Accuracy by the age of a client's last turn", table(head, cells), _AGES]


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
    heading = "### What the merges and the clients reported"
    return [heading, table(" | ".join(["reported", *labels]), cells), _TRACES] if cells else []


def _range(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "–"


def provenance(comparison: Comparison) -> list[str]:
    """With what the results were made."""
    if not (results := [result for of_label in comparison.results.values() for result in of_label.values()]):
        return []
    versions = sorted({", ".join(f"{name} {version}" for name, version in result.versions.items()) for result in results})
    commits = sorted({re.sub(r"^(\w{12})\w*", r"\1", result.git_commit or "not recorded") for result in results})
    partitions = sorted({(result.seed, result.partition_hash[:12]) for result in results})
    devices = sorted({f"{result.device} ({result.processor})" if result.processor else result.device for result in results})
    return [
        f"Run with {'; '.join(versions)}; commit {', '.join(commits)}; device {', '.join(devices)}; "
        f"partitions {', '.join(f'{digest} (seed {seed})' for seed, digest in partitions)}."
    ]
