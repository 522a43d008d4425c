"""The last N layers are absent, a mask that leaves nothing is refused, and so is an order that voids a promise."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.config import load_config
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.simulation.setup import build
from tests.defenses.upload import Sender, received, upload
from tests.simulation.small import config


def test_the_last_layers_weights_and_biases_are_absent() -> None:
    base = received(4)
    for last, left in (
        (1, {"encoder.fc1.weight", "encoder.fc1.bias", "encoder.fc2.weight"}),
        (2, {"encoder.fc1.weight", "encoder.fc1.bias"}),
    ):
        sent = Sender(base, {"name": "mask", "last": last}).send(upload(base))
        assert set(sent.tensors()) == left | {"statistic.centers"}
        assert sent.transforms == (f"mask(last {last})",) and b"head" not in sent.data


def test_a_masked_tensor_is_absent_after_pruning_too() -> None:
    base = received(4)
    sent = Sender(base, {"name": "prune"}, {"name": "mask", "last": 1, "names": ["statistic.*"]}).send(upload(base))
    assert b"head" not in sent.data and b"centers" not in sent.data


def test_a_mask_that_leaves_nothing_says_what_is_left() -> None:
    base = received(4)
    with pytest.raises(UsageError, match=r"mask\(last 3\) leaves nothing of the net.*only statistic.centers would be sent"):
        Sender(base, {"name": "mask", "last": 3}).send(upload(base))
    with pytest.raises(UsageError, match="3 fully connected layers"):
        Sender(base, {"name": "mask", "last": 4}).send(upload(base))


@pytest.mark.parametrize(
    ("method", "mask", "error"),
    [
        ("fedavg", {"last": 5}, "leaves nothing of the net to share.*nothing would be sent"),
        ("fedavg", {"last": 6}, "the net has 5 fully connected layers"),
        ("fedrep", {"roles": ["encoder"]}, "leaves nothing of the net to share"),
    ],
)
def test_it_is_refused_before_anything_is_written(method: str, mask: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        build(config(method, **{"wire.transforms": [{"name": "mask", **mask}]}))


def test_the_nets_layers_are_counted_in_forward_order() -> None:
    federation = build(config("fedavg"))
    assert federation.agreement.linear == ("encoder.fc1", "encoder.fc2", "projector.fc1", "projector.fc2", "head")


REFUSED = [
    (["gaussian", "clip"], "bounded before"),
    (["laplace", "clip"], "put clip"),
    (["prune", "gaussian"], "choice of the kept entries"),
    (["quantise", "gaussian"], "rounding"),
    (["cast", "clip"], "rounding"),
    (["quantise", "prune"], "rounding"),
    (["prune", "clip"], "bound"),
    (["prune", "prune"], "once"),
    (["cast", "quantise"], "once"),
    (["clip", "cast", "gaussian"], "rounding"),
]


@pytest.mark.parametrize(("names", "why"), REFUSED)
def test_an_order_that_voids_a_promise(names: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        build_transforms([{"name": name} for name in names])
    with pytest.raises(UsageError, match="after"):
        build(load_config(None, {"wire.transforms": [{"name": name} for name in names]}))


def test_the_order_of_the_design() -> None:
    names = ["mask", "clip", "gaussian", "laplace", "prune", "quantise"]
    built = build_transforms([{"name": n, **({"last": 1} if n == "mask" else {})} for n in names])
    assert [str(transform).split("(")[0] for transform in built] == names
    build_transforms([{"name": "cast"}, {"name": "mask", "last": 1}])
