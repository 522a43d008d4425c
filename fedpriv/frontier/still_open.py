"""What the intervals of a chosen point leave open of its target, and which attacks were not tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedpriv.audit import formats
from fedpriv.audit.conditions import conditions
from fedpriv.audit.images.attempts import SINGLES

Found = Mapping[str, Any]

_SAMPLES = {"message": "samples behind a message", "single image": "single images", "single text": "single texts"}


def still_open(trades: Sequence[Found], target: Sequence[str]) -> list[str]:
    """Sentences on what may leak beyond the target, though the attacks that were mounted did not find it.

    Args:
        trades: of one point on several seeds, as in ``frontier.json``; those of earlier versions have the interval of the attack
            that recovered most, and none of membership.
        target: its conditions.
    """
    wanted, said = conditions(",".join(target), "--target"), list[str]()
    one, high = _widest(trades, _recovered)
    if not all(each.allows(high) for each in wanted if each.measure == "recovered"):
        by, more = _by(one)
        said.append(f"By the samples that were attacked, up to {formats.percent(high)} may be recovered (95 %; {by}){more}.")
    on_members = [each for each in wanted if each.measure == "membership_auc"]
    one, high = _widest(trades, lambda one: one.get("membership_open"))
    if not all(each.allows(high) for each in on_members):
        said.append(f"A membership AUC of up to {formats.plain(high)} is not excluded (95 %; seed {one['seed']}).")
    not_tried = {name: why for one in trades for name, why in one.get("membership_not_tried", {}).items()}
    if on_members and not_tried:
        reasons = "; ".join(f"{name} ({why})" for name, why in not_tried.items())
        said.append(f"Membership attacks that were not tried: {reasons}.")
    return said


def _widest(trades: Sequence[Found], left_open: Callable[[Found], float | None]) -> tuple[Found, float]:
    """The trade that leaves most open, and how much; 0 where it is not known of any."""
    return max(((one, left_open(one) or 0.0) for one in trades), key=lambda found: found[1])


def _recovered(one: Found) -> float | None:
    if (high := one.get("recovered_open")) is not None:
        return float(high)
    return float(one["recovered_interval"][1]) if one["recovered_interval"] else None


def _by(one: Found) -> tuple[str, str]:
    """Which attack leaves that open on which seed, and a clause on what would leave less."""
    seed, rate = f"seed {one['seed']}", one.get("recovered_open_by")
    if rate is None:
        return seed, ""
    of = f"{rate['attacker']}, {rate['successes']} of {rate['n']} {_SAMPLES.get(rate['kind'], rate['kind'])}, {seed}"
    return of, "; --singles attacks more" if rate["kind"] == "single image" and rate["n"] < SINGLES else ""
