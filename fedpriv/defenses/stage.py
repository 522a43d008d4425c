"""The order in which transforms may be combined."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from fedpriv.errors import UsageError
from fedpriv.wire import Transform

transform = dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
"""Decorator of a transform: a frozen dataclass whose options are checked."""


class Stage(IntEnum):
    """A transform's position in the order; transforms without a ``stage`` (masks, plug-ins) may be anywhere."""

    CLIP = 1
    NOISE = 2
    SPARSE = 3
    DIGITS = 4


_WHY = {
    (Stage.CLIP, Stage.NOISE): "noise protects only a change whose norm was bounded before",
    (Stage.NOISE, Stage.SPARSE): "the choice of the kept entries would depend on the change without noise",
    (Stage.CLIP, Stage.SPARSE): "the bound would not hold for the change from which entries are chosen",
    (Stage.SPARSE, Stage.SPARSE): "an upload can be pruned only once",
    (Stage.DIGITS, Stage.DIGITS): "an upload can be rounded only once",
}
_DIGITS_LAST = "it would undo the rounding"


def check_order(transforms: Sequence[Transform]) -> None:
    """Check that no transform invalidates an earlier one.

    Raises:
        UsageError: the order is not allowed; the message names both transforms and the reason.
    """
    staged = [(transform, stage) for transform in transforms if isinstance(stage := getattr(transform, "stage", None), Stage)]
    for index, (later, stage) in enumerate(staged):
        for earlier, before in staged[:index]:
            twice = stage == before and stage >= Stage.SPARSE
            if stage < before or twice:
                why = _WHY.get((stage, before), _DIGITS_LAST)
                fix = "leave one out" if twice else f"put {later} before {earlier}"
                raise UsageError(f"wire.transforms: {later} after {earlier}: {why}; {fix}")
