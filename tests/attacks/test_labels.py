"""Label rules, against the labels that made the gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.api.label_rules import RULES, STATED, infer
from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.inference.labels import (
    Samples,
    batch_labels,
    bias_counts,
    bias_label,
    count_accuracy,
    embedding_counts,
    guessed_probability,
    idlg_label,
    present_classes,
    public_counts,
    row_classes,
    to_counts,
)
from fedpriv.attacks.labels.class_shares import likely_change
from tests.attacks.client import change, gradient, mlp, observe, pictures
from tests.attacks.sent import clipped, noisy, of_unknown_rate, only

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
    result = {True: 0, False: 0}
    for seed in range(100):
        plain = message(labels, seed)
        bias = next(name for name in plain.shared if name.startswith("top.") and name.endswith("bias"))
        drawn = 0.1 * torch.randn(C, generator=torch.Generator().manual_seed(seed))
        noisy = replace(plain, shared={**plain.shared, bias: plain.shared[bias] + drawn})
        text = replace(noisy, altered=Altered(variance={bias: 0.1**2}))
        for knows, seen in ((False, noisy), (True, text)):
            result[knows] += present_classes(seen).nonzero().flatten().tolist() == sorted(set(labels))
    assert result[True] >= better * result[False]


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
    sent = clipped(message(LABELS), 1e-3)
    assert count_accuracy(rule(sent), truth()) >= 0.9
    assert count_accuracy(rule(replace(sent, altered=Altered())), truth()) < 0.6


@pytest.mark.parametrize("rule", [embedding_counts, bias_counts])
@pytest.mark.parametrize("lr", [0.01, 30.0])
def test_an_unknown_learning_rate_does_not_hide_counts(rule: Callable[[Observation], Tensor], lr: float) -> None:
    assert count_accuracy(rule(of_unknown_rate(message(LABELS), lr)), truth()) >= 0.9


@pytest.mark.parametrize("rule", [bias_counts, embedding_counts])
def test_counts_of_unknown_rates_on_random_numbers(rule: Callable[[Observation], Tensor]) -> None:
    scores = [count_accuracy(rule(of_unknown_rate(noise(seed, len(LABELS)), 0.01)), truth()) for seed in range(30)]
    assert sum(scores) / len(scores) < 0.6


def test_labels_after_a_step_of_an_unknown_rate() -> None:
    result = batch_labels(of_unknown_rate(message([3, 5, 7, 9]), 0.01))
    assert result.tolist() == [3, 5, 7, 9]


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
    with pytest.raises(Inapplicable, match="logits"):
        idlg_label(only(message([3]), "body"))


PROTOTYPES = torch.rand(C, 1, 6, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def alike(labels: Tensor, seed: int) -> Tensor:
    """Images ``(n, 1, 6, 6)`` that look like their class."""
    return (0.7 * PROTOTYPES[labels] + 0.3 * pictures(len(labels), seed)).clamp(0, 1)


PUBLIC = Samples(alike(torch.arange(C).repeat_interleave(8), 99), torch.arange(C).repeat_interleave(8))


def of_steps(labels: Tensor, schedule: Schedule, seed: int = 0) -> Observation:
    """The change of a client whose samples look like their classes."""
    net = mlp(classes=C)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    sent = change(net, alike(labels, seed)[order], labels[order], schedule)
    return observe(net, sent, kind="change", schedule=schedule, classes=C, num_examples=len(labels))


def test_counts_find_a_class_that_the_sign_of_the_bias_misses() -> None:
    """A mean prediction of about a tenth is more than a share of 1/21, so the bias gradient of class 1 is positive."""
    labels = [0] * 20 + [1]
    seen = message(labels)
    assert present_classes(seen).nonzero().flatten().tolist() == [0]
    expected = [20, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert embedding_counts(seen).tolist() == public_counts(seen, PUBLIC).tolist() == expected


@pytest.mark.parametrize(("lr", "steps", "momentum"), [(0.2, 24, 0.0), pytest.param(0.01, 60, 0.9, marks=pytest.mark.slow)])
def test_counts_after_training_that_makes_the_net_confident(
    lr: float, steps: int, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The predictions at the start are not those of the steps; the mean over the way is."""
    labels = torch.tensor([0] * 24 + [2] * 12 + [3] * 2 + [7] * 10)
    schedule = Schedule(lr=lr, steps=steps, batch_size=8, momentum=momentum)
    rules: list[Callable[[Observation], Tensor]] = [embedding_counts, lambda seen: public_counts(seen, PUBLIC)]

    def right() -> list[float]:
        messages = [of_steps(labels, schedule, seed) for seed in range(3)]
        return [sum(count_accuracy(rule(seen), truth(labels.tolist())) for seen in messages) / len(messages) for rule in rules]

    along = right()
    monkeypatch.setattr("fedpriv.attacks.labels.class_shares._until", lambda observation: 0.0)
    at_the_start = right()
    assert min(along) >= 0.85 and all(path > start + 0.1 for path, start in zip(along, at_the_start, strict=True))


