"""Shadow clients: label sets from the change of a body whose head is hidden."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Schedule
from fedpriv.attacks.inference.shadow import ShadowOptions, fit_shadows, score_shadows
from tests.attacks.client import CLASSES, change, mlp, pictures

SCHEDULE = Schedule(lr=0.1, steps=4, batch_size=8, momentum=0.5)
TEMPLATES = pictures(CLASSES, seed=99)


def client(labels: Tensor, seed: int) -> dict[str, Tensor]:
    """What a client shares that holds noisy templates of its classes; its head stays with it."""
    torch.manual_seed(seed)
    y = labels.nonzero().flatten().repeat(8)[:8]
    x = TEMPLATES[y] + 0.2 * torch.randn(8, 1, 6, 6, dtype=torch.float64)
    return {name: t for name, t in change(mlp(), x, y, SCHEDULE).items() if name.startswith("body")}


def shadow_messages(client: Callable[[Tensor, int], dict[str, Tensor]], known: Tensor, seed: int = 0) -> list[dict[str, Tensor]]:
    """One message for each label set."""
    return [client(labels, seed + number) for number, labels in enumerate(known)]


def label_sets(n: int, seed: int) -> Tensor:
    """``(n, C)`` with two classes each."""
    drawn = torch.rand(n, CLASSES, generator=torch.Generator().manual_seed(seed))
    return drawn >= drawn.topk(2, dim=1).values[:, -1:]


def test_label_sets_are_found_far_above_the_baselines() -> None:
    known, tested = label_sets(80, 0), label_sets(40, 1)
    shadows, victims = shadow_messages(client, known), shadow_messages(client, tested, seed=1000)
    for features in ("statistics", "last", "both"):
        report = score_shadows(fit_shadows(shadows, known, ShadowOptions(features=features)), victims, tested)  # type: ignore[arg-type]
        assert report.auc > 0.9 and report.f1 > max(report.majority_f1, report.all_f1) + 0.1
        assert report.clients == 40


@pytest.mark.slow
def test_shuffled_label_sets_teach_nothing() -> None:
    known, tested = label_sets(80, 0), label_sets(40, 1)
    victims = shadow_messages(client, tested, seed=1000)
    wrong = fit_shadows(shadow_messages(client, known), label_sets(80, 7))
    report = score_shadows(wrong, victims, tested)
    assert 0.3 < report.auc < 0.7


def test_a_class_that_all_shadows_hold_is_a_constant() -> None:
    known = label_sets(12, 0)
    known[:, 0] = True
    classifier = fit_shadows(shadow_messages(client, known), known)
    assert classifier.models[0] is None and (classifier.probabilities(shadow_messages(client, known[:2]))[:, 0] == 1).all()
