"""What is predicted of a sample, a class or a number: which scores say how good predictions are, and how they are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.data.encoding import NumberColumn
from fedpriv.errors import UsageError
from fedpriv.scores.catalogue import ACCURACY, RMSE, SCORES, Score, Scores, score_named, usual_score
from fedpriv.scores.computing import scored, scored_numbers
from fedpriv.scores.predictions import Predictions, positive_of


class Task(ABC):
    """What is predicted of a sample.

    Attributes:
        outputs: of the net, C.
        usual: the score that is measured of every tested model.
    """

    outputs: int
    usual: Score

    @property
    @abstractmethod
    def scores(self) -> list[Score]:
        """The scores that there are."""

    @abstractmethod
    def score(self, name: str | None, counts: Sequence[int] | None) -> Score:
        """The score that a run is ranked by.

        Args:
            name: ``eval.metric``; ``None``: the usual one.
            counts: number of training labels of each class; ``None``: not known.

        Raises:
            UsageError: there is no such score, or it is none of this task.
        """

    @abstractmethod
    def predictions(self, outputs: Tensor, labels: Tensor, weights: Tensor | None = None, keep: bool = False) -> Predictions:
        """The predictions of a net's outputs ``(n, C)``, which are kept if ``keep``.

        Args:
            labels: ``(n,)``, as the net is trained on them.
            weights: of the samples ``(n,)``; ``None``: all are equal.
        """

    def predictions_of_several(
        self, outputs: Tensor, labels: Tensor, sizes: Sequence[int], weights: Sequence[Tensor | None], padded: Tensor,
        keep: bool = False,
    ) -> Iterator[Predictions]:  # fmt: skip
        """The predictions of several clients, of outputs ``(K, n, C)`` and labels ``(K, n)`` that are padded to one length.

        Args:
            sizes: number of samples of each client.
            weights: of each client's samples; ``None``: all are equal.
            padded: the weights ``(K, n)``; 0 for padding.
        """
        for number, size in enumerate(sizes):
            yield self.predictions(outputs[number, :size], labels[number, :size], weights[number], keep)

    @abstractmethod
    def scored(self, clients: Sequence[Predictions]) -> list[Scores]:
        """The scores of each client, to the bit those of the client alone; each has one sample or more."""


@dataclass(frozen=True)
class Classes(Task):
    """Samples are told apart into classes.

    Attributes:
        count: number of classes C.
    """

    count: int
    usual = ACCURACY

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.count

    @property
    def scores(self) -> list[Score]:
        return [score for score in SCORES.values() if not score.of_numbers and (self.count == 2 or not score.two_classes)]

    def score(self, name: str | None, counts: Sequence[int] | None) -> Score:
        if name is None:
            return ACCURACY if counts is None else usual_score(counts)
        possible, score = self.scores, score_named(name)
        if score not in possible:
            why = "numbers to predict" if score.of_numbers else "two classes"
            names = ", ".join(score.name for score in possible)
            raise UsageError(f"eval.metric {name} needs {why}, and the data have {self.count} classes; possible are {names}")
        return score

    def predictions(self, outputs: Tensor, labels: Tensor, weights: Tensor | None = None, keep: bool = False) -> Predictions:
        return Predictions.of(outputs, labels, weights, keep)

    def predictions_of_several(
        self, outputs: Tensor, labels: Tensor, sizes: Sequence[int], weights: Sequence[Tensor | None], padded: Tensor,
        keep: bool = False,
    ) -> Iterator[Predictions]:  # fmt: skip
        predicted = outputs.argmax(2)
        accuracies = (((predicted == labels) * padded).sum(1) / padded.sum(1)).tolist()
        positive, predicted, true = positive_of(outputs), predicted.cpu(), labels.cpu()
        for number, size in enumerate(sizes):
            part = number, slice(size)
            yield Predictions(
                true[part].numpy(),
                predicted[part].numpy(),
                accuracies[number],
                None if positive is None else positive[part].numpy(),
                None if weights[number] is None else padded[part].cpu().numpy(),
                outputs[part].cpu() if keep else None,
            )

    def scored(self, clients: Sequence[Predictions]) -> list[Scores]:
        return scored(clients, self.count)


@dataclass(frozen=True)
class Quantity(Task):
    """A number is predicted of each sample.

    Attributes:
        column: of the labels, by which they are standardised for the net; scores are in their own unit.
    """

    column: NumberColumn
    outputs = 1
    usual = RMSE

    @property
    def scores(self) -> list[Score]:
        return [score for score in SCORES.values() if score.of_numbers]

    def score(self, name: str | None, counts: Sequence[int] | None) -> Score:
        score = RMSE if name is None else score_named(name)
        if not score.of_numbers:
            names, column = ", ".join(score.name for score in self.scores), self.column.name
            raise UsageError(f"eval.metric {name} needs classes, and the labels ({column!r}) are numbers; possible are {names}")
        return score

    def predictions(self, outputs: Tensor, labels: Tensor, weights: Tensor | None = None, keep: bool = False) -> Predictions:
        predicted, true = (self.column.decode(part.double().cpu().numpy()) for part in (outputs[:, 0], labels))
        own = None if weights is None else weights.double().cpu().numpy()
        return Predictions(true, predicted, np.nan, weights=own, logits=torch.from_numpy(predicted)[:, None] if keep else None)

    def scored(self, clients: Sequence[Predictions]) -> list[Scores]:
        return scored_numbers(clients)


def task_of(classes: int, target: NumberColumn | None) -> Task:
    """The task of data with so many classes, or whose labels are numbers, of a column."""
    return Classes(classes) if target is None else Quantity(target)
