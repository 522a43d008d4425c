"""A client's check of downloads: it refuses weights with marks of an attack, and none of an honest server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpriv.client import receiving
from fedpriv.client.suspicion import Mark, check_for_marks, generator_of_run, marks, secret_generator
from fedpriv.errors import SuspiciousDownload
from fedpriv.methods import registry
from fedpriv.models.registry import build_model, list_models
from fedpriv.parameters import ParameterSpace
from fedpriv.simulation import run
from fedpriv.simulation.simulation import Simulation
from tests.marks import slow_but
from tests.simulation.malicious import malicious_in
from tests.simulation.small import SILENT, config, facts, play, resume

Simulate = Callable[..., Simulation]


def of(net: nn.Module) -> tuple[Any, dict[str, Tensor]]:
    """What the check needs to know of a net, and its state."""
    linear = tuple(name for name, module in net.named_modules() if isinstance(module, nn.Linear))
    state = {name: tensor.clone() for name, tensor in net.state_dict().items() if tensor.is_floating_point()}
    space = ParameterSpace.of(net)
    return SimpleNamespace(linear=linear, space=space, initial=space.row_of(net)), state


def nearest(figures: list[Mark]) -> float:
    """The largest figure as a share of its limit."""
    return max(mark.value / mark.limit for mark in figures)


@pytest.mark.parametrize("name", slow_but(["cnn10", "mlp2", "lenet5"], [spec.name for spec in list_models()]))
def test_initial_nets_have_no_marks(name: str) -> None:
    spec = next(spec for spec in list_models() if spec.name == name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        figures = list(marks(*of(build_model(name, spec.input_shape, spec.classes, predictor=True)), secret_generator()))
    assert figures and nearest(figures) < 0.9


@pytest.mark.parametrize("method", slow_but(["fedavg", "mpfedcon"], sorted(registry.all())))
def test_trained_nets_have_no_marks(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = list[Mark]()

    def collect(agreement: Any, round: int, sent: Mapping[str, Tensor], draw: torch.Generator) -> None:
        figures.extend(marks(agreement, sent, draw))

    monkeypatch.setattr(receiving, "check_for_marks", collect)
    play(tmp_path / "run", method, **{"train.lr": 0.1, "train.rounds": 2, "eval.last": 1, "wire.check_downloads": True})
    assert method == "local" or (figures and nearest(figures) < 0.6)


def test_the_length_of_a_class_centre_is_no_mark(simulate: Simulate) -> None:
    """The loss takes cosines with it; a client that diverges for a round leaves a long one."""
    simulation = simulate("mpfedcon", **{"train.rounds": 1})
    sent = simulation.federation.method.download(simulation.state, 2)
    assert sent is not None
    centers = sent.tensors["statistic.centers"]
    centers[0] = 1e4 * centers.abs().max()
    check_for_marks(simulation.federation.agreement, 2, {**sent.tensors, "statistic.centers": centers}, secret_generator())


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
    "few rows": (lambda sent: {"encoder.fc1.weight": 0 * sent["encoder.fc1.weight"]}, "a share of 1 of its rows vanish"),
    "equal columns": (
        lambda sent: {"encoder.fc2.weight": sent["encoder.fc2.weight"][:, :1].expand(-1, 512).contiguous()},
        r"encoder\.fc2\.weight: its rows",
    ),
    "one class": (scaled("head.weight", 1000), "one class's weights are .* times as far from the median weights"),
    "other classes alike": (
        lambda sent: {"head.weight": torch.cat([sent["head.weight"][:1], sent["head.weight"][1:2].expand(9, -1)])},
        "one class's weights are 1e\\+06 times as far from the median weights as a typical class's",
    ),
    "a class's bias": (lambda sent: {"head.bias": sent["head.bias"] - 30 * torch.eye(10)[0]}, "logits away"),
}


@pytest.mark.parametrize("how", ALTERED)
def test_marks_are_refused(how: str) -> None:
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))
    alter, says = ALTERED[how]
    check_for_marks(agreement, 1, state, secret_generator())
    with pytest.raises(SuspiciousDownload, match=says):
        check_for_marks(agreement, 1, {**state, **alter(state)}, secret_generator())


def test_the_share_of_vanishing_rows_is_named() -> None:
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))
    state["encoder.fc1.weight"][8:] = 0  # 504 of 512 rows, of which a random 256 are looked at
    with pytest.raises(SuspiciousDownload, match=r"encoder\.fc1\.weight: a share of (0\.9[6-9]\d*|1) of its rows vanish"):
        check_for_marks(agreement, 1, state, secret_generator())


def test_a_bias_is_looked_at_also_where_the_weights_are_not_sent() -> None:
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))
    with pytest.raises(SuspiciousDownload, match=r"head\.bias: one class is .* logits away"):
        check_for_marks(agreement, 1, {"head.bias": state["head.bias"] - 30 * torch.eye(10)[0]}, secret_generator())


def test_layers_that_begin_at_zero_are_not_looked_at() -> None:
    """LoRA's second factors: what training adds to them first is nearly one direction."""
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))
    agreement.space.pack({"encoder.fc1.weight": torch.zeros(512, 64)}, agreement.initial)
    check_for_marks(agreement, 1, {**state, **imprinted(state)}, secret_generator())


