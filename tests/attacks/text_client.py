"""Text clients to attack, whose messages come from torch's own SGD, and a hand-written low-rank adapter."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.observation import Observation, Schedule, SplitNet
from fedpriv.attacks.scoring.text_scores import TextScores, score_text
from fedpriv.attacks.text.victims import SMALL, Size, facts, observe_text, sentences, small_bert

TEXT = facts()


def message(
    lengths: list[int], seed: int = 0, net: SplitNet | None = None, size: Size = SMALL
) -> tuple[Observation, Tensor, Tensor]:
    """A gradient on random sentences, with their ids ``(n, L)`` and labels ``(n,)``."""
    ids, labels = sentences(lengths, seed), torch.arange(len(lengths)) % SMALL.classes
    return observe_text(net or small_bert(seed, size), ids, labels), ids, labels


def whole(observation: Observation) -> SplitNet:
    """The client's net: the architecture with the known weights."""
    net = copy.deepcopy(observation.net)
    net.load_state_dict(dict(observation.weights), strict=False)
    return net


def trained(lengths: list[int], schedule: Schedule, seed: int = 0, size: Size = SMALL) -> tuple[Observation, Tensor, Tensor]:
    """The change after ``schedule.steps`` steps on all sentences, with weight decay on every parameter; ids and labels."""
    observation, ids, labels = message(lengths, seed, size=size)
    net = whole(observation)
    optimiser = torch.optim.SGD(net.parameters(), lr=schedule.lr, momentum=schedule.momentum, weight_decay=schedule.weight_decay)
    for _ in range(schedule.steps):
        optimiser.zero_grad()
        F.cross_entropy(net(ids), labels).backward()
        optimiser.step()
    change = {name: p.detach() - observation.weights[name] for name, p in net.named_parameters()}
    return replace(observation, kind="change", shared=change, schedule=schedule), ids, labels


def without(observation: Observation, part: str) -> Observation:
    """The observation without the tensors whose name contains ``part``."""
    return replace(observation, shared={name: tensor for name, tensor in observation.shared.items() if part not in name})


def scores(attack: TextAttack, observation: Observation, ids: Tensor, labels: Tensor) -> TextScores:
    return score_text(attack.run([observation]), ids, labels, TEXT)


class Adapted(nn.Module):
    """A frozen linear layer plus a low-rank change ``B A`` (LoRA, Hu et al. 2022)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.base(x) + self.lora_B(self.lora_A(x))
        return changed


def adapted(seed: int, rank: int, size: Size = SMALL) -> SplitNet:
    """The small BERT, frozen except for its head and adapters on query and value, whose B is not zero, as after training."""
    net = small_bert(seed, size)
    net.body.requires_grad_(False)
    torch.manual_seed(seed)
    attentions = [module for module in net.modules() if hasattr(module, "query")]
    for attention in attentions:
        attention.query, attention.value = Adapted(attention.query, rank), Adapted(attention.value, rank)
        for adapter in (attention.query, attention.value):
            nn.init.normal_(adapter.lora_B.weight, std=0.02)
    return net
