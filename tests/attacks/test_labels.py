"""Label rules, against the labels that made the gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from attacks.altered import Altered
from attacks.label_search import try_labels, try_labels_at_layer
from attacks.labels import (
    bias_counts,
    bias_label,
    count_accuracy,
    distinct_labels,
    embedding_counts,
    guessed_probability,
    idlg_label,
    llg_counts,
    surely_present,
    to_counts,
)
from attacks.observation import Observation, Schedule
from attacks.reconstruction import Inapplicable
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
    assert surely_present(observation).nonzero().flatten().tolist() == [label]
    assert int(try_labels_at_layer(observation).argmin()) == label


def test_random_numbers_give_labels_at_chance() -> None:
    for rule in (idlg_label, bias_label):
        assert sum(rule(noise(seed)) == 3 for seed in range(60)) < 20
    distance = try_labels_at_layer(noise(0), "body.3")
    assert float(distance.min()) > 0.1


def test_labels_survive_local_training() -> None:
    net, x = mlp(classes=C), pictures(1)
    schedule = Schedule(lr=0.01, steps=5, momentum=0.5, weight_decay=1e-3)
    for label in (0, 7):
        sent = change(net, x, torch.tensor([label]), schedule)
        observation = observe(net, sent, kind="change", schedule=schedule, classes=C)
        assert idlg_label(observation) == bias_label(observation) == label


def test_distinct_labels_of_a_batch() -> None:
    assert distinct_labels(message([8, 1, 5, 3])).nonzero().flatten().tolist() == [1, 3, 5, 8]


LABELS = [0, 0, 0, 0, 0, 2, 2, 7, 7, 9, 9, 9]


def truth(labels: list[int] = LABELS, classes: int = C) -> Tensor:
    return torch.bincount(torch.tensor(labels), minlength=classes)


def test_counts_are_exact_where_the_mean_prediction_is_known() -> None:
    observation = message(LABELS)
    logits = functional_call(observation.net, dict(observation.weights), (pictures(len(LABELS)),))
    assert torch.equal(bias_counts(observation, logits.softmax(dim=1).mean(dim=0)), truth())


@pytest.mark.parametrize(("rule", "classes"), [(llg_counts, 100), (bias_counts, C), (embedding_counts, C)])
def test_counts_of_a_batch_at_the_first_round(rule: Callable[[Observation], Tensor], classes: int) -> None:
    scores = []
    for seed in range(10):
        labels = torch.randint(0, classes, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
        counts = rule(message(labels, seed, classes))
        assert int(counts.sum()) == len(labels)
        scores.append(count_accuracy(counts, truth(labels, classes)))
    assert sum(scores) / len(scores) >= 0.9


@pytest.mark.parametrize("rule", [embedding_counts, bias_counts])
def test_clipping_does_not_hide_counts(rule: Callable[[Observation], Tensor]) -> None:
    """An absent class shows by how much; taken for its length the gradient gives hardly more than one class."""
    clipped = message(LABELS)
    clipped = replace(clipped, shared={name: 1e-3 * tensor for name, tensor in clipped.shared.items()})
    adapted = count_accuracy(rule(replace(clipped, altered=Altered(rescaled=True))), truth())
    assert adapted >= 0.9 and count_accuracy(rule(clipped), truth()) < 0.6


@pytest.mark.parametrize("rule", [llg_counts, bias_counts, embedding_counts])
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


@pytest.mark.parametrize("label", [0, 4, 9])
def test_behind_a_known_head_all_labels_are_tried(label: int) -> None:
    full = message([label], seed=label)
    shared = {name: g for name, g in full.shared.items() if name.startswith("body")}
    hidden = observe(full.net, shared, classes=C)
    distance = try_labels_at_layer(hidden)
    assert int(distance.argmin()) == label and float(distance[label]) < 1e-9
    assert float(distance.topk(2, largest=False).values[1]) > 1e-3
    with pytest.raises(Inapplicable, match="logits"):
        idlg_label(hidden)
    body_only = {name: w for name, w in full.weights.items() if name.startswith("body")}
    with pytest.raises(Inapplicable, match=r"top\.weight"):
        try_labels_at_layer(observe(full.net, shared, classes=C, weights=body_only))


def test_try_labels_asks_for_each() -> None:
    assert int(try_labels(C, lambda label: (label - 6) ** 2).argmin()) == 6
