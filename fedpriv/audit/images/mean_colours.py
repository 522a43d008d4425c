"""The mean colour of each client's images, from the running statistics that it sent."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from fedpriv.attacks.core.observation import ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.inference.running_statistics import mean_colour
from fedpriv.audit.evidence.messages import Evidence


def mean_colours(evidence: Evidence, not_tried: dict[str, str]) -> dict[str, Any] | None:
    """What :func:`fedpriv.attacks.inference.running_statistics.mean_colour` finds in the kept messages, as JSON.

    Errors are mean absolute differences over the channels, of colours in [0, 1]; the baseline's are those of the data set's mean.

    Args:
        not_tried: gets the reason where no message could be read.

    Returns:
        ``None``: no message was read.
    """
    rows, reason = list[dict[str, Any]](), ""
    for round, client in evidence.messages():
        seen = evidence.attacker.observation(evidence.message(round, client), ThreatModel())
        try:
            found = mean_colour(seen).float()
        except Inapplicable as error:
            reason = str(error)
            continue
        true = evidence.truth(client).images.mean((0, 2, 3))
        guess = torch.tensor(seen.mean).expand_as(true)
        rows.append(
            {
                "round": round,
                "client": evidence.sender(round, client),
                "found": found.tolist(),
                "true": true.tolist(),
                "error": float((found - true).abs().mean()),
                "baseline_error": float((guess - true).abs().mean()),
            }
        )
    if not rows:
        not_tried["mean_colour"] = reason
        return None
    errors, baseline = ([row[what] for row in rows] for what in ("error", "baseline_error"))
    return {"rows": rows, "error_median": median(errors), "baseline_median": median(baseline)}
