"""Pruning and quantisation: what arrives, and that the bytes really shrink."""

from __future__ import annotations

import math

import pytest
import torch

from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.wire import Payload, seal
from fedpriv.wire.coding import decoded, pack_codes, unpack_codes
from tests.defenses.upload import Sender, change, received, upload


def test_pruning_sends_the_largest_entries_over_the_whole_net() -> None:
    base = received(60)
    payload = upload(base)
    before = change(payload.tensors, base)
    sender = Sender(base, {"name": "prune", "fraction": 0.1})
    arrived = sender.arrives(payload)
    after = change(arrived, base)
    kept = after != 0
    assert int(kept.sum()) == round(0.1 * len(before))
    assert before[kept].abs().min() >= before[~kept].abs().max() - 1e-6
    torch.testing.assert_close(after[kept], before[kept], rtol=0, atol=1e-6)
    assert arrived.keys() == payload.tensors.keys() and all(arrived[n].shape == base[n].shape for n in base)
    assert torch.equal(arrived["statistic.centers"], payload.tensors["statistic.centers"])
    assert sum(torch.equal(arrived[n].reshape(-1)[i], base[n].reshape(-1)[i]) for n in base for i in range(3)) > 10


def test_pruned_bytes() -> None:
    """8 bytes an entry that is kept, and headers."""
    base = received(100)
    payload = upload(base)
    sent = Sender(base, {"name": "prune", "fraction": 0.05}).send(payload)
    entries = sum(t.numel() for t in base.values())
    assert 0 < sent.nbytes - 8 * round(0.05 * entries) < 2000
    assert sent.nbytes < 0.12 * seal(payload).nbytes
    assert sent.kind == "delta" and sent.transforms == ("prune(0.05)",)
    assert sent.schema["head.weight~indices"][0] == "I32" and sent.schema["head.weight~values"][0] == "F32"
    assert "head.weight" not in sent.schema


def test_pruning_to_less_than_an_entry_keeps_one() -> None:
    base = {"head.weight": torch.zeros(4)}
    sent = Sender(base, {"name": "prune", "fraction": 1e-6}).arrives(Payload({"head.weight": torch.tensor([1.0, -3, 2, 0])}, 1))
    assert sent["head.weight"].tolist() == [0, -3, 0, 0]


@pytest.mark.parametrize("bits", range(2, 9))
def test_codes_survive_packing(bits: int) -> None:
    levels = 2 ** (bits - 1) - 1
    for count in (1, 3, 1000):
        codes = torch.randint(-levels, levels + 1, (count, 2)).float()
        packed = pack_codes(codes, bits)
        assert packed.nbytes == math.ceil(2 * count * bits / 8)
        assert torch.equal(unpack_codes(packed, bits, codes.shape), codes)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantisation_is_unbiased_and_off_by_less_than_a_step(bits: int) -> None:
    base = {name: torch.zeros_like(value) for name, value in received(30).items()}
    payload = upload(base)
    before, levels = change(payload.tensors, base), 2 ** (bits - 1) - 1
    steps = torch.cat([(payload.tensors[n].abs().max() / levels).expand(base[n].numel()) for n in base]).double()
    draws = torch.stack(
        [change(Sender(base, {"name": "quantise", "bits": bits}, seed=seed).arrives(payload), base) for seed in range(200)]
    )
    error = draws - before
    assert (error.abs() <= steps * (1 + 1e-5)).all()
    # Over all entries and draws; the variance of one is at most step^2 / 4.
    z = error.mean() / (steps.square().mean().sqrt() / 2 / math.sqrt(error.numel()))
    assert abs(z) < 4
    assert (error.mean(0).abs() < 6 * steps / 2 / math.sqrt(200)).all()


def test_quantised_bytes() -> None:
    base = received(100)
    payload = upload(base)
    entries = sum(t.numel() for t in base.values())
    for bits, dtype in ((8, "I8"), (4, "U8")):
        sent = Sender(base, {"name": "quantise", "bits": bits}).send(payload)
        assert 0 < sent.nbytes - entries * bits / 8 < 1500
        assert sent.schema[f"encoder.fc1.weight~int{bits}"][0] == dtype
        assert sent.schema["encoder.fc1.weight~scale"] == ("F32", (1,))


