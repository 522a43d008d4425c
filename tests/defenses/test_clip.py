"""Clipping bounds the norm of the change over the whole net, keeps its direction, and leaves short changes alone."""

from __future__ import annotations

import pytest
import torch

from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.wire import Payload
from tests.defenses.upload import Sender, change, received, upload


def test_clipping_keeps_the_direction_of_a_change() -> None:
    base = received()
    payload = upload(base)
    before = change(payload.tensors, base)
    sender = Sender(base, {"name": "clip", "norm": 0.5})
    after = change(sender.arrives(payload), base)
    assert before.norm() > 1 and sender.reports == {"clipped": 1.0}
    assert float(after.norm()) == pytest.approx(0.5, rel=1e-4)
    torch.testing.assert_close(after, before * (0.5 / before.norm()), rtol=0, atol=5e-7)  # float32 around weights of size 4


def test_a_short_change_is_sent_to_the_bit() -> None:
    base = received(10)
    payload = upload(base)
    sender = Sender(base, {"name": "clip", "norm": 100.0})
    sent = sender.send(payload)
    assert all(torch.equal(tensor, payload.tensors[name]) for name, tensor in sent.tensors().items())
    assert sent.transforms == ("clip(100)",) and sender.reports == {"clipped": 0.0}


def test_statistics_neither_count_nor_change() -> None:
    base = received(5)
    payload = upload(base)
    huge = Payload({**payload.tensors, "statistic.centers": torch.full((3, 2), 1e6)}, round=1)
    sent = Sender(base, {"name": "clip", "norm": 0.05}).arrives(huge)
    assert float(change(sent, base).norm()) == pytest.approx(0.05, rel=1e-4)
    assert sent["statistic.centers"].min() == 1e6


def test_what_was_not_sent_counts_from_zero() -> None:
    """Or it would cross the wire unbounded."""
    sent = Sender({}, {"name": "clip", "norm": 1.0}).arrives(Payload({"head.weight": torch.full((4,), 3.0)}, round=1))
    torch.testing.assert_close(sent["head.weight"], torch.full((4,), 0.5))


@pytest.mark.parametrize("norm", [0, -1, float("inf")])
def test_a_bound_that_is_none(norm: float) -> None:
    with pytest.raises(UsageError, match="norm"):
        build_transforms([{"name": "clip", "norm": norm}])
