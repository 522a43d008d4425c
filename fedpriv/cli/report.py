"""Console output of a run: progress, and a short summary at its end."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
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
from fedpriv.untrusted.names import printable

if TYPE_CHECKING:
    from fedpriv.audit.results import Canaries
    from fedpriv.config import RunConfig
    from fedpriv.simulation.run import Outcome
    from fedpriv.simulation.setup import Federation
    from fedpriv.storage.run_folder import RunFolder


NO_ACCURACY = "none: self-supervised, see fedpriv probe {run}"


class Bold(NamedTuple):
    """A value of the summary with its figure in bold."""

    before: str
    bold: str
    after: str = ""


LONG = 2.0
"""Seconds of a round after which its clients get a bar."""


class Reporter:
    """Progress on standard error (live bars on a terminal, a line a round elsewhere), the summary on ``out``."""

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
        self._score = "no accuracy yet"
        self._began = 0.0
        """Of the round, on the progress bar's clock."""

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
                f"clients are run {federation.choice}",
            ),
            soft_wrap=True,
        )
        if not federation.method.objective.labels:
            self._score = "no accuracy (self-supervised)"
        self.begin(config.train.rounds, folder.records()[-1]["round"] if folder.records() else 0)

    def begin(self, rounds: int, done: int) -> None:
        """Show the bars of a run of so many rounds, of which some are done."""
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
        if "accuracy" in metrics:
            self._score = f"accuracy {metrics['accuracy']:.3f}"
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
            measured: what the run's canaries show.
        """
        path = os.path.relpath(outcome.folder.path)
        if outcome.summary is None:
            self.out.print(f"Stopped after round {outcome.rounds_done}. Resume with: fedpriv resume {path}", soft_wrap=True)
            return
        summary, protocols, rows = outcome.summary, outcome.summary["protocols"], list[tuple[str, str | Bold]]()
        records = outcome.folder.records()
        if summary["accuracy"] is None:
            loss = records[-1]["metrics"].get("train_loss")
            untested = records[-1].get("untested")
            rows.append(("accuracy", "none: no client was tested" if untested else NO_ACCURACY.format(run=path)))
            rows += [("training loss in the last round", f"{loss:.4g}")] if loss is not None else []
        else:
            spread = f"{protocols['worst_tenth']:.3f} worst tenth   {protocols['best_client']:.3f} best"
            rows.append((accuracy_of(summary), Bold("", f"{summary['accuracy']:.3f}", f" mean   {spread}")))
            if (learnt_nothing := constant_answer(summary)) is not None:
                rows.append(("  at chance level", Bold("", learnt_nothing)))
            tested = summary["accuracy_per_client"]
            if left_out := tested.count(None):
                rows.append(("clients that were not tested, left out", f"{left_out} of {len(tested)}"))
        for share, accuracy in summary.get("probe", {}).items():
            rows.append((f"linear probe, {float(share):.0%} of the labels", Bold("", f"{accuracy:.3f}")))
        if protocols["global_test"] is not None:
            scores = f"{protocols['global_test']:.3f} accuracy"
            if (f1 := protocols["global_test_f1"]) is not None:  # a run of an earlier version has none
                scores += f"   {f1:.3f} macro F1"
            rows.append(("global model on the server's test set", scores))
        first = records[0]["metrics"]
        broadcast = f" (of which {decimal(first['bytes_down'])} the initial model)" if first["bytes_down"] else ""
        rows.append(("traffic", f"{decimal(summary['bytes_up'])} up, {decimal(summary['bytes_down'])} down{broadcast}"))
        if snr := summary.get("snr_db"):
            rows.append(
                ("signal-to-noise ratio of the change", ", ".join(f"{layer} {value:.1f} dB" for layer, value in snr.items()))
            )
        if summary["local_updates_dropped"]:
            rows.append(
                (
                    "diverged local trainings, left out",
                    Bold("", f"{summary['local_updates_dropped']} of {summary['local_updates']}"),
                )
            )
        if untrained := summary.get("local_updates_untrained"):  # a run of an earlier version has none
            rows.append(("local trainings without a step, left out", Bold("", f"{untrained} of {summary['local_updates']}")))
        if summary["answers_refused"]:
            rows.append(("refused answers, left out", Bold("", f"{summary['answers_refused']}")))
        rows += self._privacy(summary.get("privacy"))
        if measured is not None:
            from fedpriv.audit.sentences import canaries

            rows += [("  measured", sentence) for sentence in canaries(measured)]
        if summary["clients_never_trained"]:
            counted = ", whose accuracy is in the mean" if summary["accuracy"] is not None else ""
            lost = any(record["metrics"].keys() & {"too_few_uploads", "not_finite"} for record in records)
            how = " (a round without effect counts as none)" if lost else ""
            rows.append(("clients that never took part", f"{summary['clients_never_trained']}{how}{counted}"))
        rows.append(("time", f"{summary['seconds']:.1f} s for {summary['rounds']} round{'s' * (summary['rounds'] != 1)}"))
        if padded := [record["metrics"]["padding"] for record in records if "padding" in record["metrics"]]:
            rows.append(("padding of batches in groups", f"{mean(padded):.1%} of the samples"))
        if (kept := summary["payloads"])["files"]:
            size = f"{decimal(kept['bytes'])} in {kept['files']} files (payloads/; set with --keep-payloads)"
            rows.append(("messages kept", size))
        rows += [("run folder", path), ("tracking", self._tracking(outcome))]
        width = max(len(label) for label, _ in rows)
        for label, text in rows:
            value = (text.before, (text.bold, "bold"), text.after) if isinstance(text, Bold) else (text,)
            self.out.print(styled(f"{label:<{width}}  ", *value), soft_wrap=True)
        config, folder = outcome.folder.config(), outcome.folder.path.parent
        path, beside = shlex.quote(path), shlex.quote(os.path.relpath(folder))
        again = "" if _is_usual(config) else f" --config {path}/config.yaml"
        after = []
        if (other := _other_method(config)) is not None:
            after.append(f"fedpriv train --method {other}{again}   the same clients, another method")
        if summary["payloads"]["files"]:
            after.append(f"fedpriv audit {path}   what its messages reveal")
        after.append(f"fedpriv compare {beside}/*" if _only_runs(folder) else f"fedpriv compare {path} OTHER_RUN")
        if summary["accuracy"] is None:
            after.append(f"fedpriv probe {path}")
        if (command := _ui(outcome.folder.facts["tracking"], folder, beside)) is not None:
            after.append(command)
        self.out.print("\nNext: " + "\n      ".join(after), soft_wrap=True)

    @staticmethod
    def _privacy(statement: dict[str, Any] | None) -> list[tuple[str, str | Bold]]:
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


def constant_answer(summary: Mapping[str, Any]) -> str | None:
    """That the model of a summary answers the same whatever it is shown, or is no better than one that does; ``None``: it is
    better, or it is not known, as of an earlier version."""
    only, guessed = summary.get("only_answer"), summary.get("chance")
    if only is not None:
        return f"the model predicts {printable(only)} for every test sample"
    if not summary.get("at_chance") or guessed is None:
        return None
    return f"within its 95 % interval, the accuracy is no better than a constant answer's ({guessed:.1%})"


def accuracy_of(summary: Mapping[str, Any]) -> str:
    """What the accuracy of a summary is."""
    what = "validation accuracy" if summary["split"] == "validation" else "accuracy"
    last = summary["averaged_rounds"]
    return f"{what} per client, {f'mean of the last {last} rounds' if last > 1 else 'after the last round'}"


def _samples(least: int, most: int) -> str:
    """Between which numbers of samples the clients hold."""
    return f"{least}-{most} samples" if least < most else f"{most} sample{'s' * (most != 1)}"


def _left_out(federation: Federation) -> str:
    """A remark on the partition: images that no client holds, clients without images."""
    import numpy as np

    partition, images = federation.data.partition, len(federation.dataset.train_labels)
    held = [*partition.train, *partition.validation, *(partition.test if partition.test_split == "train" else ())]
    assigned = len(np.unique(np.concatenate(held)))
    remarks = []
    if empty := federation.config.data.clients - len(federation.data.nonempty):
        remarks.append(f"{empty} of them without any")
    if assigned < images:
        remarks.append(f"{images - assigned:,} of {images:,} images assigned to no client")
    return f" ({', '.join(remarks)})" if remarks else ""


def _other_method(config: RunConfig) -> str | None:
    """A method that the config also suits; ``None``: that depends on what its masks hide."""
    if any(one["name"] == "mask" for one in config.wire.transforms):
        return None
    if config.method.name != "fedavg":
        return "fedavg"  # a composed run's halves go with its method
    return "fedrep" if config.privacy.level != "none" else "mpfedcon"  # no noise covers MpFedcon's class centres


def _ui(tracking: Mapping[str, Any], folder: Path, beside: str) -> str | None:
    """The ``fedpriv ui`` that shows a run of that folder; ``None``: its records are not in a store that it opens."""
    from fedpriv.tracking import default_uri

    uri = tracking["uri"]
    if tracking.get("name", "mlflow") != "mlflow" or uri == "none" or uri.startswith("http"):
        return None
    if uri == default_uri(folder):
        return f"fedpriv ui{'' if beside == 'runs' else f' --runs-dir {beside}'}"
    return f"fedpriv ui --tracking-uri {shlex.quote(uri)}"


def _only_runs(folder: Path) -> bool:
    """Whether all that a shell's ``*`` names in a folder is what ``fedpriv compare`` takes."""
    try:
        run_folders(tuple(str(path) for path in folder.iterdir() if not path.name.startswith(".")), folder)
    except FedprivError:  # no run, or a damaged one
        return False
    return True


def _is_usual(config: RunConfig) -> bool:
    """Whether the config has the defaults except for the method, so that a bare ``fedpriv train`` has the same clients."""
    usual = type(config)()
    partition = config.data.partition.model_copy(update={"seed": None})
    same_data = config.data.model_copy(update={"partition": partition}) == usual.data
    return same_data and config.eval == usual.eval and config.seed == usual.seed and config.train.rounds == usual.train.rounds
