"""The wire is real: bytes, order of transforms, both directions, and nothing that was masked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from fedpriv.defenses import build_transforms
from fedpriv.errors import UnknownName, UsageError
from fedpriv.noise_source import SeededNoise
from fedpriv.wire import ByteMeter, Payload, TransformContext, seal, transform_and_seal, unseal
from fedpriv.wire.report import Report


def draft(**facts: object) -> Payload:
    tensors = {"encoder.fc.weight": torch.randn(3, 2), "encoder.fc.bias": torch.randn(3), "head.weight": torch.randn(2, 3)}
    return Payload({**tensors, "statistic.classes": torch.tensor([1, 4], dtype=torch.int16)}, round=3, client=7, **facts)  # type: ignore[arg-type]


def context(_: int = 0) -> TransformContext:
    return TransformContext({}, (), SeededNoise(torch.Generator()))


def test_sealed_bytes_are_a_safetensors_file_that_anybody_reads() -> None:
    payload = draft(num_examples=12)
    sealed = seal(payload)
    read = safetensors.torch.load(sealed.data)
    assert read.keys() == payload.tensors.keys()
    assert all(torch.equal(read[name], payload.tensors[name]) for name in read)
    length = int.from_bytes(sealed.data[:8], "little")
    facts = json.loads(json.loads(sealed.data[8 : 8 + length])["__metadata__"]["fedpriv"])
    assert facts == {"round": 3, "client": 7, "kind": "weights", "num_examples": 12, "transforms": []}
    assert sealed.nbytes == len(safetensors.torch.save(dict(payload.tensors), {"fedpriv": json.dumps(facts)}))


def test_a_view_of_a_row_is_sealed_as_its_own_values() -> None:
    row = torch.arange(12.0)
    sealed = seal(Payload({"a": row[2:8].view(2, 3), "b": row[8:]}, round=1))
    row.zero_()
    assert torch.equal(sealed.tensors()["a"], torch.arange(2.0, 8.0).view(2, 3))


def test_unsealed_bytes_are_the_message_again() -> None:
    payload = replace(draft(num_examples=12, kind="delta"), transforms=("cast(float16)",))
    for sealed in (seal(payload), seal(Payload({}, round=0))):
        again = unseal(bytes(sealed.data))
        assert again == sealed and again.digest == sealed.digest and again.schema == sealed.schema
        assert all(torch.equal(tensor, sealed.tensors()[name]) for name, tensor in again.tensors().items())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\xff" * 64,
        seal(draft()).data[:-1],
        seal(draft()).data + b"\0",
        safetensors.torch.save({"x": torch.ones(2)}),
        safetensors.torch.save({"x": torch.ones(2)}, {"fedpriv": "{}"}),
        safetensors.torch.save({"x": torch.ones(2)}, {"fedpriv": "[1"}),
        safetensors.torch.save({"x": torch.ones(2)}, {"fedpriv": "3"}),
    ],
    ids=["empty", "text", "noise", "short", "long", "no facts", "no round", "no JSON", "no mapping"],
)
def test_what_is_no_sealed_payload_is_refused_in_a_line(data: bytes) -> None:
    with pytest.raises(ValueError, match="safetensors bytes") as caught:
        unseal(data)
    assert len(str(caught.value).splitlines()) == 1


def test_sealed_is_immutable() -> None:
    sealed = seal(draft())
    digest = sealed.digest
    sealed.tensors()["encoder.fc.weight"].zero_()
    assert sealed.digest == digest
    assert sealed.tensors()["encoder.fc.weight"].abs().sum() > 0
    with pytest.raises(AttributeError):
        sealed.data = b""  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_every_dtype_survives_and_empty_tensors_too(dtype: torch.dtype) -> None:
    tensors = {
        "x": torch.tensor([[0, 1], [1, 1]]).to(dtype),
        "none": torch.empty(0, 4, dtype=dtype),
        "scalar": torch.tensor(1).to(dtype),
    }
    read = seal(Payload(tensors, round=1)).tensors()
    assert all(read[n].dtype == dtype and read[n].shape == tensors[n].shape and torch.equal(read[n], tensors[n]) for n in tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_tensors_are_copied_into_their_spans_of_a_row_and_nothing_else(dtype: torch.dtype) -> None:
    tensors = {
        "a": torch.tensor([[1.5, -2.25], [3.0, 0.5]]).to(dtype),
        "b": torch.tensor([7]).to(dtype),
        "c": torch.ones(2, dtype=dtype),
    }
    sealed = seal(Payload({**tensors, "none": torch.empty(0)}, round=1))
    row = torch.full((8,), -9.0)
    sealed.copy_into(row, {"b": slice(0, 1), "a": slice(2, 6), "absent": slice(6, 7), "none": slice(7, 7)})
    assert row.tolist() == [7, -9, *tensors["a"].float().flatten().tolist(), -9, -9]
    assert sealed.names == {"a", "b", "c", "none"}
    assert sealed.tensors({"c", "absent"}).keys() == {"c"}


def test_transforms_run_in_the_configured_order_and_are_noted() -> None:
    transforms = build_transforms(
        [{"name": "cast", "dtype": "float16"}, {"name": "mask", "roles": ["head"], "names": ["*.bias"]}]
    )
    sealed = transform_and_seal(draft(), transforms, context)
    assert sealed.transforms == ("cast(float16)", "mask(head, *.bias)")
    assert sealed.schema == {"encoder.fc.weight": ("F16", (3, 2)), "statistic.classes": ("I16", (2,))}


def test_a_masked_tensor_is_absent_from_the_bytes() -> None:
    masked = transform_and_seal(draft(), build_transforms([{"name": "mask", "roles": ["head"]}]), context)
    assert b"head.weight" not in masked.data
    assert masked.nbytes < seal(draft()).nbytes - 2 * 3 * 4


def test_the_meter_counts_each_message_that_crosses_reports_among_those_that_go_up() -> None:
    meter, message, report = ByteMeter(), seal(draft()), Report(1, 2, 3, 0.5).seal()
    for direction, sealed in (("down", message), ("down", message), ("up", message), ("report", report)):
        meter(direction, sealed)  # type: ignore[arg-type]
    assert meter.read() == (message.nbytes + report.nbytes, 2 * message.nbytes)
    assert meter.read() == (0, 0)


def test_a_report_says_what_was_put_in_to_the_last_bit() -> None:
    report = Report(7, 3, 41, 1 / 3, keeps=True, spent=[(0.1, 12), (0.2, 3)], numbers={"snr_db/encoder.fc1": -2.5e-300})
    assert Report.of(unseal(report.seal().data)) == report
    assert Report.of(Report(1, 0, 5, diverged=True).seal()) == Report(1, 0, 5, diverged=True, spent=[])
    with pytest.raises(ValueError, match="not a report"):
        Report.of(seal(draft()))


def test_a_pattern_that_masks_nothing_is_an_error() -> None:
    """It would pass for a defence; one that fits a layer which is not sent anyway is fine."""
    with pytest.raises(UsageError, match=r"'haed\.\*' matches no tensor"):
        transform_and_seal(draft(), build_transforms([{"name": "mask", "names": ["head.*", "haed.*"]}]), context)
    shared = Payload({"encoder.fc.bias": torch.randn(3)}, round=1)
    layers = TransformContext({}, ("encoder.fc.bias", "head.weight"), SeededNoise(torch.Generator()))
    sealed = transform_and_seal(shared, build_transforms([{"name": "mask", "names": ["head.*"]}]), lambda _: layers)
    assert set(sealed.tensors()) == set(shared.tensors)


def test_bad_transforms_are_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'mask'"):
        build_transforms([{"name": "mak"}])
    with pytest.raises(UnknownName, match=r"wire.transforms\[0\].*roles"):
        build_transforms([{"name": "mask", "role": ["head"]}])
    with pytest.raises(UsageError, match="unknown role 'haed'"):
        build_transforms([{"name": "mask", "roles": ["haed"]}])
    with pytest.raises(UsageError, match="masks nothing"):
        build_transforms([{"name": "mask"}])
    with pytest.raises(UsageError, match="no name"):
        build_transforms([{"roles": ["head"]}])
