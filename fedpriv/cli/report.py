"""Console output of a run: progress, and a short summary at its end."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.audit.formats import bound
from fedpriv.cli.common import run_folders
from fedpriv.cli.terminal import styled, terminal
from fedpriv.errors import FedprivError
from fedpriv.scores.catalogue import ACCURACY, SCORES, Score, beside, score_named
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from fedpriv.audit.results.epsilon import Canaries
    from fedpriv.config import RunConfig
    from fedpriv.simulation.run import Outcome
    from fedpriv.simulation.setup import Federation
    from fedpriv.storage.run_folder import RunFolder


NO_ACCURACY = "none: self-supervised, see fedpriv probe {run}"


class Bold(NamedTuple):
    """A value of the summary with a part in bold."""

    before: str
    bold: str
    after: str = ""


Row = tuple[str, str | Bold]
"""A line of the summary: label and value."""
LONG = 2.0
"""Seconds of a round after which its clients get a progress bar."""


class Reporter:
    """Shows progress on standard error (bars on a terminal, else a line a round), and the summary on ``out``."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self.err: Console = terminal(err=True)
        columns = (
            TextColumn("{task.fields[what]:<7}", markup=False),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
        )
        self._bar = Progress(*columns, console=self.err, disable=not self.err.is_terminal)
        self._rounds = 0
        self._durations: list[float] = []
        self._score, self._metric = "", ACCURACY
        self._began = 0.0
        """Start of the round, on the progress bar's clock."""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def warn(self, text: str) -> None:
        self.err.print(styled(("fedpriv:", "yellow"), f" {text}"), soft_wrap=True)

    def on_start(self, federation: Federation, folder: RunFolder) -> None:
        config, data = federation.config, federation.data
        sizes = sorted(data.size(client) for client in range(config.data.clients))
        trained = sum(entry.stop - entry.start for entry in federation.resident.space.entries if entry.kind != "buffer")
        model = f"{config.model.name} ({trained:,} trainable parameters)"
        partition = f"partition {config.data.partition.name} ({data.partition.hash()[:12]})"
        self.err.print(
            styled(
                (config.called, "bold"),
                f" on {config.data.name}: {config.data.clients} clients of "
                f"{_samples(sizes[0], sizes[-1])}{_left_out(federation)}, {partition}, {model}, seed {config.seed}; "
                + (f"clients are run {federation.choice}" if federation.pooled is None else "all training samples in one place"),
            ),
            soft_wrap=True,
        )
        self._metric = score_named(config.eval.metric or ACCURACY.name)
        labels = federation.method.objective.labels
        self._score = f"no {self._metric.title} yet" if labels else f"no {self._metric.title} (self-supervised)"
        self.begin(config.train.rounds, folder.records()[-1]["round"] if folder.records() else 0)

    def begin(self, rounds: int, done: int) -> None:
        """Show the progress bar of a run, of whose rounds some are done."""
        self._rounds = rounds
        self._task = self._bar.add_task(self._score, total=rounds, completed=done, what="round")
        self._clients = self._bar.add_task("", total=None, visible=False, what="clients")
        self._began = self._bar.get_time()

    def on_answer(self, number: int, of: int) -> None:
        """Show how many of a round's clients have answered, where the round takes long."""
        shown = self._bar.get_time() - self._began > LONG
        self._bar.update(self._clients, completed=number, total=of, visible=shown and number < of)

    def on_round(self, record: dict[str, Any]) -> None:
        metrics = record["metrics"]
        parts = []
        if self._metric.name in metrics:
            self._score = f"{self._metric.title} {plain(self._metric, metrics[self._metric.name])}"
        elif "probe/1" in metrics:
            self._score = f"probe {metrics['probe/1']:.3f}"
        parts.append(self._score)
        if "train_loss" in metrics:
            parts.append(f"loss {metrics['train_loss']:.3f}")
        if "epsilon" in metrics:
            parts.append(f"epsilon {bound(metrics['epsilon'])}")
        parts.append(f"up {decimal(metrics['total_bytes_up'])}, down {decimal(metrics['total_bytes_down'])}")
        text = "  ".join(parts)
        self._bar.update(self._task, completed=record["round"], description=text)
        self._bar.reset(self._clients, visible=False)
        self._began = self._bar.get_time()
        if self._bar.disable:
            self._durations.append(metrics["seconds"])
            left = (self._rounds - record["round"]) * mean(self._durations)
            self.err.print(
                f"round {record['round']}/{self._rounds}  {text}  left {timedelta(seconds=round(left))}", soft_wrap=True
            )

    def conclude(self, outcome: Outcome, measured: Canaries | None = None) -> None:
        """Print the summary, or how to resume the run.

        Args:
            measured: results of the run's canaries.
        """
        path = os.path.relpath(outcome.folder.path)
        if outcome.summary is None:
            self.out.print(f"Stopped after round {outcome.rounds_done}. Resume with: fedpriv resume {path}", soft_wrap=True)
            return
        summary, records = outcome.summary, outcome.folder.records()
        rows = [*_results(summary, records, path), *_costs(summary, records), *self._privacy(summary.get("privacy"))]
        if measured is not None:
            from fedpriv.audit.sentences.epsilon import canaries

            rows += [("  measured", sentence) for sentence in canaries(measured)]
        rows += [*_rounds(summary, records), ("run folder", path), ("tracking", self._tracking(outcome))]
        width = max(len(label) for label, _ in rows)
        for label, text in rows:
            value = (text.before, (text.bold, "bold"), text.after) if isinstance(text, Bold) else (text,)
            self.out.print(styled(f"{label:<{width}}  ", *value), soft_wrap=True)
        self.out.print("\nNext: " + "\n      ".join(_next_commands(outcome.folder, summary)), soft_wrap=True)

    @staticmethod
    def _privacy(statement: dict[str, Any] | None) -> list[Row]:
        if statement is None:
            return []
        prv = f"{bound(statement['epsilon_prv'])} by PRV" if statement["epsilon_prv"] is not None else "too large for PRV"
        how = f"{bound(statement['epsilon_rdp'])} by RDP, {prv}; noise {statement['noise']:.3g}, clip {statement['clip']:g}"
        replaced = f"{bound(statement['epsilon_replace_one'])} for replace-one neighbours"
        return [
            (
                f"{statement['level']}-level DP",
                Bold("epsilon ", bound(statement["epsilon"]), f" at delta {statement['delta']:g} ({how})"),
            ),
            *(
                []
                if (share := statement.get("statistics_epsilon")) is None
                else [("  statistics", f"epsilon {bound(share)} of it")]
            ),
            ("  neighbours", f"{statement['adjacency']}; epsilon {replaced}"),
            ("  holds if", statement["holds_if"]),
            ("  randomness", statement["randomness"]),
            ("  not covered", "; ".join(statement["not_covered"])),
        ]

    @staticmethod
    def _tracking(outcome: Outcome) -> str:
        from fedpriv.tracking import tracker_of

        folder = outcome.folder
        if (tracker := tracker_of(folder.path, folder.facts["tracking"])) is None:
            return "off"
        rest = {True: "", False: f" (incomplete: {tracker.later})", None: " (the rest is on its way)"}
        return tracker.place + rest[outcome.tracked]


