"""The summary of a finished run, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.filesize import decimal

from fedpriv.audit.formats import bound
from fedpriv.scores.catalogue import ACCURACY, SCORES, Score, beside, score_named
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from fedpriv.audit.results.epsilon import Canaries


class Bold(NamedTuple):
    """A value of the summary with a part in bold."""

    before: str
    bold: str
    after: str = ""


Row = tuple[str, str | Bold]
"""A line of the summary: label and value."""


def rows(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: str, measured: Canaries | None) -> Iterator[Row]:
    """The lines of a finished run.

    Args:
        records: of its rounds.
        path: of its folder, for the commands that lines name.
        measured: results of its canaries.
    """
    yield from _results(summary, records, path)
    yield from _costs(summary, records)
    yield from _privacy(summary.get("privacy"))
    if measured is not None:
        from fedpriv.audit.sentences.epsilon import canaries

        yield from (("  measured", sentence) for sentence in canaries(measured))
    yield from _rounds(summary, records)


def _results(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: str) -> Iterator[Row]:
    """Accuracies."""
    protocols = summary["protocols"]
    metric = score_named(summary["metric"])
    if not is_scored(summary):
        why = "no client was tested" if records[-1].get("untested") else f"self-supervised, see fedpriv probe {path}"
        yield beside(metric).title, f"none: {why}"
        if (loss := records[-1]["metrics"].get("train_loss")) is not None:
            yield "training loss in the last round", f"{loss:.4g}"
    else:
        yield from ranked(summary)
        if (constants := summary.get("constant")) is not None:
            what = "the mean of the training labels" if metric.of_numbers else "the most frequent class"
            shown = {**constants, **({ACCURACY.name: summary["chance"]} if "chance" in summary else {})}
            scores = [score for score in dict.fromkeys([metric, beside(metric)]) if score.name in shown]
            yield f"  always {what}", "   ".join(f"{plain(score, shown[score.name])} {score.title}" for score in scores)
        if (constant := constant_answer(summary)) is not None:
            yield "  at chance level" if summary.get("at_chance") else "  one answer only", Bold("", constant)
        further = {
            SCORES.get(name, Score(name, name)): score["mean"]
            for name, score in summary["scores"].items()
            if name not in (beside(metric).name, metric.name)
        }
        if parts := [f"{plain(score, value)} {score.title}" for score, value in further.items() if value is not None]:
            yield "  further scores, means", "   ".join(parts)
        tested = next(score["per_client"] for score in summary["scores"].values())
        if left_out := tested.count(None):
            yield "clients that were not tested, left out", f"{left_out} of {len(tested)}"
    for share, accuracy in summary.get("probe", {}).items():
        yield f"linear probe, {float(share):.0%} of the labels", Bold("", f"{accuracy:.3f}")
    read = dict.fromkeys([metric, beside(metric)]) if metric.of_numbers else ()
    on_server = [(score, summary["scores"].get(score.name, {}).get("on_server")) for score in read]
    if parts := [f"{plain(score, value)} {score.title}" for score, value in on_server if value is not None]:
        yield "global model on the server's test set", "   ".join(parts)
    if protocols["global_test"] is not None:
        accuracy, macro_f1 = protocols["global_test"], protocols["global_test_f1"]
        yield "global model on the server's test set", f"{accuracy:.3f} accuracy   {macro_f1:.3f} macro F1"


def ranked(summary: Mapping[str, Any]) -> Iterator[Row]:
    """The score that the run is ranked by, and below it the accuracy or R2 if that is another one."""
    for score in dict.fromkeys([first := score_named(summary["metric"]), beside(first)]):
        values = summary["scores"].get(score.name)
        if values is None or values["mean"] is None:
            yield score.title, "not defined on any client's test samples"
            continue
        mean, worst, best = (plain(score, values[key]) for key in ("mean", "worst_tenth", "best"))
        rest = f" mean   {worst} worst tenth   {best} best"
        if score is first:
            yield measured_on(summary, score.title), Bold("", mean, rest)
        else:
            yield score.title, f"{mean}{rest}"


def is_scored(summary: Mapping[str, Any]) -> bool:
    """Whether clients were tested with the models of a run."""
    return any(score["mean"] is not None for score in summary["scores"].values())


def plain(score: Score, value: float) -> str:
    """A value of a score, also a share, as a plain number."""
    return score.shown(value) if score.of_numbers else f"{value:.3f}"


def _costs(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Traffic, and local updates that were left out."""
    initial = records[0]["metrics"]["bytes_down"]
    broadcast = f" (of which {decimal(initial)} the initial model)" if initial else ""
    yield "traffic", f"{decimal(summary['bytes_up'])} up, {decimal(summary['bytes_down'])} down{broadcast}"
    if snr := summary.get("snr_db"):
        yield "signal-to-noise ratio of the change", ", ".join(f"{layer} {value:.1f} dB" for layer, value in snr.items())
    if dropped := summary["local_updates_dropped"]:
        yield "diverged local trainings, left out", Bold("", f"{dropped} of {summary['local_updates']}")
    if untrained := summary["local_updates_untrained"]:
        yield "local trainings without a step, left out", Bold("", f"{untrained} of {summary['local_updates']}")
    if missing := summary.get("answers_missing"):
        yield "answers that came late or never, left out", Bold("", f"{missing} of {summary['local_updates']}")
    if summary["answers_refused"]:
        yield "refused answers, left out", Bold("", f"{summary['answers_refused']}")


