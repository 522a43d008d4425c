"""Console output of a run: progress, and a short summary at its end."""

from __future__ import annotations

import os
from datetime import timedelta
from statistics import mean
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.audit.formats import bound
from fedpriv.cli.summary import Bold, plain, rows
from fedpriv.cli.terminal import styled, terminal
from fedpriv.scores.catalogue import ACCURACY, score_named

if TYPE_CHECKING:
    from fedpriv.audit.results.epsilon import Canaries
    from fedpriv.simulation.run import Outcome
    from fedpriv.simulation.setup import Federation
    from fedpriv.storage.run_folder import RunFolder

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
        """Show the progress bar of a run.

        Args:
            done: rounds that a resumed run has done.
        """
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
        from fedpriv.cli.next_commands import next_commands

        path = os.path.relpath(outcome.folder.path)
        if outcome.summary is None:
            self.out.print(f"Stopped after round {outcome.rounds_done}. Resume with: fedpriv resume {path}", soft_wrap=True)
            return
        lines = [*rows(outcome.summary, outcome.folder.records(), path, measured)]
        lines += [("run folder", path), ("tracking", self._tracking(outcome))]
        width = max(len(label) for label, _ in lines)
        for label, text in lines:
            value = (text.before, (text.bold, "bold"), text.after) if isinstance(text, Bold) else (text,)
            self.out.print(styled(f"{label:<{width}}  ", *value), soft_wrap=True)
        self.out.print("\nNext: " + "\n      ".join(next_commands(outcome.folder, outcome.summary)), soft_wrap=True)

    @staticmethod
    def _tracking(outcome: Outcome) -> str:
        from fedpriv.tracking import tracker_of

        folder = outcome.folder
        if (tracker := tracker_of(folder.path, folder.facts["tracking"])) is None:
            return "off"
        rest = {True: "", False: f" (incomplete: {tracker.later})", None: " (the rest is on its way)"}
        return tracker.place + rest[outcome.tracked]


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