def test_public_counts_without_bias_or_with_few_entries() -> None:
    net, labels = mlp(classes=C), torch.tensor(LABELS)
    seen = observe(net, gradient(net, alike(labels, 0), labels), classes=C, num_examples=len(LABELS))
    bias = next(name for name in seen.shared if name.startswith("top.") and name.endswith("bias"))
    without = replace(seen, shared={name: tensor for name, tensor in seen.shared.items() if name != bias})
    assert torch.equal(public_counts(without, PUBLIC), truth())
    with pytest.raises(Inapplicable, match="bias gradient"):
        embedding_counts(without)
    weight = bias.replace("bias", "weight")
    kept = torch.rand(seen.shared[weight].shape, generator=torch.Generator().manual_seed(3)) < 0.3
    few = {**seen.shared, weight: seen.shared[weight] * kept}
    pruned = replace(seen, shared=few, altered=Altered(kept={weight: kept}))
    assert torch.equal(public_counts(pruned, PUBLIC), truth())


@pytest.mark.parametrize("rescaled", [False, True])
def test_public_samples_count_nothing_in_random_numbers(rescaled: bool) -> None:
    """Positive: the same labels, in the gradient that they made."""
    altered = Altered(rescaled=rescaled)
    assert torch.equal(public_counts(replace(message(LABELS), altered=altered), PUBLIC), truth())
    seeds = range(30)
    scores = [
        count_accuracy(public_counts(replace(noise(seed, len(LABELS)), altered=altered), PUBLIC), truth()) for seed in seeds
    ]
    assert sum(scores) / len(scores) < 0.6


def test_noise_longer_than_the_change_is_no_path() -> None:
    labels = torch.tensor(LABELS)
    schedule = Schedule(lr=0.01, steps=3, batch_size=4)
    plain = of_steps(labels, schedule)
    known = noisy(plain, 1.0)
    assert all(float(tensor.norm()) < 0.5 * float(known.shared[name].norm()) for name, tensor in likely_change(known).items())
    assert all(torch.equal(tensor, plain.shared[name]) for name, tensor in likely_change(plain).items())


def test_signs_of_rows_need_features_that_are_not_negative() -> None:
    seen = message(LABELS)
    assert torch.equal(row_classes(seen), row_classes(seen, PUBLIC))
    assert torch.equal(row_classes(seen, PUBLIC) & ~(truth() > 0), torch.zeros(C, dtype=torch.bool)), "each is certain"
    net = mlp(classes=C, act=nn.Tanh)
    signed = observe(net, gradient(net, pictures(12), torch.tensor(LABELS)), classes=C, num_examples=12)
    with pytest.raises(Inapplicable, match="never negative"):
        row_classes(signed, PUBLIC)


def test_every_rule_says_what_it_finds_or_why_it_does_not_apply() -> None:
    result = infer(message(LABELS), PUBLIC)
    assert {*result.by, *result.not_applicable} == set(RULES) and list(result.not_applicable) == [STATED]
    assert infer(only(message(LABELS), "body"), PUBLIC).not_applicable.keys() == RULES.keys()
    assert "needs public samples" in infer(message(LABELS), None).not_applicable["last layer: least squares on public samples"]
