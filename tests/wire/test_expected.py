"""What each method sends is what its server expects, and anything else is refused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedpriv.methods.mpfedcon import CENTERS, CLASSES, COUNTS
from fedpriv.wire import STATISTIC, Expected, Form, Kind, Payload, Refused, Sealed, seal, unseal
from fedpriv.wire.coding import INDICES, SCALE, is_model
from tests.marks import slow_but
from tests.wire.forging import one_line, resealed
from tests.wire.updates import Played, cases, played

QUICK = ("fedavg", "feddual", "mpfedcon", "fedsiam-da", "counts", "mask of statistics", "prune and quantise", "half")
CASES = slow_but(QUICK, cases())


def refusal(sealed: Sealed, expected: Expected) -> str:
    with pytest.raises(Refused) as caught:
        expected.check(sealed)
    return one_line(caught.value)


def first(update: Played) -> tuple[Sealed, Expected]:
    client = min(update.uploads)
    return update.uploads[client], update.expected[client]


@pytest.mark.parametrize("case", CASES)
def test_what_each_client_sends_is_expected(case: str) -> None:
    update = played(case)
    assert len(update.uploads) > 1
    for client, sealed in update.uploads.items():
        expected = update.expected[client]
        upload = expected.check(sealed)
        assert sealed.names == expected.tensors.keys()
        assert all(
            upload.shapes[name] == tensor.shape
            for name, tensor in update.received.items()
            if name in upload.shapes and is_model(name)
        )
        same_bytes_from_elsewhere = unseal(sealed.data)
        expected.check(same_bytes_from_elsewhere)


@pytest.mark.slow
def test_what_differs_from_client_to_client_and_from_round_to_round() -> None:
    pairs, waiting = played("pairs").expected, played("waiting layers")
    assert {"image", "text"} == {
        branch
        for branch in ("image", "text")
        for expected in pairs.values()
        if not any(f".{branch}." in name for name in expected.tensors)
    }
    assert next(iter(waiting.expected.values())).tensors.keys() < set(waiting.method.shared_names)


def fact_faults(sealed: Sealed) -> Iterator[tuple[str, Sealed]]:
    for round in {0, 1, 2, 3, 99} - {sealed.round}:
        yield f"round {round}", resealed(sealed, round=round)
    for client in (None, 50):
        yield f"client {client}", resealed(sealed, client=client)
    for kind in {"weights", "delta", "gradient", "report"} - {sealed.kind}:
        yield f"kind {kind}", resealed(sealed, kind=kind)
    for number in (None, 10**6, 10**12, 2**53) if sealed.num_examples else (1, 100):
        yield f"{number} samples", resealed(sealed, num_examples=number)
    for transforms in ((*sealed.transforms, "gaussian(1)"), sealed.transforms[:-1] if sealed.transforms else ("clip(1)",)):
        yield f"transforms {transforms}", resealed(sealed, transforms=transforms)


def tensor_faults(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor | None]]:
    """Whatever the tensor is."""
    yield "missing", None
    yield "a dimension more", tensor[None]
    yield "of no number", tensor.new_empty(0, *tensor.shape)
    yield "double", torch.cat([tensor, tensor]) if tensor.dim() else tensor.expand(2)
    other = torch.float64 if tensor.dtype == torch.float32 else torch.float32 if tensor.dtype != torch.int32 else torch.int64
    yield "another dtype", tensor.to(other)
    if tensor.dim() > 1:
        yield "flat", tensor.reshape(-1)
        if tensor.shape[0] != tensor.shape[1]:
            yield "transposed", tensor.transpose(0, 1)
    if tensor.numel() > 1:
        yield "less", tensor[:-1]
        yield "a scalar for all", tensor.reshape(-1)[0]
        yield "one number for all", tensor.reshape(-1)[:1].reshape([1] * max(2, tensor.dim()))
    if tensor.is_floating_point() and tensor.numel():
        for value in (math.nan, math.inf, -math.inf):
            spoiled = tensor.clone()
            spoiled.reshape(-1)[-1] = value
            yield f"{value}", spoiled
        if tensor.numel() > 1 or is_model(name):
            yield "huge", torch.full_like(tensor, 1e38 if tensor.dtype != torch.float16 else 6e4)


def private(update: Played) -> dict[str, Tensor]:
    """A tensor of the net that this client does not send, if there is one."""
    sealed, _ = first(update)
    whole = update.method.context.space
    names = [name for name in whole.names if not any(sent.partition("~")[0] == name for sent in sealed.names)]
    return {name: torch.zeros(whole[name].shape) for name in names[:1]}


@pytest.mark.parametrize("case", CASES)
def test_a_single_fault_is_refused(case: str) -> None:
    update = played(case)
    sealed, expected = first(update)
    for what, wrong in fact_faults(sealed):
        assert refusal(wrong, expected), what
    assert "says client" in refusal(list(update.uploads.values())[1], expected)
    for name, extra in {**private(update), "strange": torch.ones(2), f"{STATISTIC}strange": torch.ones(())}.items():
        assert name in refusal(resealed(sealed, {name: extra}), expected)
    kinds = {(is_model(name), name.rpartition("/")[0] or name.rpartition(".")[2]): name for name in sorted(sealed.names)}
    for name in kinds.values():
        for what, fault in tensor_faults(name, sealed.tensors({name})[name]):
            try:
                reason = refusal(resealed(sealed, {name: fault}), expected)
            except BaseException as error:
                error.add_note(f"{name}: {what}")
                raise
            of_its_kind = STATISTIC if name.startswith(STATISTIC) else name.partition("~")[0]
            assert of_its_kind in reason or (what == "huge" and reason.startswith("the change")), reason


def test_class_numbers_that_cannot_be() -> None:
    sealed, expected = first(played("counts"))
    sent = sealed.tensors()
    classes, centers, counts = sent[CLASSES], sent[CENTERS], sent[COUNTS]
    assert len(classes) > 2
    first_is: Callable[[int], Tensor] = lambda value: torch.cat([torch.tensor([value], dtype=torch.int16), classes[1:]])  # noqa: E731
    faults: list[tuple[dict[str, Tensor | None], str]] = [
        ({CLASSES: first_is(-1)}, "-1 to"),
        ({CLASSES: first_is(10)}, "not 0 to 9"),
        ({CLASSES: first_is(32767)}, "to 32767"),
        ({CLASSES: torch.full_like(classes, 3)}, "rise"),
        ({CLASSES: classes.flip(0)}, "rise"),
        ({CLASSES: classes[:-1]}, "shape"),
        ({CENTERS: centers[:-1]}, "shape"),
        ({COUNTS: counts[:1]}, "shape"),
        ({COUNTS: counts * 0}, "not 1 to"),
        ({COUNTS: -counts}, "not 1 to"),
        ({COUNTS: counts * 0 + 2**31 - 1}, "not 1 to"),
        ({CLASSES: None}, "missing"),
    ]
    for tensors, reason in faults:
        assert reason in refusal(resealed(sealed, tensors), expected)


@pytest.mark.parametrize(
    ("case", "name", "value"),
    [
        ("fednova", "step_weight", -1.0),
        ("fednova", "step_weight", 1e9),
        ("fednova", "step_weight", 1e-45),
        ("half", "step_weight", -1.0),
        ("moved and steps", "moved", -1.0),
        ("moved and steps", "steps", -1),
        ("moved and steps", "steps", 10**9),
    ],
)
def test_statistics_out_of_their_range(case: str, name: str, value: float) -> None:
    sealed, expected = first(played(case))
    name = STATISTIC + name
    right = sealed.tensors()[name]
    wrong = torch.tensor(value, dtype=right.dtype)
    assert name in refusal(resealed(sealed, {name: wrong}), expected)
    expected.check(resealed(sealed, {name: right}))


@pytest.mark.parametrize("case", ["prune", "prune and quantise", "prune and five bits", "prune and half"])
def test_entries_that_are_not_there(case: str) -> None:
    sealed, expected = first(played(case))
    name = next(name for name in sorted(sealed.names) if name.endswith(INDICES) and len(sealed.tensors({name})[name]) > 2)
    indices, size = sealed.tensors({name})[name], expected.received[name.removesuffix(INDICES)].numel()
    for wrong in (indices - 1 - indices[0], indices + size - indices[-1], indices.flip(0), indices * 0):
        assert f"{name} are not rising numbers of 0..{size - 1}" == refusal(resealed(sealed, {name: wrong}), expected)


@pytest.mark.parametrize("case", CASES)
def test_flipped_bits_are_refused_or_a_message_of_the_same_form(case: str) -> None:
    sealed, expected = first(played(case))
    draw = random.Random(case)
    for number in range(25):
        in_header, data = number % 2 == 0, bytearray(sealed.data)
        size = 8 + int.from_bytes(data[:8], "little") if in_header else len(data)
        for _ in range(draw.randint(1, 2)):
            data[draw.randrange(size)] ^= 1 << draw.randrange(8)
        try:
            taken = unseal(bytes(data))
            upload = expected.check(taken)
        except Refused as error:
            one_line(error)
            continue
        facts = (sealed.round, sealed.client, sealed.kind, sealed.transforms)
        assert (taken.round, taken.client, taken.kind, taken.transforms) == facts and taken.schema == sealed.schema
        assert all(bool(tensor.isfinite().all()) for tensor in upload.tensors().values() if tensor.is_floating_point())
        assert bytes(data) == sealed.data or not in_header or taken.num_examples != sealed.num_examples


# --- without any method -------------------------------------------------------------------------------------------------

PLAIN = Expected(4, 2, {"w": Form((2, 3)), "statistic.n": Form(("n",), torch.int64, least=0, rising=True)})


def message(w: Tensor | None = None, n: Tensor | None = None, **facts: int) -> Sealed:
    tensors = {"w": torch.ones(2, 3) if w is None else w, "statistic.n": torch.tensor([1, 3]) if n is None else n}
    return seal(Payload(tensors, **{"round": 4, "client": 2, **facts}))  # type: ignore[arg-type]


def test_reasons_are_short_and_say_both_sides() -> None:
    assert refusal(message(round=3), PLAIN) == "it says round 3, not 4"
    assert refusal(message(num_examples=3), PLAIN) == "it says a number of samples"
    assert refusal(message(), replace(PLAIN, examples=(1, 9))) == "it says no number of samples"
    assert refusal(message(num_examples=10), replace(PLAIN, examples=(1, 9))) == "it says 10 samples, not 1 to 9"
    assert refusal(message(torch.ones(3, 2)), PLAIN) == "w has shape [3, 2], not [2, 3]"
    assert refusal(message(torch.ones(2, 3).half()), PLAIN) == "w is of torch.float16, not torch.float32"
    assert refusal(message(torch.ones(2, 3) * math.inf), PLAIN) == "w is not finite"
    assert refusal(message(n=torch.tensor([-1, 3])), PLAIN) == "statistic.n holds -1 to 3, not 0 to any"
    assert refusal(message(n=torch.tensor([3, 3])), PLAIN) == "statistic.n does not rise from one number to the next"
    assert refusal(message(n=torch.tensor([[3]])), PLAIN) == "statistic.n has shape [1, 1], not [2]".replace("[2]", "[n]")
    PLAIN.check(message(n=torch.empty(0, dtype=torch.int64)))


def test_nothing_may_be_less_than_the_least() -> None:
    """FedNova's client that took no step says 0, but its server divides by what the others say."""
    expected = Expected(1, 1, {"statistic.a": Form((), least=1, most=9, or_zero=True)})
    for value in (0.0, 1.0, 9.0):
        expected.check(seal(Payload({"statistic.a": torch.tensor(value)}, 1, 1)))
    for value in (1e-45, -1.0, 9.5):
        assert "not 1 to 9" in refusal(seal(Payload({"statistic.a": torch.tensor(value)}, 1, 1)), expected)


