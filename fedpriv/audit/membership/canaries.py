"""What a run's canaries show of the epsilon that it spent, beside the epsilon that its ledger claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedpriv.attacks.inference.canaries import canary_bounds
from fedpriv.files import load_tensors
from fedpriv.server.run_folder import RunFolder


def measured(folder: RunFolder, statement: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The lower bounds from the canaries of a finished run, in the form of ``audit.json``; ``None``: it had none.

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
    best = max(bounds, key=lambda bound: bound.epsilon)
    return {
        "canaries": len(used),
        "used": int(used.sum()),
        "claim": claim,
        "delta": delta,
        "confidence": best.confidence,
        "bounds": [asdict(bound) for bound in bounds],
        "lower": best.epsilon,
        "sentences": [
            f"Lower bounds of epsilon from {len(used):,} canaries, {int(used.sum()):,} of them used, at delta {delta:g} and "
            f"{100 * best.confidence:g} % confidence: "
            + "; ".join(f"{bound.name} {bound.epsilon:.3g}, assuming {bound.assumes}" for bound in bounds)
            + ".",
            *([contradiction(best.name, best.epsilon, claim)] if best.epsilon > claim else []),
        ],
    }


def contradiction(name: str, lower: float, claim: float) -> str:
    """The sentence on a lower bound that exceeds the claim."""
    return (
        f"By {name} the canaries show an epsilon of at least {lower:.3g}, above the {claim:.3g} of the privacy accountant: noise "
        "or clipping is not what it assumes. If both are, one of four bounds exceeds a tight epsilon in up to one run of five."
    )
