"""``unseal`` takes the bytes that ``seal`` makes and no others."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.wire import Payload, Refused, seal, unseal
from fedpriv.wire.sealing import CODES, LONGEST_HEADER
from tests.wire.forging import draft, facts_of, joined, one_line, parts, with_fact_text, with_facts

QUICK = settings(derandomize=True, max_examples=80, deadline=None)
MESSAGE = seal(
    Payload(
        {
            "encoder.fc.weight": torch.arange(6.0).view(3, 2),
            "encoder.fc.bias": torch.ones(3),
            "head.weight": torch.ones(2, 0),
            "statistic.classes": torch.tensor([1, 4], dtype=torch.int16),
            "statistic.mask": torch.tensor([True, False]),
        },
        round=3,
        client=7,
        num_examples=12,
        transforms=("mask(head)", "clip(0.5)"),
    )
)
DATA = MESSAGE.data


def refusal(data: bytes) -> str:
    with pytest.raises(Refused) as caught:
        unseal(data)
    return one_line(caught.value)


FACTS: dict[str, list[Any]] = {
    "round": [-1, 2**31, -(2**70), "", "3", 1e999, float("nan"), 3.0, True, None, [3], {}],
    "client": [-1, 2**31, -(2**70), "7", 7.0, False, [7], [[]]],
    "kind": [None, "wehghts", "Weights", 1, ["weights"], {}],
    "num_examples": [-1, 0, 2**53 + 1, 2**63, 1.5, 12.0, True, "12", [1], float("inf")],
    "transforms": [None, "mask(head)", [1], [None], [""], ["a\nb"], ["\x1b[2J"], ["x" * 5000], ["x"] * 65, {}, [["mask"]]],
}


@pytest.mark.parametrize(("fact", "value"), [(fact, value) for fact, values in FACTS.items() for value in values])
def test_facts_that_cannot_be(fact: str, value: Any) -> None:
    assert fact in refusal(with_facts(DATA, **{fact: value}))


def test_facts_at_their_bounds() -> None:
    for facts in (
        {"round": 0},
        {"round": 2**31 - 1, "client": None},
        {"num_examples": 2**53},
        {"num_examples": None},
        {"kind": "report", "num_examples": 0},
    ):
        assert facts_of(unseal(with_facts(DATA, **facts)).data) == {**facts_of(DATA), **facts}


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"round": 3', '"round": 3, "round": 3'),
        lambda text: text.replace('"round": 3', '"round":3'),
        lambda text: text.replace('"round": 3', '"round": 03'),
        lambda text: text.replace('"round": 3', '"round": 3e0'),
        lambda text: text.replace('"round": 3', '"round": NaN'),
        lambda text: text.replace('"round": 3', '"round": ' + "9" * 5000),
        lambda text: text.replace('"round": 3, ', ""),
        lambda text: text[:-1] + ', "more": 1}',
        lambda text: text[:-1] + ', "a\\nb": 1}',
        lambda text: text + " ",
        lambda text: text[:-1],
        lambda text: f"[{text}]",
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: '{"round": ' + "[" * 5000 + "]" * 5000 + "}",
        lambda text: "\ud800",
    ],
)
def test_facts_that_are_not_written_as_ours_are(edit: Callable[[str], str]) -> None:
    refusal(with_fact_text(DATA, edit(json.dumps(facts_of(DATA)))))


WEIGHT = '"encoder.fc.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[12,36]}'
BIAS = '"encoder.fc.bias":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}'
HEADERS: dict[str, tuple[str, str]] = {
    "a dtype that no tensor has": (WEIGHT, WEIGHT.replace("F32", "F8_E4M3")),
    "a dtype that we do not write": (WEIGHT, WEIGHT.replace("F32", "U32")),
    "sizes that overflow": ("[3,2]", "[4294967296,4294967296]"),
    "sizes of 400 digits": ("[3,2]", f"[{'9' * 400}]"),
    "an empty tensor of sizes that overflow": ("[2,0]", "[2,0,9007199254740992,9007199254740992]"),
    "a negative size": ("[3,2]", "[-3,-2]"),
    "a size that is no whole number": ("[3,2]", "[3.0,2]"),
    "a size that is a truth value": ("[3,2]", "[true,6]"),
    "seventeen sizes": ("[3,2]", f"[3,2{',1' * 15}]"),
    "a leading zero": ("[3,2]", "[03,2]"),
    "digits of another script": ("[3,2]", "[٣,2]"),
    "another shape": ("[3,2]", "[3,3]"),
    "overlap": ("[12,36]", "[8,32]"),
    "a gap": ("[12,36]", "[16,40]"),
    "beyond the end": ("[12,36]", "[12,1036]"),
    "backwards": ("[12,36]", "[36,12]"),
    "another order": (f"{BIAS},{WEIGHT}", f"{WEIGHT},{BIAS}"),
    "twice": (WEIGHT, f"{WEIGHT},{WEIGHT}"),
    "a name twice": ('"encoder.fc.weight"', '"encoder.fc.bias"'),
    "a name twice, of two dtypes": ('"statistic.classes"', '"encoder.fc.bias"'),
    "no name": ('"encoder.fc.bias"', '""'),
    "a name that cannot be printed": ("encoder.fc.bias", "encoder.\x1b[2J"),
    "a name with an escape": ("encoder.fc.bias", "encoder.fc.b\\u0069as"),
    "a name of 300 letters": ("encoder.fc.bias", "e" * 300),
    "a space": ('"dtype":"F32","shape":[3]', '"dtype": "F32","shape":[3]'),
    "another order of words": ('"dtype":"F32","shape":[3]', '"shape":[3],"dtype":"F32"'),
    "a word more": ('"dtype":"F32","shape":[3]', '"dtype":"F32","x":1,"shape":[3]'),
    "more metadata": ('{"fedpriv":', '{"more":"x","fedpriv":'),
    "no metadata": ('"__metadata__"', '"__metadota__"'),
    "nested": (WEIGHT, '"x":' + "[" * 20_000),
}


@pytest.mark.parametrize("what", HEADERS)
def test_headers_that_seal_does_not_write(what: str) -> None:
    header, body = parts(DATA)
    old, new = HEADERS[what]
    assert header.count(old) == 1
    refusal(joined(header.replace(old, new), body))


def test_bytes_around_the_header() -> None:
    header, body = parts(DATA)
    assert joined(header, body) == DATA
    for data in (
        joined(header + " " * 8, body),
        joined(header + "\n", body),
        len(header.encode()).to_bytes(8, "little") + header.encode() + body,
        joined(header.encode().replace(b"encoder.fc.bias", b"encoder.fc.\xff\xfes"), body),
        (2**63).to_bytes(8, "little") + DATA[8:],
        DATA + b"\0",
        DATA[:-1],
        DATA[: len(DATA) // 2],
        DATA[:-1] + b"\2",  # a truth value
        b"",
        DATA[:7],
    ):
        refusal(data)


@pytest.mark.parametrize("filling", ["[", '{"a":', '"a",', ",", '\\"', ',"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'])
def test_a_hostile_header_reserves_no_memory(filling: str) -> None:
    opening = parts(seal(Payload({}, round=1)).data)[0][:-1]
    for start in ("", opening):
        data = joined(start + filling * ((LONGEST_HEADER - len(start) - 9) // len(filling)), b"")
        tracemalloc.start()
        refusal(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * len(data) + 2**17
    refusal(joined(opening + filling * LONGEST_HEADER, b""))


NAMES = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters='"\\'), min_size=1, max_size=20)
SHAPES = st.lists(st.integers(0, 3), max_size=4)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    forms = draw(st.dictionaries(NAMES, st.tuples(st.sampled_from(list(CODES.values())), SHAPES), max_size=6))
    tensors = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in forms.items()}
    number = st.integers(0, 2**31 - 1)
    return Payload(
        tensors,
        draw(number),
        draw(st.none() | number),
        draw(st.sampled_from(["weights", "delta", "gradient", "report"])),
        draw(st.none() | st.integers(1, 2**53)),
        tuple(draw(st.lists(NAMES, max_size=3))),
    )


@pytest.mark.slow
@QUICK
@given(payloads())
def test_whatever_is_sealed_is_unsealed_and_sealed_again_to_the_same_bytes(payload: Payload) -> None:
    sealed = seal(payload)
    again = unseal(bytes(sealed.data))
    assert again == sealed and again.schema == sealed.schema
    assert (again.round, again.client, again.kind) == (payload.round, payload.client, payload.kind)
    assert (again.num_examples, again.transforms) == (payload.num_examples, payload.transforms)
    assert again.schema.keys() == payload.tensors.keys()
    assert all(torch.equal(tensor, payload.tensors[name]) for name, tensor in again.tensors().items())
    assert seal(draft(again)).data == sealed.data


TOKENS = ["0", "1", "-1", "9" * 20, "null", "true", '"', "\\", "{", "}", "[", "]", ",", " ", "F64", "I8", "U64", "1e5", "é", "\0"]
EDITS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 4), st.sampled_from(TOKENS)), min_size=1, max_size=3)


def sealable(data: bytes) -> bool:
    """Whether ``seal`` makes these bytes, if ``unseal`` takes them; where it does not, it says so in a line."""
    try:
        message = unseal(data)
    except Refused as error:
        one_line(error)
        return False
    assert seal(draft(message)).data == data
    return True


@QUICK
@given(st.lists(st.tuples(st.integers(0, 8 * len(DATA) - 1)), min_size=1, max_size=3))
def test_flipped_bits(places: list[tuple[int]]) -> None:
    data = bytearray(DATA)
    for (place,) in places:
        data[place // 8] ^= 1 << place % 8
    sealable(bytes(data))


@QUICK
@given(EDITS)
def test_edited_headers(edits: list[tuple[float, int, str]]) -> None:
    header, body = parts(DATA)
    for where, length, token in edits:
        start = int(where * len(header))
        header = header[:start] + token + header[start + length :]
    sealable(joined(header, body))


@QUICK
@given(EDITS)
def test_edited_facts(edits: list[tuple[float, int, str]]) -> None:
    text = json.dumps(facts_of(DATA))
    for where, length, token in edits:
        start = int(where * len(text))
        text = text[:start] + token + text[start + length :]
    sealable(with_fact_text(DATA, text))


def test_what_no_message_holds_is_not_sealed() -> None:
    tensor = torch.ones(1)
    for payload in (
        Payload({"x": torch.ones(1, dtype=torch.complex64)}, 1),
        Payload({'a"b': tensor}, 1),
        Payload({"a\n": tensor}, 1),
        Payload({"": tensor}, 1),
        Payload({"a" * 300: tensor}, 1),
        Payload({"x": torch.ones([1] * 17)}, 1),
        Payload({"x": tensor}, -1),
        Payload({"x": tensor}, 1, num_examples=0),
        Payload({"x": tensor}, 1, transforms=("two\nlines",)),
        Payload({f"{number:0200}": tensor for number in range(3000)}, 1),
    ):
        with pytest.raises(Refused):
            seal(payload)
