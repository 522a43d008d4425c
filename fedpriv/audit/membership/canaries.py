"""What a run's canaries show of the epsilon that it spent, beside the epsilon that its ledger claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.attacks.inference.canaries import canary_bounds
from fedpriv.audit.results import Canaries
from fedpriv.files import load_tensors
from fedpriv.storage.run_folder import RunFolder


def measured(folder: RunFolder, statement: Mapping[str, Any] | None) -> Canaries | None:
    """The lower bounds from the canaries of a finished run; ``None``: it had none.

    Args:
        statement: the run's privacy statement.

    Raises:
        Damaged: the file of their scores is not what was written.
    """
    if statement is None or not folder.config_as_data().privacy.canaries:
        return None
    found = load_tensors(folder.canaries_file)
    scores, used = found["scores"].numpy(), found["used"].numpy()
    claim, delta = statement["epsilon"], statement["delta"]
    bounds = canary_bounds(scores, used, claim, delta)
    return Canaries(len(used), int(used.sum()), claim, delta, bounds[0].confidence, bounds)
