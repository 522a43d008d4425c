"""The regression of a message on gradients: exact where the message is linear in them, and nothing where no candidate is in it.

The clients' messages are made by torch's own SGD, and the coefficients are those of numpy's least squares.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet, ThreatModel, blank
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.gradients.per_sample import LabelledSamples, per_sample
from fedpriv.attacks.inference import gradient_columns as module
from fedpriv.attacks.inference.gradient_regression import gradient_regression
from tests.attacks.sent import clipped, each, only, pruned

CLASSES, INPUTS, N = 3, 20, 24


def net(seed: int = 0) -> SplitNet:
    torch.manual_seed(seed)
    return SplitNet(nn.Sequential(nn.Linear(INPUTS, 30), nn.GELU()), nn.Linear(30, CLASSES)).eval()


def samples(number: int, seed: int) -> LabelledSamples:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % CLASSES
    inputs = torch.randn(number, INPUTS, generator=draw) + 0.5 * labels[:, None]
    return LabelledSamples({"": inputs}, labels, itemgetter(""))


CANDIDATES, PUBLIC = samples(2 * N, 1), samples(N, 2)
MEMBERS = np.arange(2 * N) % 4 < 2


def trained(victim: SplitNet, data: LabelledSamples, steps: int = 1, times: int = 1, **schedule: Any) -> Observation:
    """The message of plain SGD on the data, in ``steps`` batches; the first sample is in its batch so many times."""
    plan = Schedule(lr=0.1, steps=steps, batch_size=len(data) // steps, **schedule)
    before = {name: tensor.detach().clone() for name, tensor in victim.state_dict().items()}
    own = net()
    own.load_state_dict(before)
    decays = [
        {"params": [parameter], "weight_decay": plan.weight_decay if parameter.ndim > 1 else 0.0}
        for parameter in own.parameters()
    ]
    optimiser = torch.optim.SGD(decays, lr=plan.lr, momentum=plan.momentum)
    for batch in torch.split(torch.arange(len(data)), len(data) // steps):
        if times > 1:
            batch = torch.cat([batch, batch[:1].repeat(times - 1)])
        optimiser.zero_grad()
        loss = F.cross_entropy(own(data.inputs[""][batch]), data.labels[batch], reduction="sum") / (len(data) // steps)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    change = {name: tensor.detach() - before[name] for name, tensor in own.state_dict().items()}
    return Observation(
        change, "change", before, blank(victim), (INPUTS,), CLASSES, ThreatModel(), num_examples=len(data), schedule=plan
    )


def chosen(which: np.ndarray) -> LabelledSamples:
    positions = torch.from_numpy(np.flatnonzero(which))
    return LabelledSamples({"": CANDIDATES.inputs[""][positions]}, CANDIDATES.labels[positions], itemgetter(""))


def of(message: Observation, **options: float) -> np.ndarray:
    (scores,) = gradient_regression([message], CANDIDATES, PUBLIC, [net().state_dict()], **options)
    return scores


def gradients(data: LabelledSamples) -> np.ndarray:
    """Per-sample gradients ``(n, p)``, one backward pass a sample."""
    victim, rows = net(), []
    for x, label in zip(data.inputs[""], data.labels, strict=True):
        loss = F.cross_entropy(victim(x[None]), label[None])
        rows.append(torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(victim.parameters()))]).numpy())
    return np.stack(rows).astype(np.float64)


def test_per_sample_gradients_equal_single_backward_passes() -> None:
    names = [name for name, _ in net().named_parameters()]
    parts = list(per_sample(net(), net().state_dict(), names, CANDIDATES, memory=40_000))
    assert len(parts) > 1, "not more at once than fit into the memory"
    result = torch.cat([torch.cat([part[name] for name in names], 1) for part in parts])
    np.testing.assert_allclose(result.numpy(), gradients(CANDIDATES), atol=1e-6)


@pytest.mark.parametrize("schedule", [{}, {"weight_decay": 0.1, "momentum": 0.5}])
def test_one_step_is_solved_exactly(schedule: dict[str, Any]) -> None:
    """The order is that of the coefficients of least squares, which are 1 / N for members and 0 for others."""
    message = trained(net(), chosen(MEMBERS), 1, 1, **schedule)
    decay, start = 0.1 * schedule.get("weight_decay", 0.0), net().state_dict()
    decayed = {name: tensor + decay * start[name] * (tensor.ndim > 1) for name, tensor in message.shared.items()}
    flat = np.concatenate([decayed[name].numpy().ravel() for name, _ in net().named_parameters()]) / -0.1
    coefficients = np.linalg.lstsq(gradients(CANDIDATES).T, flat, rcond=None)[0]
    np.testing.assert_allclose(coefficients, MEMBERS / N, atol=1e-3)
    scores = of(message)
    assert scores[MEMBERS].min() > 0 > scores[~MEMBERS].max()


def test_a_sample_that_is_used_twice_has_the_largest_score() -> None:
    once, twice = (of(trained(net(), chosen(MEMBERS), times=times)) for times in (1, 2))
    first = np.flatnonzero(MEMBERS)[0]
    assert twice[first] > 2 * once[first] > 0


def test_a_message_of_other_samples_shows_nothing() -> None:
    areas = [roc_auc_score(MEMBERS, of(trained(net(), samples(N, seed)))) for seed in range(3, 11)]
    assert 0.4 < float(np.mean(areas)) < 0.6


def noisy(message: Observation, name: str, variance: float, seed: int) -> Observation:
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(message.shared[name].shape, generator=draw) * variance**0.5
    return replace(
        message, shared={**message.shared, name: message.shared[name] + noise}, altered=Altered(variance={name: variance})
    )


def test_a_tensor_with_noise_counts_less_than_the_others() -> None:
    """Without the noise of the first layer's weight, all is exact; an attack that does not know of it finds less."""
    messages = [noisy(trained(net(), chosen(MEMBERS)), "body.0.weight", 1e-2, seed) for seed in range(4)]
    known = np.mean([roc_auc_score(MEMBERS, of(message)) for message in messages])
    unknown = np.mean([roc_auc_score(MEMBERS, of(replace(message, altered=Altered()))) for message in messages])
    assert known > 0.95 and known > unknown + 0.1


