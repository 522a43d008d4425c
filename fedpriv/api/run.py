"""A run as an object: its figures, its history, its messages. It holds nothing but its folder, which is read when needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.api.comparison.stored import StoredRun
from fedpriv.config import RunConfig
from fedpriv.storage.payloads import PayloadStore
from fedpriv.storage.records import Record
from fedpriv.storage.run_folder import RunFolder
from fedpriv.untrusted.names import printable
from fedpriv.untrusted.notes import note
from fedpriv.wire import Sealed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from torch import Tensor, nn

    from fedpriv.evaluation.protocols import ScoreSummary
    from fedpriv.prediction.restored import FinalModel
    from fedpriv.samples import Inputs


@dataclass(frozen=True)
class Best:
    """The best round of a run on validation data.

    Attributes:
        metric: the score that chose it (config key ``eval.metric``).
        score: the clients' mean of that score in this round.
    """

    round: int
    metric: str
    score: float


class Run:
    """A run: one that was trained here, or an older one (:func:`fedpriv.load`).

    It is a path, too: whatever takes the folder of a run takes a run.

    Attributes:
        folder: its folder, with everything that is known about it.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def name(self) -> str:
        """The folder's name, which is the run's id."""
        return self.path.name

    @property
    def status(self) -> str:
        """``running``, ``finished``, ``interrupted``, ``failed``, ``killed`` (its process is gone without a word), or ``running
        or killed`` (its process was on another machine, so it is not known)."""
        return self.folder.status

    @property
    def config(self) -> RunConfig:
        """The config with everything filled in, as the run has it."""
        return self.folder.config_as_data()

    @property
    def accuracy(self) -> float | None:
        """The mean of the clients' local test accuracies, over the last rounds (``eval.last``); of a run that is not finished,
        at its last evaluation. ``None``: it was not measured."""
        accuracy: float | None = self._stored.summary["accuracy"]
        return accuracy

    @property
    def per_client(self) -> list[float | None]:
        """The accuracy of each client, as :attr:`accuracy`; ``None`` for a client that was not tested."""
        return list(self._stored.summary["accuracy_per_client"])

    @property
    def metric(self) -> str:
        """The score that the run is ranked by (config key ``eval.metric``)."""
        return self.config.eval.metric or "accuracy"

    @property
    def scores(self) -> dict[str, ScoreSummary]:
        """All scores that were measured, as :attr:`accuracy`, by name: ``scores["roc_auc"].mean``, ``.pooled`` and so on."""
        return self._stored.scores()

    @property
    def rounds(self) -> int:
        """The number of rounds that were run."""
        return int(self._stored.summary["rounds"])

    @property
    def best(self) -> Best | None:
        """The best round so far on validation data, by :attr:`metric`; ``None``: clients are scored on test data, which choose
        nothing, or were not scored yet. ``model``, ``predict``, ``export`` and ``weights`` take its model by ``best=True``."""
        from fedpriv.server.best import best_of

        records, config = self.records, self.config
        round = best_of(records, config)
        return None if round is None else Best(round, self.metric, records[round]["metrics"][self.metric])

    @property
    def bytes_up(self) -> int:
        """Bytes of all uploads, as they were sent."""
        return int(self._stored.summary["bytes_up"])

    @property
    def bytes_down(self) -> int:
        """Bytes of all downloads, with the first broadcast."""
        return int(self._stored.summary["bytes_down"])

    @property
    def seconds(self) -> float:
        """The wall time of its rounds."""
        return float(self._stored.summary["seconds"])

    @property
    def summary(self) -> dict[str, Any] | None:
        """All results of a finished run (``summary.json``); ``None``: it is not finished."""
        return self.folder.summary()

    @property
    def records(self) -> list[Record]:
        """The record of every round so far, from round 0, as the run wrote it."""
        return self.folder.records()

    @property
    def history(self) -> DataFrame:
        """The metrics of each round, a row a round, by round; round 0 is the broadcast of the initial model.

        A metric that a round does not have is NaN: accuracy where it was not evaluated, for example.
        """
        import pandas as pd

        records = self.records
        rounds = pd.Index([record["round"] for record in records], name="round")
        return pd.DataFrame([record["metrics"] for record in records], index=rounds)

    @property
    def payloads(self) -> list[tuple[int, int]]:
        """(round, client) of the uploads that were kept (config key ``wire.keep_payloads``)."""
        return [(round, client) for round in self._store.rounds() for client in self._store.clients(round)]

    def payload(self, round: int, client: int) -> Sealed:
        """A client's upload, as it was sent: ``payload(1, 0).tensors()``, ``.schema``, ``.nbytes``.

        Raises:
            UsageError: it was not kept; says which were.
        """
        return self._store.upload(round, client)

    def download(self, round: int) -> Sealed | None:
        """What every participant of a round was sent (0: the broadcast of the initial model); ``None``: nothing, or it was not
        kept."""
        return self._store.download(round) if round else self._store.broadcast()

    def weights(self, best: bool = False) -> Mapping[str, Tensor]:
        """The tensors of the server's final model that are shared, by name.

        Args:
            best: of the model of the best round (:attr:`best`).

        Raises:
            UsageError: the run is not finished, its method shares none, or it has no best round.
        """
        from fedpriv.errors import UsageError
        from fedpriv.files import load_tensors

        file = self.folder.server_file(best)
        if not file.exists():
            why = "its clients are scored on test data, " if best else ""
            raise UsageError(
                f"{self.path} has no {'best' if best else 'final'} model: {why}it is {self.status}, or its method shares none"
            )
        return load_tensors(file)

    def model(self, client: int | str | None = None, best: bool = False) -> nn.Module:
        """The final model with its weights: inputs of :meth:`inputs` -> logits, or of a regression numbers in the label's unit
        ``(B, 1)``, in evaluation mode.

        Args:
            client: a client's number, or its name where clients come with the data: the server's model with the client's private
                state, before any adaptation; ``None``: the server's.
            best: the model of the best round (:attr:`best`) in place of the last one.

        Raises:
            UsageError: the run is not finished, or has no best round; or the model is not complete without a client's private
                state; or that is not here, as after a deployment.
        """
        return self._final(client, best).net

    def inputs(self, samples: Any) -> Inputs:
        """New samples as the net takes them; :meth:`predict` says in which forms they may be given. Of pairs, the net takes the
        images and the texts as two arguments."""
        from fedpriv.prediction.predictor import encode
        from fedpriv.prediction.restored import restored_preprocessing

        preprocessing, encoder = restored_preprocessing(self.folder)
        return encode(samples, preprocessing, None if encoder is None else encoder.tokenizer, note).inputs

    def predict(self, samples: Any, client: int | str | None = None, best: bool = False) -> DataFrame:
        """The predicted class of each sample (``prediction``), and a column with the probability of each class
        (``probability_<class>``); of a regression, the predicted number in the label's unit. Rows are in the order of the
        samples, with their index if they have one.

        Args:
            samples: rows of a table, as a DataFrame, a mapping of columns, an array, or the path of a CSV or parquet file, with
                columns that are called as in training (others are ignored); images, as an array, PIL images, paths, or a
                folder; texts, as a list, a column, or the path of a file; pairs, as (images, texts), or the path of a table with
                both.
            client, best: as for :meth:`model`.

        Raises:
            UsageError: as :meth:`model`; or the samples are not as those of training, such as without one of the columns.
        """
        return self._final(client, best).predict(samples, note)

    def export(
        self,
        path: str | os.PathLike[str],
        client: int | str | None = None,
        format: Literal["pt2", "mlflow"] = "pt2",
        best: bool = False,
    ) -> Path:
        """Write the final model, and return where.

        Args:
            path: a new file; for MLflow, a new folder.
            client, best: as for :meth:`model`.
            format: ``pt2``: a program that ``torch.export.load`` reads without fedpriv, inputs -> logits, with the
                preprocessing as an extra file; ``mlflow``: a model that ``mlflow models predict`` and ``serve`` take, raw
                samples -> predictions.

        Raises:
            UsageError: as :meth:`model`; or the path is taken.
            FedprivError: the net cannot be exported.
        """
        from fedpriv.prediction.exported import export_model

        return export_model(self._final(client, best), Path(path), format)

    def _final(self, client: int | str | None, best: bool) -> FinalModel:
        from fedpriv.prediction.restored import final_model

        final = final_model(self.folder, client, best)
        for line in final.notes:
            note(line)
        return final

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the score that the run is ranked by over the rounds, with the clients' spread.

        Args:
            ax: where; ``None``: in a new figure of pyplot, which notebooks show.
        """
        from fedpriv.plots.curves import draw_score
        from fedpriv.plots.style import styled
        from fedpriv.scores.catalogue import score_named

        with styled():
            if ax is None:
                from matplotlib import pyplot

                _, ax = pyplot.subplots(figsize=(8, 4), layout="constrained")
            draw_score(ax, self.records, score_named(self.metric))
            ax.set_xlabel("round")
        return ax

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return printable(f"<Run {self.name}: {', '.join(f'{name} {value}' for name, value in self._shown().items())}>")

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(printable(value))}</td></tr>'
            for name, value in {"run": self.name, **self._shown(), "folder": str(self.path)}.items()
        )
        return f"<table>{rows}</table>"

    def _shown(self) -> dict[str, str]:
        from fedpriv.scores.catalogue import beside, score_named

        numbers = self._stored.figures()
        metric = score_named(numbers["metric"])
        ranked = {
            score.name: "not measured" if (value := numbers["scores"].get(score.name)) is None else score.shown(value)
            for score in dict.fromkeys([metric, beside(metric)])
        }
        return {
            "method": str(numbers["method"]),
            "data": Path(numbers["dataset"]).name,
            "seed": str(numbers["seed"]),
            "rounds": f"{numbers['rounds']} ({numbers['status']})",
            **ranked,
            "up": f"{numbers['bytes_up']:,} B",
            "down": f"{numbers['bytes_down']:,} B",
        }

    @property
    def _stored(self) -> StoredRun:
        return StoredRun(self.path)  # a new one for each question, as the run may go on

    @property
    def _store(self) -> PayloadStore:
        return PayloadStore.of(self.folder)


def load(run: str | os.PathLike[str], runs_dir: str | os.PathLike[str] = "runs") -> Run:
    """The run of a run folder; its files are checked, since it may come from elsewhere.

    Args:
        run: a run folder, a run id, or a unique beginning of a folder's name in ``runs_dir``.

    Raises:
        UsageError: there is no such run, or a file of it has another form than fedpriv writes.
    """
    from fedpriv.tracking import find_run

    return Run(RunFolder.open(find_run(os.fspath(run), Path(runs_dir))))