def _results(summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: str) -> Iterator[Row]:
    """Accuracies."""
    protocols = summary["protocols"]
    metric = score_named(summary["metric"])
    if not is_scored(summary):
        yield beside(metric).title, "none: no client was tested" if records[-1].get("untested") else NO_ACCURACY.format(run=path)
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


def _next_commands(run: RunFolder, summary: Mapping[str, Any]) -> Iterator[str]:
    """Commands that a user may want next."""
    config, folder = run.config(), run.path.parent
    path, beside = shlex.quote(os.path.relpath(run.path)), shlex.quote(os.path.relpath(folder))
    options = "" if _is_default(config) else f" --config {path}/config.yaml"
    for method, why in _other_methods(run, config):
        yield f"fedpriv train --method {method}{options}   {why}"
    if summary["payloads"]["files"]:
        yield f"fedpriv audit {path}   what its messages reveal"
    yield f"fedpriv compare {beside}/*" if _only_runs(folder) else f"fedpriv compare {path} OTHER_RUN"
    if not is_scored(summary):
        yield f"fedpriv probe {path}"
    if (command := _ui(run.facts["tracking"], folder, beside)) is not None:
        yield command


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


def _samples(smallest: int, largest: int) -> str:
    """The range of the clients' numbers of samples."""
    return f"{smallest}-{largest} samples" if smallest < largest else f"{largest} sample{'s' * (largest != 1)}"


