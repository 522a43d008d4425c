"""A client's check of downloads: it refuses weights with marks of an attack, and none of an honest server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpriv.client import client as client_half
from fedpriv.client.suspicion import Mark, check_for_marks, marks
from fedpriv.errors import SuspiciousDownload
from fedpriv.methods import registry
from fedpriv.models.registry import build_model, list_models
from fedpriv.parameters import ParameterSpace
from fedpriv.simulation.simulation import Simulation
from tests.marks import slow_but
from tests.simulation.malicious import malicious_in
from tests.simulation.small import play

Simulate = Callable[..., Simulation]


def of(net: nn.Module) -> tuple[Any, dict[str, Tensor]]:
    """What the check needs to know of a net, and its state."""
    linear = tuple(name for name, module in net.named_modules() if isinstance(module, nn.Linear))
    state = {name: tensor.clone() for name, tensor in net.state_dict().items() if tensor.is_floating_point()}
    space = ParameterSpace.of(net)
    return SimpleNamespace(linear=linear, space=space, initial=space.row_of(net)), state


def nearest(found: list[Mark]) -> float:
    """The largest figure as a share of its limit."""
    return max(mark.value / mark.limit for mark in found)


@pytest.mark.parametrize("name", slow_but(["cnn10", "mlp2", "lenet5"], [spec.name for spec in list_models()]))
def test_initial_nets_have_no_marks(name: str) -> None:
    spec = next(spec for spec in list_models() if spec.name == name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = list(marks(*of(build_model(name, spec.input_shape, spec.classes, predictor=True))))
    assert found and nearest(found) < 0.9


@pytest.mark.parametrize("method", slow_but(["fedavg", "mpfedcon"], sorted(registry.all())))
def test_trained_nets_have_no_marks(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Mark]()
    monkeypatch.setattr(client_half, "check_for_marks", lambda agreement, round, sent: found.extend(marks(agreement, sent)))
    play(tmp_path / "run", method, **{"train.lr": 0.1, "train.rounds": 2, "eval.last": 1})
    assert method == "local" or (found and nearest(found) < 0.6)


def test_the_length_of_a_class_centre_is_no_mark(simulate: Simulate) -> None:
    """The loss takes cosines with it; a client that diverges for a round leaves a long one."""
    simulation = simulate("mpfedcon", **{"train.rounds": 1})
    sent = simulation.federation.method.download(simulation.server, 2)
    assert sent is not None
    centers = sent.tensors["statistic.centers"]
    centers[0] = 1e4 * centers.abs().max()
    check_for_marks(simulation.federation.agreement, 2, {**sent.tensors, "statistic.centers": centers})


def imprinted(sent: Mapping[str, Tensor], noise: float = 0.0) -> dict[str, Tensor]:
    weight = sent["encoder.fc1.weight"]
    row = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(0))
    return {"encoder.fc1.weight": row + noise * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))}


def partly(sent: Mapping[str, Tensor]) -> dict[str, Tensor]:
    weight = sent["encoder.fc1.weight"].clone()
    weight[: len(weight) // 16] = imprinted(sent)["encoder.fc1.weight"][: len(weight) // 16]
    return {"encoder.fc1.weight": weight}


def scaled(name: str, factor: float) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    return lambda sent: {name: torch.cat([sent[name][:1] * factor, sent[name][1:]])}


ALTERED: dict[str, tuple[Callable[[Mapping[str, Tensor]], dict[str, Tensor]], str]] = {
    "alike": (imprinted, "rows have a mean squared cosine of 1"),
    "alike but for noise": (lambda sent: imprinted(sent, 0.5), "rows have a mean squared cosine of 0.6"),
    "partly alike": (partly, "of its rows, .* are parallel to one"),
    "few rows": (lambda sent: {"encoder.fc1.weight": 0 * sent["encoder.fc1.weight"]}, "all but .* of its rows vanish"),
    "equal columns": (
        lambda sent: {"encoder.fc2.weight": sent["encoder.fc2.weight"][:, :1].expand(-1, 512).contiguous()},
        r"encoder\.fc2\.weight: its rows",
    ),
    "one class": (scaled("head.weight", 1000), "what one class adds"),
    "other classes alike": (
        lambda sent: {"head.weight": torch.cat([sent["head.weight"][:1], sent["head.weight"][1:2].expand(9, -1)])},
        "what one class adds .* is 1e\\+06 times",
    ),
    "a class's bias": (lambda sent: {"head.bias": sent["head.bias"] - 30 * torch.eye(10)[0]}, "logits away"),
}


@pytest.mark.parametrize("how", ALTERED)
def test_marks_are_refused(how: str) -> None:
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))
    alter, says = ALTERED[how]
    check_for_marks(agreement, 1, state)
    with pytest.raises(SuspiciousDownload, match=says):
        check_for_marks(agreement, 1, {**state, **alter(state)})


def test_a_bias_is_looked_at_also_where_the_weights_are_not_sent() -> None:
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))
    with pytest.raises(SuspiciousDownload, match=r"head\.bias: one class is .* logits away"):
        check_for_marks(agreement, 1, {"head.bias": state["head.bias"] - 30 * torch.eye(10)[0]})


def test_layers_that_begin_at_zero_are_not_looked_at() -> None:
    """LoRA's second factors: what training adds to them first is nearly one direction."""
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))
    agreement.space.pack({"encoder.fc1.weight": torch.zeros(512, 64)}, agreement.initial)
    check_for_marks(agreement, 1, {**state, **imprinted(state)})


def test_a_kernel_that_copies_is_refused() -> None:
    agreement, state = of(build_model("cnn10", (3, 32, 32), 10))
    kernels = state["encoder.conv1.weight"]
    kernels[:3] = torch.eye(3)[:, :, None, None] * torch.eye(25)[12].view(5, 5)
    with pytest.raises(SuspiciousDownload, match=r"encoder\.conv1\.weight: a share of 1 of a kernel is a single entry"):
        check_for_marks(agreement, 1, state)


def test_a_run_ends_where_its_server_turns_malicious(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False)
    malicious_in(simulation, 2, imprinted)
    simulation.run_round()
    with pytest.raises(SuspiciousDownload, match=r"round 2 is refused.*encoder\.fc1\.weight: its rows") as refused:
        simulation.run_round()
    assert len(str(refused.value).splitlines()) == 1 and refused.value.exit_code == 1


def test_without_the_check_it_goes_on(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"wire.check_downloads": False})
    malicious_in(simulation, 1, imprinted)
    assert simulation.run_round()["round"] == 1


def test_it_draws_nothing_of_the_run(simulate: Simulate) -> None:
    on, off = (simulate("fedavg", **{"train.rounds": 1, "wire.check_downloads": check}) for check in (True, False))
    assert torch.equal(on.server.row, off.server.row)
    assert on.federation.config.fingerprint() == off.federation.config.fingerprint()
