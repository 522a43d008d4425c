"""The stages of transforms, and the orders that are refused."""

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
    """A transform's place; one without a ``stage`` (a mask, or another package's) may stand anywhere."""

    CLIP = 1
    NOISE = 2
    SPARSE = 3
    DIGITS = 4


_WHY = {
    (Stage.CLIP, Stage.NOISE): "noise is measured against a change that is bounded before it is added",
    (Stage.NOISE, Stage.SPARSE): "which entries were kept would show the change itself, which no noise then covers",
    (Stage.CLIP, Stage.SPARSE): "the bound would not be that of what was chosen from",
    (Stage.SPARSE, Stage.SPARSE): "an upload is pruned once",
    (Stage.DIGITS, Stage.DIGITS): "numbers are shortened once",
}
_DIGITS_LAST = "it would make whole numbers again of what was shortened"


def check_order(transforms: Sequence[Transform]) -> None:
    """Refuse an order in which a transform voids what an earlier one promised.

    Raises:
        UsageError: with the two transforms and the reason.
    """
    staged = [(one, stage) for one in transforms if isinstance(stage := getattr(one, "stage", None), Stage)]
    for index, (later, stage) in enumerate(staged):
        for earlier, before in staged[:index]:
            twice = stage == before and stage >= Stage.SPARSE
            if stage < before or twice:
                why = _WHY.get((stage, before), _DIGITS_LAST)
                fix = "leave one out" if twice else f"put {later} before {earlier}"
                raise UsageError(f"wire.transforms: {later} after {earlier}: {why}; {fix}")