def _privacy(statement: Mapping[str, Any] | None) -> Iterator[Row]:
    """The guarantee of differential privacy, and what it does not cover."""
    if statement is None:
        return
    prv = f"{bound(statement['epsilon_prv'])} by PRV" if statement["epsilon_prv"] is not None else "too large for PRV"
    how = f"{bound(statement['epsilon_rdp'])} by RDP, {prv}; noise {statement['noise']:.3g}, clip {statement['clip']:g}"
    epsilon = Bold("epsilon ", bound(statement["epsilon"]), f" at delta {statement['delta']:g} ({how})")
    yield f"{statement['level']}-level DP", epsilon
    if (share := statement.get("statistics_epsilon")) is not None:
        yield "  statistics", f"epsilon {bound(share)} of it"
    replaced = f"{bound(statement['epsilon_replace_one'])} for replace-one neighbours"
    yield "  neighbours", f"{statement['adjacency']}; epsilon {replaced}"
    yield "  holds if", statement["holds_if"]
    yield "  randomness", statement["randomness"]
    yield "  not covered", "; ".join(statement["not_covered"])


def _rounds(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Participation, time, and messages that were kept."""
    if summary["clients_never_trained"]:
        included = f", whose {score_named(summary['metric']).title} is in the mean" if is_scored(summary) else ""
        lost = any(record["metrics"].keys() & {"too_few_uploads", "not_finite"} for record in records)
        how = " (a round without effect counts as none)" if lost else ""
        yield "clients that never took part", f"{summary['clients_never_trained']}{how}{included}"
    if (best := summary.get("best")) is not None:
        score = score_named(best["metric"])
        yield (
            "best round on validation data",
            f"{best['round']} of {summary['rounds']}: {plain(score, best['score'])} {score.title}",
        )
    if (by := summary.get("ended_by")) is not None:
        yield "ended early", f"after round {summary['rounds']}, by {'train.patience' if by == 'patience' else 'a callback'}"
    yield "time", f"{summary['seconds']:.1f} s for {summary['rounds']} round{'s' * (summary['rounds'] != 1)}"
    if (payloads := summary["payloads"])["files"]:
        size = f"{decimal(payloads['bytes'])} in {payloads['files']} files"
        yield "messages kept", f"{size} (payloads/; set with --keep-payloads)"


def constant_answer(summary: Mapping[str, Any]) -> str | None:
    """A note that the model predicts one class for all samples, or is no better than such a model; ``None``: it is better."""
    only = summary.get("only_answer")
    if only is not None:
        return f"the model predicts {printable(only)} for every test sample"
    score = score_named(summary.get("metric", ACCURACY.name))
    guessed = summary.get("chance") if score is ACCURACY else (summary.get("constant") or {}).get(score.name)
    if not summary.get("at_chance") or guessed is None:
        return None
    return f"within its 95 % interval, the {score.title} is no better than a constant answer's ({score.shown(guessed)})"


def measured_on(summary: Mapping[str, Any], title: str = ACCURACY.title) -> str:
    """What a score of a summary is measured on, and after which rounds."""
    what = f"validation {title}" if summary["split"] == "validation" else title
    last = summary["averaged_rounds"]
    return f"{what} per client, {f'mean of the last {last} rounds' if last > 1 else 'after the last round'}"