def _left_out(federation: Federation) -> str:
    """A note on the partition: clients without images, images that no client holds."""
    import numpy as np

    partition, images = federation.data.partition, len(federation.dataset.train_labels)
    assigned_to = [*partition.train, *partition.validation, *(partition.test if partition.test_split == "train" else ())]
    assigned = len(np.unique(np.concatenate(assigned_to)))
    notes = []
    if empty := federation.config.data.clients - len(federation.data.nonempty):
        notes.append(f"{empty} of them without any")
    if assigned < images:
        notes.append(f"{images - assigned:,} of {images:,} images assigned to no client")
    return f" ({', '.join(notes)})" if notes else ""


def _other_methods(run: RunFolder, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Methods to compare with under the same config, with their options, and why; none where it depends on what a mask hides."""
    from fedpriv.data.preprocessing.stored import Preprocessing

    if any(transform["name"] == "mask" for transform in config.wire.transforms):
        return
    if config.method.name != "fedavg":
        yield "fedavg", "the same clients, another method"  # a composed run's objective and aggregation belong to its method
    elif Preprocessing.load(run.preprocessing_file).kind == "rows":
        steps, epochs = config.train.local_steps, config.train.local_epochs  # with steps, the baselines train as many
        as_long = "" if steps is not None else f" --set method.epochs={epochs}"
        yield f"local{as_long}", "what each client reaches alone"
        if config.privacy.level == "none":
            yield f"pooled{as_long}", "all rows in one place: the bound of every federation"
    else:  # MpFedcon's centres are of classes, and no noise covers them
        numbers = score_named(config.eval.metric or ACCURACY.name).of_numbers
        yield "fedrep" if numbers or config.privacy.level != "none" else "mpfedcon", "the same clients, another method"


def _ui(tracking: Mapping[str, Any], folder: Path, beside: str) -> str | None:
    """The command that shows a run of that folder in MLflow; ``None``: its store is none that ``fedpriv ui`` opens."""
    from fedpriv.tracking import default_uri

    uri = tracking["uri"]
    if tracking["name"] != "mlflow" or uri == "none" or uri.startswith("http"):
        return None
    if uri == default_uri(folder):
        return f"fedpriv ui{'' if beside == 'runs' else f' --runs-dir {beside}'}"
    return f"fedpriv ui --tracking-uri {shlex.quote(uri)}"


def _only_runs(folder: Path) -> bool:
    """Whether ``fedpriv compare`` takes all that a shell's ``*`` names in a folder."""
    try:
        run_folders(tuple(str(path) for path in folder.iterdir() if not path.name.startswith(".")), folder)
    except FedprivError:  # no run, or a damaged one
        return False
    return True


def _is_default(config: RunConfig) -> bool:
    """Whether the config is the default except for the method, so that ``fedpriv train`` without options has the same clients."""
    default = type(config)()
    partition = config.data.partition.model_copy(update={"seed": None})
    same_data = config.data.model_copy(update={"partition": partition}) == default.data
    return (
        same_data and config.eval == default.eval and config.seed == default.seed and config.train.rounds == default.train.rounds
    )
