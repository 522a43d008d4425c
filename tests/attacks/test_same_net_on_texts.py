"""The control on the attacked net for texts: its sentences and messages, and when it passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.altered import Altered
from fedpriv.attacks.core.observation import Observation, Schedule
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.text_reconstruction import TextReconstruction, counts_of
from fedpriv.attacks.lab.same_net import made_up, sentences_on_same_net
from fedpriv.attacks.text.victims import FIRST, LAST, PAD, SMALL, facts, observe_text, small_bert
from tests.attacks.text_client import message

EVEN = torch.ones(SMALL.words)


def weights_of(observation: Observation) -> dict[str, Tensor]:
    return dict(observation.weights)


class Knows(TextAttack):
    """An attack that is told the first ``right`` sentences and keeps what it is given."""

    name = "knows"

    def __init__(self, right: int, order: bool = True, lengths: tuple[int, ...] = (7,)) -> None:
        self.right, self.order, self.given = right, order, list[Observation]()
        self.true = made_up([lengths[i % len(lengths)] for i in range(4)], facts(), EVEN, torch.Generator().manual_seed(0))

    def run(self, observations: list[Observation], seed: int = 0) -> TextReconstruction:
        each = observations[0].num_examples or 1
        own = self.true[len(self.given) * each :][:each].clone()
        if len(self.given) * each >= self.right:
            own[:, 1] = own[:, 2] = LAST + 1
        self.given += observations
        counts = counts_of(own, SMALL.words, PAD)[None]
        return TextReconstruction(own if self.order else None, counts, torch.full((each,), -1), torch.zeros(1), ("",))


def test_made_up_sentences_have_the_requested_lengths() -> None:
    frequency = torch.zeros(SMALL.words)
    frequency[[PAD, FIRST, 7, 9]] = 5
    ids = made_up([6, 4], facts(), frequency, torch.Generator().manual_seed(0))
    assert ids.shape == (2, 6) and ids[1, 4:].tolist() == [PAD, PAD]
    for row, length in zip(ids.tolist(), (6, 4), strict=True):
        assert row[0] == FIRST and row[length - 1] == LAST and set(row[1 : length - 1]) <= {7, 9}
    assert int(made_up([6], facts(), torch.zeros(SMALL.words), torch.Generator()).max()) > LAST, "uniform without public texts"


@pytest.mark.parametrize(("kind", "schedule"), [("gradient", None), ("change", Schedule(lr=0.5, momentum=0.5))])
def test_messages_are_undefended_with_the_same_tensors(kind: str, schedule: Schedule | None) -> None:
    observation, _, _ = message([7])
    shared = {name: tensor + 1 for name, tensor in observation.shared.items() if "word_embeddings" not in name}
    defended = replace(
        observation, shared=shared, kind=kind, schedule=schedule, altered=Altered(variance=dict.fromkeys(shared, 1.0)),
        control_differences=("why",),
    )  # fmt: skip
    attack = Knows(2)
    control = sentences_on_same_net(attack, defended, weights_of(observation), [7], EVEN, 0)
    assert control.passed and "knows recovers 2 of 2 made-up sentences (2 of 4 needed)" in control.sentence
    first = attack.given[0]
    assert first.control_differences == () and not first.altered.variance and first.shared.keys() == shared.keys()
    draw = torch.Generator().manual_seed(0)
    made_up([7] * 4, facts(), EVEN, draw)
    expected = observe_text(small_bert(0), attack.true[:1], torch.randperm(SMALL.classes, generator=draw)[:1])
    for name, tensor in first.shared.items():
        step = expected.shared[name] if schedule is None else -schedule.lr * expected.shared[name]
        exact = {} if schedule else {"rtol": 1e-4, "atol": 1e-10}  # a gradient without the rounding of weights
        torch.testing.assert_close(tensor, step, **({"rtol": 1e-3, "atol": 1e-6} | exact))


def test_the_control_ends_once_too_few_are_left() -> None:
    observation, _, _ = message([7])
    attack = Knows(0)
    control = sentences_on_same_net(attack, observation, weights_of(observation), [7], EVEN, 0)
    assert not control.passed and len(attack.given) == 3 and "recovers 0 of 3 made-up sentences" in control.sentence


def test_as_many_sentences_are_behind_each_message() -> None:
    observation, _, _ = message([7, 5])
    attack = Knows(2, lengths=(7, 5))
    control = sentences_on_same_net(attack, observation, weights_of(observation), [7, 5], EVEN, 0)
    assert control.passed and "2 of 2 made-up sentences, 2 behind one message" in control.sentence


@pytest.mark.parametrize(("right", "passes"), [(2, True), (1, False)])
def test_an_attack_without_order_must_find_every_word(right: int, passes: bool) -> None:
    observation, _, _ = message([7])
    control = sentences_on_same_net(
        Knows(right, order=False), observation, weights_of(observation), [7], EVEN, 0
    )  # fmt: skip
    assert control.passed is passes and "sets of words" in control.sentence


def test_a_refusal_is_a_failure() -> None:
    class Refuses(Knows):
        def run(self, observations: list[Observation], seed: int = 0) -> TextReconstruction:
            raise Inapplicable("no second derivative")

    observation, _, _ = message([7])
    control = sentences_on_same_net(Refuses(4), observation, weights_of(observation), [7], EVEN, 0)
    assert not control.passed and "refused undefended messages of this net (no second derivative)" in control.sentence
