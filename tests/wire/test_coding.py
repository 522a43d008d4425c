"""Compressed changes that fit nothing are refused in a line where they are read."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedpriv.wire import Payload, Refused, seal
from fedpriv.wire.coding import decoded, pack_codes
from tests.wire.forging import one_line

RECEIVED = {"a": torch.zeros(2, 3), "b": torch.ones(4)}


def ints(*numbers: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


ONE = torch.ones(1)
SPARSE = {"a~indices": ints(1, 4), "a~values": torch.tensor([0.5, -2.0])}
CODED = {"a~int8": torch.full((2, 3), 127, dtype=torch.int8), "a~scale": ONE}
PACKED = {"a~int5": pack_codes(torch.full((2, 3), -15.0), 5), "a~scale": ONE}
BOTH = {"a~indices": ints(1, 4), "a~values~int8": ints(3, -3, dtype=torch.int8), "a~values~scale": ONE}
FORMS = {"sparse": SPARSE, "coded": CODED, "packed": PACKED, "both": BOTH, "whole": {"a": torch.ones(2, 3)}}


def read(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return decoded(seal(Payload(tensors, 1, 1, kind="delta")), RECEIVED).tensors()


def test_each_form_is_read() -> None:
    assert read(SPARSE)["a"].tolist() == [[0, 0.5, 0], [0, -2, 0]]
    assert read(CODED)["a"].tolist() == [[127] * 3] * 2
    assert read(PACKED)["a"].tolist() == [[-15] * 3] * 2
    assert read(BOTH)["a"].tolist() == [[0, 3, 0], [0, -3, 0]]
    assert read({"b": torch.ones(4), "new": torch.ones(2), "statistic.x": ONE})["b"].tolist() == [2] * 4
    assert read({"a~indices": ints(), "a~values": torch.empty(0)})["a"].tolist() == [[0] * 3] * 2


def without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {own: tensor for own, tensor in tensors.items() if own != name}


FAULTS: dict[str, dict[str, Tensor]] = {
    "an index beyond the end": {**SPARSE, "a~indices": ints(1, 6)},
    "a negative index": {**SPARSE, "a~indices": ints(-1, 4)},
    "an index twice": {**SPARSE, "a~indices": ints(4, 4)},
    "indices that fall": {**SPARSE, "a~indices": ints(4, 1)},
    "indices in a square": {**SPARSE, "a~indices": ints(1, 4)[None], "a~values": torch.ones(1, 2)},
    "indices of 64 bits": {**SPARSE, "a~indices": ints(1, 4, dtype=torch.int64)},
    "indices that are no numbers": {**SPARSE, "a~indices": torch.tensor([1.0, 4.0])},
    "indices without values": without(SPARSE, "a~values"),
    "values without indices": without(SPARSE, "a~indices"),
    "a value too few": {**SPARSE, "a~values": torch.ones(1)},
    "one value for all": {**SPARSE, "a~values": torch.tensor(1.0)},
    "values that are whole numbers": {**SPARSE, "a~values": ints(1, 2)},
    "of a tensor that was not sent": {"c~indices": ints(0), "c~values": torch.ones(1)},
    "codes of a tensor that was not sent": {"c~int8": ints(0, dtype=torch.int8), "c~scale": ONE},
    "no name": {"~indices": ints(0), "~values": torch.ones(1)},
    "codes without a scale": without(CODED, "a~scale"),
    "a scale without codes": without(CODED, "a~int8"),
    "codes of two lengths": {**CODED, **PACKED},
    "codes and entries": {**CODED, **SPARSE},
    "codes and the whole": {**CODED, "a": torch.ones(2, 3)},
    "codes of nine bits": {"a~int9": CODED["a~int8"], "a~scale": ONE},
    "codes of one bit": {"a~int1": CODED["a~int8"], "a~scale": ONE},
    "codes of another shape": {**CODED, "a~int8": torch.ones(3, 2, dtype=torch.int8)},
    "one code for all": {**CODED, "a~int8": torch.ones(1, 1, dtype=torch.int8)},
    "codes that are floats": {**CODED, "a~int8": torch.ones(2, 3)},
    "a code below the least": {**CODED, "a~int8": torch.full((2, 3), -128, dtype=torch.int8)},
    "a packed code above the most": {**PACKED, "a~int5": torch.full((4,), 255, dtype=torch.uint8)},
    "a packed code too many": {**PACKED, "a~int5": pack_codes(torch.ones(7), 5)},
    "bits after the last packed code": {**PACKED, "a~int5": PACKED["a~int5"] + ints(0, 0, 0, 1, dtype=torch.uint8)},
    "packed codes that are too few": {**PACKED, "a~int5": PACKED["a~int5"][:-1]},
    "two scales": {**CODED, "a~scale": torch.ones(2)},
    "a scale that is a scalar": {**CODED, "a~scale": torch.tensor(1.0)},
    "a negative scale": {**CODED, "a~scale": -ONE},
    "a scale that is no number": {**CODED, "a~scale": ONE * math.nan},
    "an infinite scale": {**CODED, "a~scale": ONE * math.inf},
    "a whole scale": {**CODED, "a~scale": ints(1)},
    "an index twice, coded": {**BOTH, "a~indices": ints(4, 4)},
    "a code too many": {**BOTH, "a~values~int8": ints(1, 2, 3, dtype=torch.int8)},
    "coded values without a scale": without(BOTH, "a~values~scale"),
    "coded values without indices": without(BOTH, "a~indices"),
    "values twice": {**BOTH, **SPARSE},
    "a form of a form": {"a~values~indices": ints(0), "a~values~values": torch.ones(1)},
    "a form that is none": {**SPARSE, "a~more": ONE},
    "a scalar for the whole": {"a": torch.tensor(1.0)},
    "one number for the whole": {"a": ONE},
    "a row for the whole": {"a": torch.ones(3)},
    "the whole, flat": {"a": torch.ones(6)},
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_change_in_no_form_is_refused(what: str) -> None:
    with pytest.raises(Refused) as caught:
        read(FAULTS[what])
    one_line(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_beside_it_stays(form: str) -> None:
    beside = {"statistic.x~indices": ints(-5), "statistic.y": ONE}
    decoded = read({**FORMS[form], **beside})
    assert decoded.keys() == {"a", *beside} and all(torch.equal(decoded[name], tensor) for name, tensor in beside.items())
