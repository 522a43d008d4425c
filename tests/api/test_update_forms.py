"""A message in the forms in which training loops have it: a state_dict, lists, prefixes, arrays. Buffers are known as such."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedpriv
from fedpriv.attacks.api.inversion import invert
from fedpriv.attacks.api.tensors import read_message

DRAW = torch.Generator().manual_seed(0)
IMAGES, LABELS = torch.rand(4, 1, 8, 8, generator=DRAW), torch.arange(4)


class Net(nn.Module):
    """With BatchNorm, whose running statistics and count of batches are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Sigmoid())
        self.fc = nn.Linear(144, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.f(x).flatten(1))


@pytest.fixture(scope="module")
def step() -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """A net, its state_dict after one step, and the change of its state_dict."""
    torch.manual_seed(0)
    net = Net().train()
    after = copy.deepcopy(net)
    F.cross_entropy(after(IMAGES), LABELS).backward()
    torch.optim.SGD(after.parameters(), 0.1).step()
    weights = {name: tensor.clone() for name, tensor in after.state_dict().items()}
    return net, weights, {name: tensor - net.state_dict()[name] for name, tensor in weights.items()}


BUFFERS = ["f.1.running_mean", "f.1.running_var", "f.1.num_batches_tracked"]
PARAMETERS = ["f.0.weight", "f.1.weight", "f.1.bias", "fc.weight", "fc.bias"]


class Array:
    """As Flower's: an array that is got by a method."""

    def __init__(self, tensor: Tensor) -> None:
        self._array = tensor.numpy()

    def numpy(self) -> Any:
        return self._array


FORMS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], list[str]]] = {
    "a state_dict": (lambda change: change, BUFFERS),
    "in another order": (lambda change: dict(reversed(change.items())), BUFFERS),
    "an ordered one of arrays": (lambda change: OrderedDict((name, one.numpy()) for name, one in change.items()), BUFFERS),
    "of another library's arrays": (lambda change: {name: Array(one) for name, one in change.items()}, BUFFERS),
    "of lists of numbers": (lambda change: {name: one.tolist() for name, one in change.items()}, BUFFERS),
    "a list of arrays": (lambda change: [one.numpy() for one in change.values()], BUFFERS),
    "a tuple": (lambda change: tuple(change.values()), BUFFERS),
    "without counts": (lambda change: [one for one in change.values() if one.is_floating_point()], BUFFERS[:2]),
    "parameters alone": (lambda change: [change[name] for name in PARAMETERS], []),
    "of DistributedDataParallel": (lambda change: {f"module.{name}": one for name, one in change.items()}, BUFFERS),
    "of a compiled module in Lightning": (
        lambda change: {f"model._orig_mod.{name}": one for name, one in change.items()},
        BUFFERS,
    ),
    "some buffers": (lambda change: {name: change[name] for name in [*PARAMETERS, BUFFERS[1]]}, BUFFERS[1:2]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_message(step: tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]], form: str) -> None:
    net, _, change = step
    made, buffers = FORMS[form]
    found = read_message(net, made(change))
    assert list(found.buffers) == buffers or form == "in another order"
    assert sorted(found.buffers) == sorted(buffers) and sorted(found.parameters) == sorted(PARAMETERS)
    for name, tensor in (found.parameters | found.buffers).items():
        assert np.array_equal(tensor.numpy(), change[name].numpy()), name


def test_what_was_not_sent_is_left_out(step: tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]) -> None:
    net, _, change = step
    sent = [None if name.startswith("fc.") else tensor for name, tensor in change.items()]
    assert list(read_message(net, sent).parameters) == PARAMETERS[:3]


def test_names_without_a_prefix_that_the_nets_have(step: tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]) -> None:
    net, _, change = step
    found = read_message(nn.DataParallel(copy.deepcopy(net)), change)
    assert sorted(found.parameters) == sorted(f"module.{name}" for name in PARAMETERS)


def test_a_list_of_the_parameters_that_are_trained(step: tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]) -> None:
    net, _, change = step
    net = copy.deepcopy(net)
    net.get_submodule("f").requires_grad_(False)
    assert list(read_message(net, [change["fc.weight"], change["fc.bias"]]).parameters) == ["fc.weight", "fc.bias"]


