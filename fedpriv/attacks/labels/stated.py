"""The classes that a message states in clear.

A client of MpFedcon sends a list of its classes with their centres. That is a property of the protocol, not an attack, and it
also holds where the centres are held back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable

CENTERS, CLASSES, COUNTS = "statistic.centers", "statistic.classes", "statistic.counts"


@dataclass(frozen=True)
class LabelSet:
    """A client's label set.

    Attributes:
        present: ``(C,)`` bool.
        counts: ``(C,)`` samples of each class, where they were sent.
    """

    present: Tensor
    counts: Tensor | None


def read_label_set(observation: Observation) -> LabelSet:
    """The client's label set, from the list of classes in its message.

    Without such a list, counts of all classes ``(C,)`` show it, or a dense table of centres ``(C, k)``, whose rows are zero for
    absent classes.

    Raises:
        Inapplicable: none of these was sent.
    """
    sent, present = observation.statistics, torch.zeros(observation.classes, dtype=torch.bool)
    if CLASSES in sent:
        classes, counts = sent[CLASSES].long().cpu(), None
        present[classes] = True
        if COUNTS in sent:
            counts = torch.zeros(observation.classes, dtype=torch.long)
            counts[classes] = sent[COUNTS].long().cpu()
        return LabelSet(present, counts)
    for dense in (COUNTS, CENTERS):
        if dense in sent and len(sent[dense]) == observation.classes:
            rows = sent[dense].cpu().reshape(observation.classes, -1)
            return LabelSet((rows != 0).any(dim=1), rows[:, 0].long() if dense == COUNTS else None)
    raise Inapplicable("neither the client's classes nor centres of all classes were sent with the model")
