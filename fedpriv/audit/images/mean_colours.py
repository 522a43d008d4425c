"""The mean colour of each client's images, from the running statistics that it sent."""

from __future__ import annotations

import torch

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.running_statistics import mean_colour
from fedpriv.audit.record.base import Record
from fedpriv.audit.results.images import MeanColour


def mean_colours(record: Record) -> tuple[MeanColour, ...] | Reason:
    """The mean colours by :func:`fedpriv.attacks.inference.running_statistics.mean_colour`, of the messages to which it applies;
    or why there are none.

    Errors are mean absolute differences over the channels, of colours in [0, 1]; the baseline's are those of the data set's mean.
    """
    read, refusal = list[MeanColour](), ""
    for round, client in record.messages():
        seen = record.observation(record.message(round, client), ThreatModel())
        try:
            colour = mean_colour(seen).float()
        except Inapplicable as error:
            refusal = str(error)
            continue
        true = record.truth(client).images.mean((0, 2, 3))
        guess = torch.tensor(seen.mean).expand_as(true)
        read.append(
            MeanColour(
                round=round,
                sender=record.sender(round, client),
                estimate=tuple(colour.tolist()),
                true=tuple(true.tolist()),
                error=float((colour - true).abs().mean()),
                baseline_error=float((guess - true).abs().mean()),
            )
        )
    return tuple(read) or Reason("does not apply", refusal)
