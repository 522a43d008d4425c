"""Cells: the victim's message against plain autograd, defences as the wire applies them, and attacks that succeed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from made_cells import write_cell, write_cells
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.cli import main
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.experiments.leakage import CellResult, read_leakage, run_cells
from fedpriv.experiments.leakage.attack import attack_cell
from fedpriv.experiments.leakage.result import difference
from fedpriv.experiments.leakage.spec import Cell
from fedpriv.experiments.leakage.victim import CellImages, observations, pick_images, victim_net
from fedpriv.noise_source import SeededNoise
from fedpriv.wire import Payload, TransformContext

HEAD_FREE = {"name": "head-free", "options": {"steps": 25, "restarts": 0}}


def cell(n: int = 2, attacker: dict[str, Any] | None = None, **parts: Any) -> Cell:
    return Cell.model_validate({"images": {"dataset": "digits", "n": n}, "attacker": attacker or HEAD_FREE, **parts})


@pytest.fixture
def victims() -> CellImages:
    drawn = torch.Generator().manual_seed(0)
    small = F.interpolate(torch.rand(4, 1, 3, 3, generator=drawn), size=8, mode="bilinear")
    return CellImages(small, torch.tensor([3, 1, 4, 1]), 10)


def plain_gradient(net: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    net.zero_grad()
    F.cross_entropy(net(images), labels).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def first(victims: CellImages, n: int) -> CellImages:
    return CellImages(victims.images[:n], victims.labels[:n], victims.classes)


def test_one_step_sends_the_gradient_and_hides_the_top(victims: CellImages) -> None:
    spec = cell(victim={"layers": 2, "masked": 1})
    seen = observations(spec, first(victims, 2))
    true = plain_gradient(victim_net(spec.victim, 10, 1, 8, 8), victims.images[1:2], victims.labels[1:2])
    assert len(seen) == 2 and seen[1].kind == "gradient" and seen[1].labels is None
    assert set(seen[1].shared) == {name for name in true if name.startswith("body.")} == set(seen[1].weights)
    assert sum(name.startswith("top.") for name in true) == 2
    for name, tensor in seen[1].shared.items():
        torch.testing.assert_close(tensor, true[name])


def test_many_steps_send_the_change_of_plain_sgd(victims: CellImages) -> None:
    spec = cell(4, victim={"layers": 1, "masked": 1, "steps": 3, "lr": 0.2, "batch": 2})
    seen = observations(spec, victims)
    net = victim_net(spec.victim, 10, 1, 8, 8)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimiser = torch.optim.SGD(net.parameters(), lr=0.2)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(net(victims.images[2:]), victims.labels[2:]).backward()
        optimiser.step()
    assert len(seen) == 2 and seen[1].kind == "change" and seen[1].num_examples == 2
    assert seen[1].schedule is not None and (seen[1].schedule.steps, seen[1].schedule.lr) == (3, 0.2)
    for name, tensor in seen[1].shared.items():
        torch.testing.assert_close(tensor, dict(net.named_parameters())[name].detach() - before[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("victim", "hidden", "linear_biases"),
    [
        ({"layers": 3, "masked": 2}, 2, 1),
        ({"layers": 3, "masked": 2, "bias": False}, 2, 0),
        ({"layers": 1, "masked": 1, "convolutions": 1}, 2, 0),
    ],
)
def test_hidden_layers_are_not_sent(victims: CellImages, victim: dict[str, Any], hidden: int, linear_biases: int) -> None:
    spec = cell(1, victim=victim)
    net = victim_net(spec.victim, 10, 1, 8, 8)
    layers = [m for m in net.top.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    linears = [m for m in net.body.modules() if isinstance(m, nn.Linear)]
    assert len(layers) == hidden and sum(m.bias is not None for m in linears) == linear_biases
    assert net.body(victims.images).ndim == 2 and net(victims.images).shape == (4, 10)
    assert all(name.startswith("body.") for name in observations(spec, first(victims, 1))[0].shared)


def test_the_same_parameters_whatever_is_hidden(victims: CellImages) -> None:
    """The victims differ in what is sent, not in what they compute."""
    whole, masked, more = (
        victim_net(cell(victim=victim).victim, 10, 1, 8, 8)(victims.images)
        for victim in ({"layers": 1}, {"layers": 1, "masked": 1}, {"layers": 1, "masked": 1, "convolutions": 1})
    )
    torch.testing.assert_close(whole, masked)
    torch.testing.assert_close(whole, more)


@pytest.mark.parametrize("victim", [{"masked": 0}, {"masked": 0, "steps": 2}])
def test_clipping_bounds_the_whole_message(victims: CellImages, victim: dict[str, Any]) -> None:
    (free,), (clipped,) = (
        observations(cell(1, victim=victim, defence=defence), first(victims, 1))
        for defence in ((), ({"name": "clip", "norm": 0.01},))
    )
    norm = torch.cat([t.flatten() for t in clipped.shared.values()]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-4)
    for name, tensor in clipped.shared.items():  # one factor for all of it
        torch.testing.assert_close(F.normalize(tensor.flatten(), dim=0), F.normalize(free.shared[name].flatten(), dim=0))


def test_a_defence_is_the_wires_own(victims: CellImages) -> None:
    reports: list[tuple[str, float]] = []
    defence = ({"name": "gaussian", "variance": 1e-2}, {"name": "quantise", "bits": 4})
    (free,) = observations(cell(1, victim={"masked": 0}), first(victims, 1))
    (noisy,) = observations(
        cell(1, victim={"masked": 0}, defence=defence[:1]), first(victims, 1), lambda *report: reports.append(report)
    )
    added = torch.cat([(noisy.shared[name] - tensor).flatten() for name, tensor in free.shared.items()])
    assert float(added.var()) == pytest.approx(1e-2, rel=0.1) and abs(float(added.mean())) < 0.005
    # The ratio that is reported is that of the transform on this payload.
    zeros = {name: torch.zeros_like(t) for name, t in free.shared.items()}
    context = TransformContext(zeros, tuple(zeros), SeededNoise(torch.Generator()), (), lambda *report: expected.append(report))
    expected: list[tuple[str, float]] = []
    build_transforms(defence[:1])[0](Payload(free.shared, 1, kind="gradient"), context)
    assert reports == expected and len(reports) == 4
    (coded,) = observations(cell(1, victim={"masked": 0}, defence=defence), first(victims, 1))
    assert all(len(tensor.unique()) <= 15 for tensor in coded.shared.values())  # 4 bits: -7 to 7


def test_the_attacker_may_know_the_top(victims: CellImages) -> None:
    (ours,) = observations(cell(1, victim={"masked": 1}), first(victims, 1))
    (theirs,) = observations(cell(1, {"name": "known-head", "top": "initial"}, victim={"masked": 1}), first(victims, 1))
    assert not any(name.startswith("top.") for name in ours.weights)
    assert any(name.startswith("top.") for name in theirs.weights) and ours.shared.keys() == theirs.shared.keys()


@pytest.mark.slow
def test_head_free_recovers_what_a_mask_hides(victims: CellImages) -> None:
    two = first(victims, 2)
    result = attack_cell("a", cell(victim={"layers": 2, "masked": 1}), two)
    recovered = result.recovered()
    assert recovered is not None and (recovered.successes, recovered.n) == (2, 2)
    assert result.curve["median"][-1] < result.curve["median"][0] and len(result.loss) == 2
    assert result.grey == pytest.approx([float((image - 0.5).square().mean()) for image in two.images], rel=1e-4)
    open_, hidden = (attack_cell("l", cell(attacker={"name": "idlg-label"}, victim={"masked": m}), two) for m in (0, 1))
    assert open_.labels_right == 2 and open_.recovered() is None
    assert hidden.inapplicable is not None and hidden.labels() is None


def test_a_batch_is_scored_in_any_order(victims: CellImages, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.attacks.core.reconstruction import Reconstruction
    from fedpriv.attacks.image.head_free import HeadFree

    def swapped(self: HeadFree, seen: Any, seed: int = 0) -> Reconstruction:
        zeros, no_labels = torch.zeros(2), torch.full((4,), -1)
        return Reconstruction(victims.images[[1, 0, 3, 2]], no_labels, zeros, torch.zeros(3, 2), zeros.long(), zeros.long())

    monkeypatch.setattr(HeadFree, "run", swapped)
    result = attack_cell("b", cell(4, victim={"masked": 1, "batch": 2}), victims)
    assert result.mse == [0.0] * 4 and result.psnr == [None] * 4


def test_more_images_include_the_fewer() -> None:
    dataset: Any = SimpleNamespace(
        name="made",
        test_images=torch.arange(10).to(torch.uint8).view(10, 1, 1, 1),
        test_labels=torch.arange(10),
        classes=range(10),
    )
    few, many = (pick_images(dataset, cell(n).images) for n in (3, 7))
    assert torch.equal(few.labels, many.labels[:3]) and torch.equal(few.images.flatten() * 255, few.labels.float())
    with pytest.raises(UsageError, match=r"images\.n = 11: made has 10 test images"):
        pick_images(dataset, cell(11).images)


@pytest.mark.slow
def test_cells_are_run_once(tmp_path: Path) -> None:
    new = {"images": {"n": 2}, "victim": {"masked": 0}, "attacker": {"name": "idlg-label"}}
    path = write_cells(tmp_path, cells={"done": {"attacker": HEAD_FREE}, "new": new})
    write_cell(path, "done", [0.02] * 4)
    experiment = read_leakage(path)
    assert [outcome.state for outcome in run_cells(experiment, workers=0)] == ["done", "left"]
    lines: list[str] = []
    assert [outcome.state for outcome in run_cells(experiment, say=lines.append)] == ["done", "finished"]  # a real process
    result = CellResult.load(experiment.result_file("new"))
    assert result.labels_right == 2 and lines == [f"new: 2 of 2 labels, {result.cpu_seconds:.0f} CPU s"]
    assert difference(experiment.cells["new"], result) is None and result.versions["torch"] == torch.__version__.split("+")[0]
    before = experiment.result_file("new").read_bytes()
    done = CliRunner().invoke(main, ["experiment", "run", str(path)])
    assert done.exit_code == 0 and "2 runs: 2 done before" in done.output
    assert experiment.result_file("new").read_bytes() == before


def test_a_cell_that_changed_is_not_done(tmp_path: Path) -> None:
    write_cell(write_cells(tmp_path, cells={"a": {"attacker": HEAD_FREE}}), "a", [0.02] * 4)
    changed = {"attacker": {**HEAD_FREE, "options": {"steps": 26, "restarts": 0}}}
    experiment = read_leakage(write_cells(tmp_path, cells={"a": changed}))
    assert [outcome.state for outcome in run_cells(experiment, workers=0)] == ["left"]
    change = difference(experiment.cells["a"], CellResult.load(experiment.result_file("a")))
    assert change is not None and change.startswith("attacker.options is {'steps': 25")


def test_cells_have_no_seeds_to_choose(tmp_path: Path) -> None:
    path = write_cells(tmp_path, cells={"a": {"attacker": HEAD_FREE}})
    done = CliRunner().invoke(main, ["experiment", "run", str(path), "--seed", "1"])
    assert done.exit_code == 2 and "have their seeds in images, victim and attacker" in done.stderr
    done = CliRunner().invoke(main, ["experiment", "run", str(path), "--only", "b"])
    assert done.exit_code == 2 and "unknown cell" in done.stderr