def test_noise_on_everything_hides_members() -> None:
    message = trained(net(), chosen(MEMBERS))
    for name in message.shared:
        message = replace(noisy(message, name, 1e2, 1), altered=Altered(variance=dict.fromkeys(message.shared, 1e2)))
    assert roc_auc_score(MEMBERS, of(message)) < 0.7


def test_what_was_not_sent_does_not_count() -> None:
    """Of a pruned message, the zeros in place of what was dropped are no evidence; a masked tensor is absent."""
    message = trained(net(), chosen(MEMBERS))
    scores = of(pruned(message, torch.median))
    assert scores[MEMBERS].min() > scores[~MEMBERS].max()
    assert roc_auc_score(MEMBERS, of(only(message, "body."))) > 0.99


def test_a_head_that_is_like_the_clients_stands_in_for_it() -> None:
    body = only(trained(net(), chosen(MEMBERS)), "body.")
    draw = torch.Generator().manual_seed(3)
    like: dict[str, Tensor] = {
        name: tensor + 0.02 * torch.randn(tensor.shape, generator=draw) if name.startswith("top.") else tensor
        for name, tensor in net().state_dict().items()
    }
    (scores,) = gradient_regression([body], CANDIDATES, PUBLIC, [like])
    assert roc_auc_score(MEMBERS, scores) > 0.9


@pytest.mark.parametrize("factor", [1.0, 0.02])
def test_a_clipped_message_is_read_up_to_its_factor(factor: float) -> None:
    assert roc_auc_score(MEMBERS, of(clipped(trained(net(), chosen(MEMBERS)), factor))) > 0.99


def test_dp_sgd_gradients_are_regressed_on_clipped_ones() -> None:
    clip, rows = 0.5, gradients(chosen(MEMBERS))
    mean = (rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1))[:, None]).mean(0)
    shared, start = {}, 0
    for name, tensor in net().named_parameters():
        shared[name] = torch.from_numpy(-0.1 * mean[start : start + tensor.numel()]).float().reshape(tensor.shape)
        start += tensor.numel()
    message = replace(trained(net(), chosen(MEMBERS)), shared=shared)
    scores = of(message, clip=clip)
    assert scores[MEMBERS].min() > 0 > scores[~MEMBERS].max()


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(INPUTS, 30), nn.BatchNorm1d(30)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = F.gelu(self.norm(self.first(x)))
        return result


def test_batch_statistics_are_those_of_public_samples() -> None:
    """The received running statistics are those of a net that saw no sample, and mislead."""
    torch.manual_seed(0)
    victim, members = SplitNet(Normalised(), nn.Linear(30, CLASSES)).train(), chosen(MEMBERS)
    start = {name: tensor.clone() for name, tensor in victim.state_dict().items() if tensor.is_floating_point()}
    loss = F.cross_entropy(victim(3 * members.inputs[""]), members.labels)
    gradient = dict(zip(dict(victim.named_parameters()), torch.autograd.grad(loss, list(victim.parameters())), strict=True))
    message = Observation(
        gradient, "gradient", start, blank(victim), (INPUTS,), CLASSES, ThreatModel(), num_examples=N, schedule=Schedule(lr=1.0)
    )
    asked, own = (replace(own, inputs={"": 3 * own.inputs[""]}) for own in (CANDIDATES, samples(8 * N, 2)))
    (scores,) = gradient_regression([message], asked, own, [start])
    evaluated = replace(message, net=copy.deepcopy(message.net).eval())
    (misled,) = gradient_regression([evaluated], asked, own, [start])
    assert roc_auc_score(MEMBERS, scores) > max(0.8, roc_auc_score(MEMBERS, misled) + 0.05)


