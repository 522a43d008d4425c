"""Membership by row ratios: exact where a layer shows one sample, told among few, and refused where nothing can be known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.local_run import local_run
from fedpriv.attacks.inference.row_distance import RowDistance
from fedpriv.attacks.lab.nets import observe, perceptron, reference_victim
from fedpriv.attacks.scoring.operating_points import area


def images(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def one_step(n: int, candidates: Tensor, net: SplitNet | None = None) -> Observation:
    """A step on the first ``n`` candidates; the net gets images as they are."""
    return observe(net or perceptron(0), candidates[:n], torch.arange(n) % 10)


def test_the_one_sample_of_a_step_lies_on_a_row() -> None:
    candidates = images(6)
    message = one_step(1, candidates)
    score = RowDistance.of(message, [candidates[:4], candidates[4:]])(message)
    assert score[0] == pytest.approx(0, abs=1e-5) and (score[1:] < -0.3).all()


def test_members_of_a_batch_are_told_and_no_label_is_needed() -> None:
    result, members = [], np.arange(16) < 8
    for seed in range(4):
        candidates = images(16, seed)
        message = one_step(8, candidates)
        result.append(RowDistance.of(message, [candidates])(message))
    assert area(np.concatenate(result), np.tile(members, 4)).low > 0.6


def test_the_input_of_a_later_layer_is_at_the_received_weights() -> None:
    candidates = images(5)
    net = reference_victim(0, layers=2)
    message = one_step(1, candidates, net)
    body = net.body(candidates).detach()
    for parameter in net.parameters():  # what stands in the net means nothing
        nn.init.constant_(parameter, torch.nan)
    rows = RowDistance.of(message, [candidates])
    assert rows.layer == next(name.removesuffix(".weight") for name, p in message.shared.items() if p.ndim == 2)
    assert rows(message)[0] == pytest.approx(0, abs=1e-4) and (rows(message)[1:] < -1e-3).all()
    assert torch.isfinite(rows.fed).all() and body.shape[0] == 5


def test_a_pruned_row_is_compared_where_it_was_sent() -> None:
    candidates = images(6)
    message = one_step(1, candidates)
    kept = {name: tensor.abs() >= tensor.abs().quantile(0.7) for name, tensor in message.shared.items()}
    pruned = replace(message, shared={name: tensor * kept[name] for name, tensor in message.shared.items()})
    rows = RowDistance.of(message, [candidates])
    text = rows(replace(pruned, altered=Altered(kept=kept)))
    assert text[0] == pytest.approx(0, abs=1e-4) and (text[1:] < -0.1).all()
    assert rows(pruned)[0] < -0.1  # what was not sent, taken for zeros


def test_weight_decay_and_momentum_are_undone() -> None:
    candidates = images(4)
    seen = one_step(1, candidates)
    schedule = Schedule(lr=0.1, steps=3, momentum=0.9, weight_decay=0.5)
    target = torch.eye(10)[:1]
    change = local_run(seen.net, seen.weights, list(seen.shared), candidates[:1], target, schedule)
    message = replace(seen, kind="change", shared={name: tensor.detach() for name, tensor in change.items()}, schedule=schedule)
    rows = RowDistance.of(message, [candidates])
    assert rows(message)[0] > -0.02
    assert rows(replace(message, schedule=replace(schedule, weight_decay=0.0)))[0] < -0.05


def test_where_it_cannot_be_mounted_it_says_why() -> None:
    candidates = images(3)
    convolutions = observe(reference_victim(0, masked=1), candidates, torch.arange(3), hidden=True)
    with pytest.raises(Inapplicable, match="no linear layer with a bias was shared"):
        RowDistance.of(convolutions, [candidates])
    deep = one_step(3, candidates, reference_victim(0, layers=2))
    weights = {name: weight for name, weight in deep.weights.items() if name != "body.0.weight"}
    with pytest.raises(Inapplicable, match=r"layers before .* are not known"):
        RowDistance.of(replace(deep, weights=weights), [candidates])
    whole = one_step(3, candidates)
    with pytest.raises(Inapplicable, match=r"body\.1 was not shared"):
        RowDistance.of(whole, [candidates])(replace(whole, shared={}))


def test_where_no_bias_moved_all_candidates_are_alike() -> None:
    candidates = images(3)
    message = one_step(3, candidates)
    still = replace(message, shared={name: torch.zeros_like(tensor) for name, tensor in message.shared.items()})
    np.testing.assert_allclose(RowDistance.of(message, [candidates])(still), -1)


def test_layers_that_are_fed_tokens_are_passed_over() -> None:
    class PerToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each, self.all = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.all(self.each(x).mean(1))
            return out

    net = SplitNet(PerToken(), nn.Linear(3, 2))
    weights = {name: tensor.detach() for name, tensor in net.named_parameters()}
    seen = Observation(weights, "gradient", weights, net, (5, 4), 2, ThreatModel())
    assert RowDistance.of(seen, [torch.rand(6, 5, 4)]).layer == "body.all"
    with pytest.raises(Inapplicable, match="one input vector per sample"):
        RowDistance.of(replace(seen, shared={n: t for n, t in weights.items() if "each" in n}), [torch.rand(6, 5, 4)])


def test_batch_norm_normalises_by_the_batch_as_in_training() -> None:
    net = SplitNet(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 6), nn.ReLU()), nn.Linear(6, 2))
    weights = {name: tensor.detach() for name, tensor in net.named_parameters()}
    seen = Observation(weights, "gradient", weights, net, (3, 2, 2), 2, ThreatModel())
    fed = RowDistance.of(seen, [5 + 3 * torch.rand(40, 3, 2, 2)]).fed
    assert torch.allclose(fed.mean(0), torch.zeros(12).double(), atol=1e-5)
    assert torch.allclose(fed.var(0, unbiased=False), torch.ones(12).double(), atol=1e-3)
