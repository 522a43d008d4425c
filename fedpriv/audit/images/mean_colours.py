"""The mean colour of each client's images, from the running statistics that it sent."""

from __future__ import annotations

import torch

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.inference.running_statistics import mean_colour
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results import MeanColour


def mean_colours(evidence: RunRecord) -> tuple[MeanColour, ...] | Reason:
    """What :func:`fedpriv.attacks.inference.running_statistics.mean_colour` finds in the kept messages, or why in none of them.

    Errors are mean absolute differences over the channels, of colours in [0, 1]; the baseline's are those of the data set's mean.
    """
    read, refusal = list[MeanColour](), ""
    for round, client in evidence.messages():
        seen = evidence.observation(evidence.message(round, client), ThreatModel())
        try:
            found = mean_colour(seen).float()
        except Inapplicable as error:
            refusal = str(error)
            continue
        true = evidence.truth(client).images.mean((0, 2, 3))
        guess = torch.tensor(seen.mean).expand_as(true)
        read.append(
            MeanColour(
                round=round,
                sender=evidence.sender(round, client),
                found=tuple(found.tolist()),
                true=tuple(true.tolist()),
                error=float((found - true).abs().mean()),
                baseline_error=float((guess - true).abs().mean()),
            )
        )
    return tuple(read) or Reason("does not apply", refusal)
