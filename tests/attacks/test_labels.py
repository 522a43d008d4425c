"""Label rules, against the labels that made the gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.inference.labels import (
    batch_labels,
    bias_counts,
    bias_label,
    count_accuracy,
    embedding_counts,
    guessed_probability,
    idlg_label,
    present_classes,
    to_counts,
)
from tests.attacks.client import change, gradient, mlp, observe, pictures

C = 10


def message(labels: list[int], seed: int = 0, classes: int = C) -> Observation:
    net, y = mlp(classes=classes), torch.tensor(labels)
    return observe(net, gradient(net, pictures(len(labels), seed), y), classes=classes, num_examples=len(labels))


def noise(seed: int, n: int = 1) -> Observation:
    net = mlp(classes=C)
    torch.manual_seed(seed)
    return observe(net, {name: torch.randn_like(p) for name, p in net.named_parameters()}, classes=C, num_examples=n)


@pytest.mark.parametrize("label", range(C))
def test_the_label_of_one_sample_is_always_found(label: int) -> None:
    observation = message([label], seed=label)
    assert idlg_label(observation) == bias_label(observation) == label
    assert present_classes(observation).nonzero().flatten().tolist() == [label]


@pytest.mark.parametrize(("labels", "better"), [([3] * 6, 1.5), ([4, 4, 4, 6, 6, 6], 1.3), ([0, 1, 2, 3, 4, 5], 0.8)])
def test_known_noise_is_not_taken_for_classes(labels: list[int], better: float) -> None:
    """Absent classes have bias gradients of about 0.1; noise of 0.1 makes some of them negative."""
    found = {True: 0, False: 0}
    for seed in range(100):
        plain = message(labels, seed)
        bias = next(name for name in plain.shared if name.startswith("top.") and name.endswith("bias"))
        drawn = 0.1 * torch.randn(C, generator=torch.Generator().manual_seed(seed))
        noisy = replace(plain, shared={**plain.shared, bias: plain.shared[bias] + drawn})
        told = replace(noisy, altered=Altered(variance={bias: 0.1**2}))
        for knows, seen in ((False, noisy), (True, told)):
            found[knows] += present_classes(seen).nonzero().flatten().tolist() == sorted(set(labels))
    assert found[True] >= better * found[False]


def test_random_numbers_give_labels_at_chance() -> None:
    for rule in (idlg_label, bias_label):
        assert sum(rule(noise(seed)) == 3 for seed in range(60)) < 20


def test_labels_survive_local_training() -> None:
    net, x = mlp(classes=C), pictures(1)
    schedule = Schedule(lr=0.01, steps=5, momentum=0.5, weight_decay=1e-3)
    for label in (0, 7):
        sent = change(net, x, torch.tensor([label]), schedule)
        observation = observe(net, sent, kind="change", schedule=schedule, classes=C)
        assert idlg_label(observation) == bias_label(observation) == label


LABELS = [0, 0, 0, 0, 0, 2, 2, 7, 7, 9, 9, 9]


def truth(labels: list[int] = LABELS, classes: int = C) -> Tensor:
    return torch.bincount(torch.tensor(labels), minlength=classes)


def test_counts_are_exact_where_the_mean_prediction_is_known() -> None:
    observation = message(LABELS)
    logits = functional_call(observation.net, dict(observation.weights), (pictures(len(LABELS)),))
    assert torch.equal(bias_counts(observation, logits.softmax(dim=1).mean(dim=0)), truth())


@pytest.mark.parametrize("rule", [bias_counts, embedding_counts])
def test_counts_of_a_batch_at_the_first_round(rule: Callable[[Observation], Tensor]) -> None:
    scores = []
    for seed in range(10):
        labels = torch.randint(0, C, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
        counts = rule(message(labels, seed))
        assert int(counts.sum()) == len(labels)
        scores.append(count_accuracy(counts, truth(labels)))
    assert sum(scores) / len(scores) >= 0.9


@pytest.mark.parametrize("rule", [embedding_counts, bias_counts])
def test_clipping_does_not_hide_counts(rule: Callable[[Observation], Tensor]) -> None:
    """An absent class shows by how much; taken for its length the gradient gives hardly more than one class."""
    clipped = message(LABELS)
    clipped = replace(clipped, shared={name: 1e-3 * tensor for name, tensor in clipped.shared.items()})
    adapted = count_accuracy(rule(replace(clipped, altered=Altered(rescaled=True))), truth())
    assert adapted >= 0.9 and count_accuracy(rule(clipped), truth()) < 0.6


@pytest.mark.parametrize("rule", [embedding_counts, bias_counts])
@pytest.mark.parametrize("lr", [0.01, 30.0])
def test_an_unknown_learning_rate_does_not_hide_counts(rule: Callable[[Observation], Tensor], lr: float) -> None:
    assert count_accuracy(rule(of_unknown_schedule(message(LABELS), lr)), truth()) >= 0.9


@pytest.mark.parametrize("rule", [bias_counts, embedding_counts])
def test_counts_from_random_numbers_of_unknown_length_are_at_chance(rule: Callable[[Observation], Tensor]) -> None:
    scores = [count_accuracy(rule(of_unknown_schedule(noise(seed, len(LABELS)), 0.01)), truth()) for seed in range(30)]
    assert sum(scores) / len(scores) < 0.6


def test_labels_after_a_step_of_an_unknown_rate() -> None:
    found = batch_labels(of_unknown_schedule(message([3, 5, 7, 9]), 0.01))
    assert found.tolist() == [3, 5, 7, 9]


def of_unknown_schedule(seen: Observation, lr: float) -> Observation:
    """The change of one step on a gradient."""
    return replace(seen, kind="change", shared={name: -lr * tensor for name, tensor in seen.shared.items()})


@pytest.mark.parametrize("rule", [bias_counts, embedding_counts])
def test_counts_from_random_numbers_are_at_chance(rule: Callable[[Observation], Tensor]) -> None:
    scores = [count_accuracy(rule(noise(seed, len(LABELS))), truth()) for seed in range(30)]
    assert sum(scores) / len(scores) < 0.6


def test_a_uniform_guess_stands_in_for_unknown_weights() -> None:
    observation = message([1])
    assert guessed_probability(observe(observation.net, dict(observation.shared), weights={}, classes=C)).tolist() == [0.1] * C
    assert float(guessed_probability(observation).sum()) == pytest.approx(1)


def test_largest_remainders() -> None:
    assert to_counts(torch.tensor([0.5, 0.3, 0.2, -0.1]), 7).tolist() == [4, 2, 1, 0]
    assert to_counts(torch.zeros(4), 4).tolist() == [1, 1, 1, 1]
    assert count_accuracy(torch.tensor([2, 0, 1]), torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)


def test_where_the_layer_is_hidden_no_rule_applies() -> None:
    full = message([3])
    shared = {name: g for name, g in full.shared.items() if name.startswith("body")}
    with pytest.raises(Inapplicable, match="logits"):
        idlg_label(observe(full.net, shared, classes=C))
