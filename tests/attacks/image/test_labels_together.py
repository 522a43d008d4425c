"""Gradient matching computed for all messages at once is that of one message after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.gradients.distances import relative
from fedpriv.attacks.gradients.matching import build_case
from fedpriv.attacks.image.dlg import Dlg, Idlg, label_matching, labels_together
from fedpriv.attacks.lab.attempts import observations
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.setting import Setting
from fedpriv.attacks.optimise.lbfgs import History
from tests.attacks.sent import in_double, messages_of

SIDE = 8


def apart() -> list[Observation]:
    """Three messages of different nets."""
    return observations(*default_images(3, 0, side=SIDE), ThreatModel(), 0, 10, 0)


def of(setting: Setting) -> list[Observation]:
    return messages_of(setting)[0]


@pytest.mark.parametrize(
    ("messages", "known_top"),
    [
        (apart, False),
        (lambda: of(Setting(side=SIDE)), False),
        (lambda: of(Setting(side=SIDE, per_message=2)), False),
        (lambda: of(Setting(side=SIDE, per_message=2, batch_norm=True)), False),
        (lambda: of(Setting(side=SIDE, masked=1, threat=ThreatModel(top="initial"))), True),
    ],
    ids=["nets", "one net", "two images", "BatchNorm", "hidden layer"],
)
def test_losses_and_gradients_are_those_of_one_after_another(messages: Callable[[], list[Observation]], known_top: bool) -> None:
    """Without ``vmap``."""
    case = build_case([in_double(single) for single in messages()], bounded=True)
    case.net.double()
    torch.manual_seed(0)
    single, many = (matching(case, relative, None, known_top) for matching in (label_matching, labels_together))
    x = torch.randn(single.n, single.layout.size, dtype=torch.float64)
    alone = [replace(single.select(torch.tensor([i])), single=True)(torch.arange(1), x[i : i + 1]) for i in range(single.n)]
    values, gradients = (torch.cat(parts) for parts in zip(*alone, strict=True))
    for rows in (torch.arange(single.n), torch.arange(1), torch.arange(1, single.n)):
        value, gradient = many(rows, x[rows])
        torch.testing.assert_close(value, values[rows], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(gradient, gradients[rows], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attack", [Dlg(steps=1, restarts=0), Idlg(steps=1, restarts=0)], ids=["dlg", "idlg"])
def test_no_evaluation_loads_the_compiler(attack: Dlg, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.func.grad`` imports ``torch._dynamo``: two CPU seconds of every command."""
    from torch._functorch import eager_transforms

    monkeypatch.delattr(eager_transforms, "_autograd_grad")
    assert attack.run(apart()).raw.isfinite().all()


def test_a_direction_reads_the_history_four_times() -> None:
    """Products with the newest change are differences of products with gradients, and cost nothing."""
    history, gradient = History(3, torch.zeros(5)), torch.randn(5)
    for _ in range(5):
        move = torch.randn(5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            history.learn(move, 2 * move)
            history.direction(gradient)
        assert sum(event.count for event in seen.key_averages() if event.key == "aten::mv") == 4
        gradient = gradient + 2 * torch.randn(5)
