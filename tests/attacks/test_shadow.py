"""Shadow clients: label sets from the change of a body whose head is hidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Schedule
from fedpriv.attacks.inference.shadow import Array, Message, ShadowClassifier, ShadowOptions, fit_shadows, score_shadows
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
        assert report.auc is not None and report.auc > 0.9 and report.f1 > max(report.majority_f1, report.all_f1) + 0.1
        assert report.clients == 40


@pytest.mark.slow
def test_shuffled_label_sets_teach_nothing() -> None:
    known, tested = label_sets(80, 0), label_sets(40, 1)
    victims = shadow_messages(client, tested, seed=1000)
    wrong = fit_shadows(shadow_messages(client, known), label_sets(80, 7))
    report = score_shadows(wrong, victims, tested)
    assert report.auc is not None and 0.3 < report.auc < 0.7


def test_a_class_that_all_shadows_hold_is_a_constant() -> None:
    known = label_sets(12, 0)
    known[:, 0] = True
    classifier = fit_shadows(shadow_messages(client, known), known)
    assert classifier.models[0] is None and (classifier.probabilities(shadow_messages(client, known[:2]))[:, 0] == 1).all()


def sets(*rows: str) -> Tensor:
    """Label sets from rows such as ``"1010"``."""
    return torch.tensor([[digit == "1" for digit in row] for row in rows])


class Says(ShadowClassifier):
    """Answers with given label sets, whatever the messages."""

    def __init__(self, answers: Tensor) -> None:
        super().__init__(ShadowOptions(), (), np.zeros(answers.shape[1]))
        object.__setattr__(self, "answers", answers)

    def probabilities(self, messages: Sequence[Message]) -> Array:
        result: Array = self.answers.double().numpy()  # type: ignore[attr-defined]
        return result


def test_classes_without_a_tested_client_do_not_change_f1() -> None:
    tested = sets("110000", "011000", "001100")
    report = score_shadows(Says(tested), [{}] * 3, tested)
    assert report.f1 == report.auc == report.exact == 1.0 and report.majority_f1 == 0.0
    wrong = score_shadows(Says(sets("110001", "011000", "001100")), [{}] * 3, tested)
    assert wrong.f1 == pytest.approx(4 / 5)  # four classes right, and one that nobody holds


def test_exact_sets_are_held_against_the_most_common_one() -> None:
    tested, population = sets("1100", "0110", "1111"), sets("1100", "1100", "0110", "0011", "1111", "1111")
    report = score_shadows(Says(sets("1100", "0110", "0000")), [{}] * 3, tested, population)
    assert (report.clients, report.lacking, report.lacking_exact) == (3, 2, 2)
    assert report.guess == 0.5 and report.p == pytest.approx(0.25)  # two of four; both by chance
    alone = score_shadows(Says(sets("1000")), [{}], sets("1000"), sets("1000", "0100", "0010", "0001"))
    assert alone.p == pytest.approx(0.25)
    none = score_shadows(Says(sets("1111")), [{}], sets("1111"))
    assert (none.lacking, none.guess, none.p, none.auc) == (0, 1.0, 1.0, None)