def test_a_change_that_is_too_long() -> None:
    received = {"w": torch.full((2, 3), 10.0)}
    bounded = replace(PLAIN, received=received, max_update_norm=1.0)
    PLAIN.check(message(torch.full((2, 3), 1e38)))
    bounded.check(message(torch.full((2, 3), 10.4)))
    assert refusal(message(torch.full((2, 3), 10.5)), bounded) == "the change has norm 1.22, over 1"
    assert "3.43e+38" in refusal(message(torch.full((2, 3), 1.4e38)), bounded)
    fresh = replace(bounded, received={})
    assert "the change has norm" in refusal(message(torch.full((2, 3), 10.0)), fresh)
    loose = Expected(
        4, 2, {"statistic.c/w": Form((2,)), "statistic.c/v": Form((2,)), "statistic.one": Form(())}, max_update_norm=1
    )
    statistics = {"statistic.c/w": torch.ones(2) / 2, "statistic.c/v": torch.ones(2) / 2, "statistic.one": torch.tensor(9.0)}
    loose.check(seal(Payload(statistics, 4, 2)))
    statistics["statistic.c/v"] = torch.ones(2)
    assert refusal(seal(Payload(statistics, 4, 2)), loose) == "statistic.c has norm 1.58, over 1"


@pytest.mark.parametrize("kind", ["weights", "delta"])
def test_a_running_variance_below_zero_is_refused_and_a_change_of_one_may_be(kind: Kind) -> None:
    """One such number makes NaN of every sample's logits, of which the largest is that of class 0."""
    name, before = "encoder.norm.running_var", torch.tensor([1.0, 0.5])
    expected = Expected(1, 1, {name: Form((2,))}, {name: before}, kind=kind)
    reference = before if kind == "delta" else torch.zeros(2)
    expected.check(seal(Payload({name: torch.tensor([0.0, 0.1]) - reference}, 1, 1, kind)))
    wrong = seal(Payload({name: torch.tensor([0.1, -0.1]) - reference}, 1, 1, kind))
    assert refusal(wrong, expected) == f"{name} is below zero, and should be a variance"


def test_a_transform_of_elsewhere_may_say_what_it_makes() -> None:
    class Halved:
        def expects(self, expected: Expected, linear: object) -> Expected:
            return replace(
                expected, tensors={name: replace(form, dtype=torch.float16) for name, form in expected.tensors.items()}
            )

        def __str__(self) -> str:
            return "halved"

    class Silent:
        def __str__(self) -> str:
            return "silent"

    expected = Expected(1, 1, {"w": Form((2,))}).through([Silent(), Halved()])
    assert expected.tensors == {"w": Form((2,), torch.float16)} and expected.transforms == ("silent", "halved")
    expected.check(seal(Payload({"w": torch.ones(2).half()}, 1, 1, transforms=("silent", "halved"))))


def test_a_scale_whose_codes_overflow_is_not_finite_once_whole() -> None:
    sealed, expected = first(played("quantise"))
    name = next(name for name in sorted(sealed.names) if name.endswith(SCALE))
    reason = refusal(resealed(sealed, {name: torch.full((1,), 3e38)}), expected)
    assert reason == f"{name.removesuffix(SCALE)} is not finite once it is whole"
