"""What a net is shown, and how rows are taken from it: of tensors as torch does it, of pairs the same for each half."""

from __future__ import annotations

import pytest
import torch

from fedpriv.samples import (
    Inputs,
    Pairs,
    each,
    from_tensors,
    join,
    missing_modality,
    size,
    split,
    take,
    tensors,
    without,
)

IMAGES = torch.arange(7 * 3.0).view(7, 3)
IDS = torch.arange(7 * 2).view(7, 2)
ALL: list[Inputs] = [IMAGES, Pairs(IMAGES, IDS), Pairs(IMAGES, None), Pairs(None, IDS)]
kinds = pytest.mark.parametrize("inputs", ALL, ids=["tensor", "pairs", "images", "texts"])


def same(one: Inputs, other: Inputs) -> bool:
    mine, theirs = tensors(one), tensors(other)
    return type(one) is type(other) and mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)


@kinds
def test_taken_apart_and_put_together(inputs: Inputs) -> None:
    assert same(from_tensors(tensors(inputs)), inputs)
    assert size(inputs) == 7


@kinds
@pytest.mark.parametrize("sizes", [1, 3, 7, 100, [2, 5], [0, 7], [3, 0, 4]])
def test_split_is_torchs_and_joined_it_is_what_it_was(inputs: Inputs, sizes: int | list[int]) -> None:
    parts = split(inputs, sizes)
    expected = torch.split(IMAGES, sizes)
    assert [size(part) for part in parts] == [len(part) for part in expected]
    assert same(join(parts), inputs)


@kinds
def test_an_empty_batch(inputs: Inputs) -> None:
    none = take(inputs, torch.zeros(0, dtype=torch.int64))
    assert size(none) == 0 and missing_modality(none) == missing_modality(inputs)
    assert [size(part) for part in split(none, 3)] == [0] == [len(part) for part in torch.split(IMAGES[:0], 3)]


@kinds
def test_the_same_rows_of_each_half(inputs: Inputs) -> None:
    index = torch.tensor([4, 0, 4])
    taken = tensors(take(inputs, index))
    assert all(torch.equal(taken[name], part[index]) for name, part in tensors(inputs).items())
    doubled = tensors(each(inputs, lambda part: part * 2))
    assert all(torch.equal(doubled[name], part * 2) for name, part in tensors(inputs).items())


def test_without() -> None:
    pairs = Pairs(IMAGES, IDS)
    assert without(pairs, None) is pairs and without(IMAGES, "text") is IMAGES
    assert same(without(pairs, "text"), Pairs(IMAGES, None)) and same(without(pairs, "image"), Pairs(None, IDS))
    assert [missing_modality(one) for one in ALL] == [None, None, "text", "image"]


def test_nothing_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither images nor texts"):
        size(Pairs(None, None))