@pytest.mark.parametrize("pruned", [False, True])
def test_a_rounded_running_variance_stays_a_variance(pruned: bool) -> None:
    """One channel of a large variance gives the scale of all, which is larger than what the others have."""
    base = {"encoder.norm.running_var": torch.linspace(0.1, 1, 1000)}
    now = torch.full((1000,), 0.05).index_fill(0, torch.tensor(7), 40.0)
    first = [{"name": "prune", "fraction": 0.5}] if pruned else []
    sent = Sender(base, *first, {"name": "quantise", "bits": 3}).arrives(Payload({"encoder.norm.running_var": now}, 1))
    assert sent["encoder.norm.running_var"].min() >= 0
    assert sent["encoder.norm.running_var"][7] == pytest.approx(40, rel=1e-3)
    for sevenths in range(40):  # the product of code and scale is rounded, too: to more than all of some variances
        base = {"encoder.norm.running_var": torch.linspace(0.1, 1 + sevenths / 7, 200)}
        none = Payload({"encoder.norm.running_var": torch.zeros(200)}, 1)
        sent = Sender(base, *first, {"name": "quantise", "bits": 3}).arrives(none)
        assert sent["encoder.norm.running_var"].min() >= 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_running_variance_is_not_negative(dtype: str) -> None:
    """A change that takes all of a variance away may be rounded to more than that."""
    base, now = {"encoder.norm.running_var": torch.linspace(1e-6, 3, 1000)}, torch.zeros(1000)
    sender = Sender(base, {"name": "prune", "fraction": 1}, {"name": "cast", "dtype": dtype})
    arrived = sender.arrives(Payload({"encoder.norm.running_var": now}, 1))["encoder.norm.running_var"]
    assert arrived.min() == 0 and arrived.max() < 3 / 100


def test_no_change_is_sent_as_none() -> None:
    base = received(5)
    arrived = Sender(base, {"name": "quantise"}).arrives(Payload(base, round=1))
    assert all(torch.equal(arrived[n], base[n]) for n in base)


def test_pruned_then_shortened() -> None:
    """Four bits, or half precision, for each value that is left."""
    base = received(50)
    payload = upload(base)
    only_pruned = Sender(base, {"name": "prune", "fraction": 0.1}).arrives(payload)
    for second in ({"name": "quantise", "bits": 4}, {"name": "cast"}):
        sender = Sender(base, {"name": "prune", "fraction": 0.1}, second)
        arrived = sender.arrives(payload)
        error = change(arrived, base) - change(only_pruned, base)
        assert 0 < error.abs().max() < 0.06 / 7 * 1.01
        assert arrived.keys() == payload.tensors.keys()
        assert sender.send(payload).nbytes < Sender(base, {"name": "prune", "fraction": 0.1}).send(payload).nbytes


def test_what_was_not_received_is_sent_whole() -> None:
    base = received(5)
    new = torch.randn(7)
    payload = Payload({**upload(base).tensors, "projector.weight": new}, round=1)
    for transform in ({"name": "prune"}, {"name": "quantise"}):
        assert torch.equal(Sender(base, transform).arrives(payload)["projector.weight"], new)


def test_plain_uploads_are_not_touched() -> None:
    sealed = seal(upload(received(5)))
    assert decoded(sealed, {}).sealed is sealed and decoded(sealed, {}).weights is None


@pytest.mark.parametrize("options", [{"fraction": 0}, {"fraction": 1.5}, {"fraction": -1}])
def test_bad_fractions(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="fraction"):
        build_transforms([{"name": "prune", **options}])


@pytest.mark.parametrize("bits", [1, 9, 3.5])
def test_bad_bits(bits: float) -> None:
    with pytest.raises(UsageError, match="bits"):
        build_transforms([{"name": "quantise", "bits": bits}])