def test_a_kernel_that_copies_is_refused() -> None:
    agreement, state = of(build_model("cnn10", (3, 32, 32), 10))
    kernels = state["encoder.conv1.weight"]
    kernels[:3] = torch.eye(3)[:, :, None, None] * torch.eye(25)[12].view(5, 5)
    with pytest.raises(SuspiciousDownload, match=r"encoder\.conv1\.weight: a share of 1 of a kernel is a single entry"):
        check_for_marks(agreement, 1, state, secret_generator())


def test_a_run_ends_where_its_server_updates_malicious(simulate: Simulate) -> None:
    simulation = simulate("fedavg", play=False, **{"wire.check_downloads": True})
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
    on, off, unset = (simulate("fedavg", **{"train.rounds": 1, "wire.check_downloads": check}) for check in (True, False, None))
    assert torch.equal(on.state.row, off.state.row) and torch.equal(on.state.row, unset.state.row)
    assert len({run.federation.config.fingerprint() for run in (on, off, unset)}) == 1


# --- where it is not set: an unusual run is the user's own, and goes on ---------------------------------------------------

TOO_FAST = {"method.rule": "adam", "method.server_lr": 10.0, "train.rounds": 4, "data.limit": 200}
"""A server whose learning rate makes the rows of its layers alike, without any attack."""
WARNING = r"round \d: in a deployment, clients would refuse .* encoder\.fc2\.weight: .* \(limit .*wire.check_downloads=true"


@pytest.mark.parametrize("workers", slow_but([1], [1, 2]))
def test_a_simulation_warns_once_and_goes_on(tmp_path: Path, workers: int) -> None:
    warned: list[str] = []
    settings = {**TOO_FAST, "executor.workers": workers, "run_dir": str(tmp_path / "run")}
    outcome = run.start(config("fedopt", **settings), tmp_path, SILENT[0], SILENT[1], warned.append)
    assert outcome.summary is not None and outcome.rounds_done == 4
    (warning,) = [text for text in warned if "deployment" in text]
    assert re.match(WARNING, warning) and len(warning.splitlines()) == 1
    assert warning in outcome.summary["notes"] and facts(tmp_path / "run")["suspicious_download"] == warning


def test_a_resumed_run_does_not_warn_again_and_keeps_the_note(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Stopped

    first: list[str] = []
    with pytest.raises(Stopped):
        run.start(config("fedopt", **TOO_FAST, run_dir=str(tmp_path / "run")), tmp_path, SILENT[0], stop, first.append)
    assert any(re.match(WARNING, text) for text in first)
    again: list[str] = []
    summary = resume(tmp_path / "run", again).summary
    assert summary is not None and set(summary["notes"]) & set(first) and not any(re.match(WARNING, text) for text in again)


def test_where_it_is_set_the_same_run_ends(tmp_path: Path) -> None:
    with pytest.raises(SuspiciousDownload, match=r"is refused as an attack .*encoder\.fc2\.weight"):
        play(tmp_path / "run", "fedopt", **TOO_FAST, **{"wire.check_downloads": True})


def test_where_it_is_off_nothing_is_said(tmp_path: Path) -> None:
    warned: list[str] = []
    off = config("fedopt", **TOO_FAST, **{"wire.check_downloads": False}, run_dir=str(tmp_path / "run"))
    run.start(off, tmp_path, SILENT[0], SILENT[1], warned.append)
    assert not any(re.match(WARNING, text) for text in warned)


def test_the_rows_of_a_simulation_are_drawn_of_its_seed_and_round() -> None:
    """Whether a run ends is a function of its config; in deployments a server cannot know the rows."""
    agreement, state = of(build_model("mlp2", (1, 8, 8), 10, None))

    def figures(draw: torch.Generator) -> list[float]:
        return [mark.value for mark in marks(agreement, state, draw)]

    def seeded(seed: int, round: int) -> list[float]:
        agreement.config = SimpleNamespace(seed=seed)
        return figures(generator_of_run(agreement, round))

    assert seeded(0, 1) == seeded(0, 1)
    assert seeded(0, 1) != seeded(0, 2) and seeded(0, 1) != seeded(1, 1)
    assert figures(secret_generator()) != figures(secret_generator())


def test_the_clients_of_a_simulation_draw_so(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def look(agreement: Any, round: int, sent: Any, draw: torch.Generator) -> None:
        seen.append(draw.get_state().numpy().tobytes())

    monkeypatch.setattr(receiving, "check_for_marks", look)
    for _ in range(2):
        simulate("fedavg", **{"train.rounds": 1, "wire.check_downloads": True})
    half = len(seen) // 2
    assert half and seen[:half] == seen[half:]
