"""Conditions for which a malicious server would choose its constants; attacks with fixed constants may fail under them."""

from __future__ import annotations

from fedpriv.attacks.core.observation import Observation


def not_adapted(observation: Observation) -> str | None:
    """A clause on conditions of a message to which a server would adapt its alteration; ``None``: there are none."""
    altered, schedule = observation.altered, observation.schedule
    there = {
        "noise or rounding": any(variance > 0 for variance in altered.variance.values()),
        "entries that are not sent": any(not bool(kept.all()) for kept in altered.kept.values()),
        "clipping": altered.rescaled,
        "several local steps": observation.kind == "change" and (schedule is None or schedule.steps > 1),
    }
    present = [what for what, is_there in there.items() if is_there]
    return (
        f"a server that knows of {' and '.join(present)} would alter the weights differently, and this attack does not adapt"
        if present
        else None
    )