def test_several_steps_are_told_apart_to_first_order() -> None:
    end = {name: net().state_dict()[name] + tensor for name, tensor in trained(net(), PUBLIC, 4).shared.items()}
    (scores,) = gradient_regression([trained(net(), chosen(MEMBERS), 4)], CANDIDATES, PUBLIC, [net().state_dict(), end])
    assert roc_auc_score(MEMBERS, scores) > 0.9


def test_some_entries_are_enough_for_a_net_beyond_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    message = trained(net(), chosen(MEMBERS))
    monkeypatch.setattr(module, "MEMORY", 4 * 3 * N * 200)  # of 723 entries
    scores = of(message)
    assert roc_auc_score(MEMBERS, scores) > 0.99
    kept = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in message.shared.items()}
    np.testing.assert_allclose(of(replace(message, altered=Altered(kept=kept))), scores, rtol=1e-6)


@pytest.mark.parametrize("kept", [False, True])
def test_gradients_of_linear_layers_are_not_written_out(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are those of gradients that are computed sample by sample, also where only some entries were sent."""
    end = {name: net().state_dict()[name] + tensor for name, tensor in trained(net(), PUBLIC, 4).shared.items()}
    message = trained(net(), chosen(MEMBERS), 4)
    sent = {name: torch.rand_like(tensor) < 0.7 for name, tensor in message.shared.items()}
    mount = partial(gradient_regression, [replace(message, altered=Altered(kept=sent)) if kept else message], CANDIDATES, PUBLIC)
    written_out, calls = module.per_sample, list[int]()
    monkeypatch.setattr(module, "per_sample", lambda *of: (calls.append(1), written_out(*of))[1])
    (scores,) = mount([net().state_dict(), end])
    assert not calls
    monkeypatch.setattr(module, "_outer_products", lambda *of: {})
    np.testing.assert_allclose(scores, mount([net().state_dict(), end])[0], rtol=1e-3, atol=1e-3)
    assert len(calls) == 2


class Tied(nn.Module):
    """A layer that is called twice, one whose weight is used once more, and one of several vectors a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.shared, self.along = nn.Linear(30, 30), nn.Linear(30, 30), nn.Linear(10, 10)
        self.alone = nn.Linear(INPUTS, 30)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.tanh(self.twice(torch.tanh(self.alone(x)))))
        x = F.linear(torch.tanh(self.shared(x)), self.shared.weight)
        return self.along(x.view(-1, 3, 10)).flatten(1)


def test_layers_whose_gradients_are_no_outer_products_are_recognised() -> None:
    torch.manual_seed(0)
    victim = nn.Sequential(Tied(), nn.Linear(30, CLASSES)).eval()
    names = [name for name, _ in victim.named_parameters()]
    products = module._outer_products(victim, victim.state_dict(), names, CANDIDATES)
    assert products.keys() == {"0.alone.weight", "0.alone.bias", "0.shared.bias", "1.weight", "1.bias"}
    (alone,) = per_sample(victim, victim.state_dict(), list(products), CANDIDATES, 2**24)
    for name, (left, right) in products.items():
        torch.testing.assert_close((left[:, :, None] * right[:, None]).flatten(1), alone[name], rtol=1e-4, atol=1e-6)


def test_further_messages_change_nothing() -> None:
    message = trained(net(), chosen(MEMBERS))
    kept = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in message.shared.items()}
    kept["body.0.weight"][0] = False
    pruned = replace(message, altered=Altered(kept=kept))
    both = gradient_regression([message, pruned, trained(net(), PUBLIC)], CANDIDATES, PUBLIC, [net().state_dict()])
    for result, sent in zip(both, [message, pruned], strict=False):
        np.testing.assert_allclose(result, of(sent))


def test_what_it_cannot_read_is_refused() -> None:
    message = trained(net(), chosen(MEMBERS))
    with pytest.raises(Inapplicable, match="looks at no label"):
        of(replace(message, loss="simclr, which looks at no label"))
    with pytest.raises(Inapplicable, match="no parameter"):
        of(replace(message, shared={}))
    with pytest.raises(Inapplicable, match="not finite"):
        of(each(message, lambda tensor: tensor * torch.nan))
    with pytest.raises(Inapplicable, match="class 2"):
        gradient_regression([message], CANDIDATES, samples(2, 5), [net().state_dict()])


@pytest.mark.parametrize("broken", [0, 1])
def test_samples_without_a_finite_gradient_are_refused(broken: int) -> None:
    """Also where only the candidates, or only the attacker's own samples, have one."""
    parts = [replace(part, inputs={"": part.inputs[""].clone()}) for part in (CANDIDATES, PUBLIC)]
    parts[broken].inputs[""][0, 0] = float("nan")
    with pytest.raises(Inapplicable, match="not finite"):
        gradient_regression([trained(net(), chosen(MEMBERS))], *parts, [net().state_dict()])
