"""Tokens in the bins of an altered feed-forward layer, from a gradient and from a change; the client's check refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.lab.trial import Attacker
from fedpriv.attacks.malicious.token_imprint import TokenImprint
from fedpriv.attacks.text.span import SpanAttack
from fedpriv.attacks.text.victims import SMALL, facts, observe_text, sentences, small_bert
from fedpriv.audit.text.attempts import TextTarget
from fedpriv.client.suspicion import check_for_marks, secret_generator
from fedpriv.errors import SuspiciousDownload
from fedpriv.parameters import ParameterSpace
from tests.attacks.text_client import without

ATTACK = TokenImprint()


class Sentence(TextTarget):
    """A sentence of eight words behind a message of the small net."""

    facts = facts()  # type: ignore[assignment]
    frequency = torch.ones(SMALL.words)  # type: ignore[assignment]


def target(sent: Observation, weights: Mapping[str, Tensor] | None = None) -> TextTarget:
    encoder: Any = None
    return Sentence(
        "", sentences([8], 0), torch.tensor([0]), 1, encoder, lambda threat: iter([sent]), torch.empty(0),
        started=lambda what: weights,
    )  # fmt: skip


def answered(n: int, altered: bool = True) -> tuple[Observation, Tensor]:
    """A gradient on n sentences of 8 tokens on the altered net, and which words are at which positions ``(V, L)``."""
    net, ids, labels = small_bert(0), sentences([8] * n, 0), torch.arange(n) % SMALL.classes
    if altered:
        net.load_state_dict(ATTACK.alter(observe_text(net, ids, labels), sentences([8] * 200, 5)), strict=False)
    true = torch.zeros(SMALL.words, SMALL.length, dtype=torch.bool)
    true[ids, torch.arange(8)] = True
    return observe_text(net, ids, labels), true


def test_more_tokens_than_the_layer_is_wide() -> None:
    message, true = answered(8)
    found = ATTACK.find(without(message, "embeddings"))
    assert int((found & true).sum()) >= 44 and not bool((found & ~true).any())  # of 49 pairs, 64 tokens
    with pytest.raises(Inapplicable):
        SpanAttack().run([answered(8, altered=False)[0]])


def test_a_change_of_rounded_weights() -> None:
    message, true = answered(1)
    change = {name: (message.weights[name] - 0.1 * g) - message.weights[name] for name, g in message.shared.items()}
    schedule = Schedule(lr=0.1)
    sent = Observation(
        change, "change", message.weights, message.net, (facts().length,), SMALL.classes, message.threat,
        schedule=schedule, text=facts(),
    )  # fmt: skip
    assert torch.equal(ATTACK.find(sent), true)


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_that_it_finds_no_token_is_no_evidence_where_the_message_is_unlike_its_control(tolerance: float) -> None:
    schedule = Schedule(lr=0.1, steps=3)
    seen = replace(answered(1)[0], kind="change", schedule=schedule, control_differences=("the client trained with dropout",))
    made = target(seen).run(Attacker(TokenImprint(tolerance=tolerance)))
    said = "the client trained with dropout; it reads the change as one step of SGD, but the client took 3 steps"
    assert [one.text for one in made.reasons] == ([] if tolerance else said.split("; "))


def test_that_it_finds_no_token_is_no_evidence_where_it_finds_none_without_a_defence_either() -> None:
    seen, _ = answered(1)

    def failed(attack: TokenImprint, sent: Observation) -> list[str]:
        made = target(sent, seen.weights).run(Attacker(attack))
        assert made.scores is not None and not bool(made.scores.recall.eq(1).all())
        return [one.text for one in made.reasons]

    (said,) = failed(TokenImprint(tolerance=0.0), seen)
    assert said.startswith("from undefended messages of this net, token-imprint recovers 0 of ")
    draw = torch.Generator().manual_seed(0)
    noisy = {name: one + one.std() * torch.randn(one.shape, generator=draw) for name, one in seen.shared.items()}
    assert not failed(ATTACK, replace(seen, shared=noisy))  # without noise it finds the words on this net


def test_that_the_client_trained_with_dropout_is_still_seen_after_it() -> None:
    seen, _ = answered(1)
    seen.net.train()
    ATTACK.alter(seen, sentences([8] * 200, 5))
    ATTACK.find(seen)
    assert all(module.training for module in seen.net.modules())


def test_a_net_without_positions_is_none_for_it() -> None:
    seen, _ = answered(1)
    assert seen.text is not None
    with pytest.raises(Inapplicable, match="adds no position to a word"):
        ATTACK.find(replace(seen, text=replace(seen.text, positions=None)))


def test_what_an_honest_server_sends_has_no_bins() -> None:
    with pytest.raises(Inapplicable, match="as an honest server sends it"):
        ATTACK.run([answered(1, altered=False)[0]])


def test_a_block_that_is_not_sent_is_in_the_way() -> None:
    message, _ = answered(1)
    with pytest.raises(Inapplicable, match=r"intermediate\.dense\.weight' is not sent"):
        ATTACK.run([without(message, "layer.0.intermediate")])


def test_a_client_refuses_it() -> None:
    net = nn.Module()
    net.encoder = small_bert(0).body
    linear = tuple(name for name, module in net.named_modules() if isinstance(module, nn.Linear))
    space = ParameterSpace.of(net)
    agreement, state = SimpleNamespace(linear=linear, space=space, initial=space.row_of(net)), dict(net.state_dict())
    check_for_marks(agreement, 1, state, secret_generator())
    altered = ATTACK.alter(answered(1, altered=False)[0], sentences([8] * 200, 5))
    sent = state | {name.replace("body.", "encoder."): tensor for name, tensor in altered.items()}
    with pytest.raises(SuspiciousDownload, match="a share of 1 of its rows are parallel to the same other"):
        check_for_marks(agreement, 1, sent, secret_generator())
