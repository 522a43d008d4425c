"""What a server's constants must be chosen for; attacks with fixed ones may fail where another choice succeeds."""

from __future__ import annotations

from fedpriv.attacks.core.observation import Observation


def not_adapted(observation: Observation) -> str | None:
    """What befell a message that a server would allow for when it alters the weights; ``None``: nothing that is known."""
    altered, schedule = observation.altered, observation.schedule
    there = {
        "noise or rounding": any(variance > 0 for variance in altered.variance.values()),
        "entries that are not sent": any(not bool(kept.all()) for kept in altered.kept.values()),
        "clipping": altered.rescaled,
        "several local steps": observation.kind == "change" and (schedule is None or schedule.steps > 1),
    }
    found = [what for what, is_there in there.items() if is_there]
    return (
        f"a server that knows of {' and '.join(found)} would alter the weights otherwise, and this attack does not"
        if found
        else None
    )