def test_tied_parameters_are_one() -> None:
    net = nn.Sequential(OrderedDict(a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False)))
    net.b.weight = net.a.weight
    state = dict(net.state_dict())
    assert list(state) == ["a.weight", "b.weight"]
    for given in (state, list(state.values()), [state["a.weight"]], {"b.weight": state["b.weight"]}):
        assert list(read_message(net, given).parameters) == ["a.weight"]
    with pytest.raises(ValueError, match=r"b\.weight is the same tensor as a\.weight in the net, and they differ"):
        read_message(net, {"a.weight": torch.zeros(4, 4), "b.weight": torch.ones(4, 4)})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda change: {**change, "f.2.mean": torch.zeros(4)}, "no parameter 'f.2.mean'"),
        (lambda change: {f"module.{name}": one for name, one in change.items()} | {"loss.weight": 1}, "no parameter 'module"),
        (
            lambda change: list(change.values())[:6],
            "a list of 6, and the net has 5 parameters, 8 tensors in its state_dict, 7 of them",
        ),
        (
            lambda change: {**change, "f.1.running_mean": torch.zeros(5)},
            r"f\.1\.running_mean has shape \(5,\), and the net's \(4,\)",
        ),
        (lambda change: {name: change[name] for name in BUFFERS}, "holds no tensor but buffers"),
        (lambda change: {**change, "fc.bias": "abc"}, r"fc\.bias is a str, and no tensor or array"),
        (lambda change: nn.utils.parameters_to_vector(change[name] for name in PARAMETERS), "is a Tensor; give tensors by"),
        (lambda change: (tensor for tensor in change.values()), "is a generator; give tensors by"),
        (lambda change: {"weight": torch.zeros(4), "bias": torch.zeros(4)}, "no parameter 'weight'"),  # of which module
    ],
)
def test_what_fits_in_no_form_is_named(
    step: tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]], given: Callable[[dict[str, Tensor]], Any], why: str
) -> None:
    net, _, change = step
    with pytest.raises(fedpriv.UsageError, match=f"the update cannot be audited: .*{why}"):
        fedpriv.audit_update(net, given(change), (IMAGES, LABELS), lr=0.1, budget=0.01)


def test_a_report_lists_the_buffers_and_that_no_attack_was_on_them(
    step: tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]],
) -> None:
    net, weights, change = step
    payload = fedpriv.Payload(weights, round=1, client=0, num_examples=4)  # which says that it holds new weights
    for update in (change, [one.numpy() for one in change.values()], payload):
        report = fedpriv.audit_update(net, update, (IMAGES, LABELS), lr=0.1, budget=0.01)
        (run,) = report.runs
        listed = {one.name: one for one in run.wire.tensors}
        assert [name for name, one in listed.items() if one.role == "buffer"] == BUFFERS
        assert (listed[BUFFERS[2]].dtype, listed[BUFFERS[2]].bytes, listed[BUFFERS[2]].up) == ("I64", 8, True)
        assert run.cost.bytes_up == 4 * (36 + 4 + 4 + 576 + 4 + 4 + 4) + 8
        assert "no gradient of the loss" in run.not_run["buffers"].text and "buffers (they are" in report.markdown()
    bare = fedpriv.audit_update(net, [change[name] for name in PARAMETERS], (IMAGES, LABELS), lr=0.1, budget=0.01)
    assert "buffers" not in bare.runs[0].not_run


def test_new_weights_are_not_taken_for_a_change(step: tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]) -> None:
    net, weights, _ = step
    for lr in (0.1, None):
        with pytest.raises(fedpriv.UsageError, match=r"these are new weights, 5\.\d% of their norm from the model's own; give"):
            fedpriv.audit_update(net, weights, (IMAGES, LABELS), lr=lr)
    with pytest.raises(ValueError, match="these are new weights"):
        invert(net, [one.numpy() for one in weights.values()], input_shape=(1, 8, 8), lr=0.1)


def test_an_image_is_recovered_from_the_change_of_a_state_dict() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).eval()
    after = copy.deepcopy(net)
    F.cross_entropy(after(IMAGES[:1]), LABELS[:1]).backward()
    torch.optim.SGD(after.parameters(), 0.1).step()
    change = [(tensor - net.state_dict()[name]).numpy() for name, tensor in after.state_dict().items()]
    found = invert(net, change, input_shape=(1, 8, 8), attack="analytic", lr=0.1)
    assert torch.allclose(found.images, IMAGES[:1], atol=1e-3)
