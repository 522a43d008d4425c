"""The prior of inversion by running statistics, against torch's own BatchNorm."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, in_clients_mode
from fedpriv.attacks.gradients.batch_statistics import layer_statistics
from fedpriv.attacks.image import statistics_prior
from fedpriv.attacks.image.inverting_gradients import InvertingGradients
from fedpriv.attacks.image.statistics_prior import statistics_distance
from tests.attacks.test_running_statistics import images, message, net, normalised


def read(sent: Observation) -> dict[str, dict[str, Tensor]]:
    seen = layer_statistics(sent)
    whats = ("mean", "variance", "mean_error", "variance_error")
    return {what: {name: getattr(layer, what).float() for name, layer in seen.items()} for what in whats}


def apart(sent: Observation, pictures: Tensor) -> float:
    return float(statistics_distance(in_clients_mode(sent.net), dict(sent.weights), normalised(pictures), read(sent)))


def test_it_is_zero_at_the_true_images_alone() -> None:
    members = images(4)
    sent = message(net(), members)
    assert apart(sent, members) < 1e-7
    assert apart(sent, images(4, seed=1)) > 1e-2
    assert apart(sent, members.flip(0)) < 1e-7  # the order of a batch does not show


def test_statistics_distance_is_relative_to_the_variances() -> None:
    members, others = images(4), images(4, seed=1)
    start = net()
    sent, distances = message(start, members), []
    ours, theirs = (copy.deepcopy(start).train().body for _ in range(2))
    mine, other = normalised(members), normalised(others)
    with torch.no_grad():
        for first, second in zip(ours, theirs, strict=True):
            if isinstance(first, torch.nn.BatchNorm2d):
                (m, v), (mean, var) = ((x.mean((0, 2, 3)), x.transpose(0, 1).flatten(1).var(1)) for x in (mine, other))
                distances.append(float(((mean - m).square() / v + (var / v - 1).square()).mean()))
            mine, other = first(mine), second(other)
    assert apart(sent, others) == pytest.approx(sum(distances) / 2, rel=1e-3)


def test_what_is_drowned_in_noise_or_was_not_sent_does_not_count() -> None:
    sent = message(net(), images(4))
    blind = {what: {name: torch.full_like(t, torch.inf) for name, t in of.items()} for what, of in read(sent).items()}
    seen = read(sent) | {what: blind[what] for what in ("mean_error", "variance_error")}
    assert float(statistics_distance(in_clients_mode(sent.net), dict(sent.weights), normalised(images(4, seed=1)), seen)) == 0


def test_prior_is_used_only_with_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()
    distance = statistics_prior.statistics_distance

    def counted(*given: object) -> Tensor:
        asked.append(1)
        return distance(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(statistics_prior, "statistics_distance", counted)
    sent = replace(message(net(), images(2)), labels=torch.arange(2))
    few = InvertingGradients(steps=2, running_statistics=1.0)
    with_them = few.run([sent])
    assert asked
    asked.clear()
    for other in (replace(sent, buffers={}), replace(sent, passes=None)):
        assert not torch.equal(few.run([other]).images, with_them.images)
    InvertingGradients(steps=2).run([sent])
    assert not asked
