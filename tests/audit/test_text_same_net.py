"""When an attack that finds no sentence is held against the true ones, and against the net that it attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.observation import Observation, Schedule, ThreatModel
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.core.text_reconstruction import TextReconstruction, counts_of
from fedpriv.attacks.lab.control import Control
from fedpriv.attacks.lab.setting import TextSetting
from fedpriv.attacks.lab.trial import Attacker, Trial
from fedpriv.attacks.text.gradient_span import first_span, word_distances
from fedpriv.attacks.text.rank import total_tokens
from fedpriv.attacks.text.span import SpanAttack
from fedpriv.audit.text.attempts import TextAttempt
from fedpriv.audit.text.samples import requests
from fedpriv.audit.text.target import Steps, made_up
from fedpriv.models.text.tiny import tiny_encoder

CUT = Reason("budget spent", "cut: the audit's budget of 1 s was spent")


class Fails(TextAttack):
    """A search that ends at a sentence of one word, with a loss of its own choice."""

    name = "span"
    control = TextSetting()
    max_batch = None
    finds_order = True

    def __init__(self, loss: float) -> None:
        self.loss, self.met = loss, 0

    def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
        self.met += len(observations)
        text = observations[0].text
        assert text is not None
        ids = torch.tensor([[*text.opening, 7, *text.closing]])
        counts = counts_of(ids, len(observations[0].weights[text.words]), text.pad)[None]
        return TextReconstruction(ids, counts, torch.tensor([0]), torch.tensor([self.loss]), ("",))


@pytest.fixture(autouse=True)
def easy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the small net of its controls, every attack succeeds."""
    monkeypatch.setattr("fedpriv.audit.text.attempts.sized_control", lambda *asked: Control("positive", True, "found", None))


def failed(attack: Fails, noise: float = 0.0, cut: Reason | None = None, **of_target: Any) -> TextAttempt:
    """The attempt; ``cut`` is why nothing further may begin once the attack has."""
    target = replace(made_up(Steps(2, 1, noise=noise)), **of_target)
    return target.run(Attacker(attack), Trial(cut=lambda: cut if attack.met else None))


def reason(attempt: TextAttempt) -> Reason:
    """The only one why the failure is no evidence."""
    (why,) = attempt.reasons
    return why


def test_a_search_that_the_true_text_beats_did_not_converge() -> None:
    attack = Fails(1e-6)
    why = reason(failed(attack))
    assert why.text.startswith(
        "its search did not converge: it left 1e-06 of the gradient unexplained, and the true text leaves "
    )
    assert why.kind == "differs from controls"
    assert attack.met == 2, "that needs no further control"


@pytest.mark.parametrize(("loss", "noise"), [(torch.nan, 0.0), (1e-14, 0.0), (0.5, 1e-2)])
def test_who_fails_on_undefended_messages_of_the_net_too_shows_nothing(loss: float, noise: float) -> None:
    """Also where nothing is minimised, the message does not tell sentences apart, or noise hides how well they fit."""
    attack = Fails(loss)
    said = "from undefended messages of this net, span recovers 0 of 3 made-up sentences (2 of 4 needed)"
    assert reason(failed(attack, noise)) == Reason("same net", said)
    assert attack.met == 2 + 3


def test_who_finds_undefended_sentences_of_the_net_shows_that_a_defence_holds() -> None:
    span = SpanAttack(**SpanAttack.audit_options)

    class Hidden(Fails):
        """Finds sentences, but not those behind the two messages."""

        def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
            return super().run(observations, seed) if self.met < 2 else span.run(observations, seed)

    attempt = failed(Hidden(torch.nan))
    assert not attempt.reasons and attempt.scores is not None


def test_no_control_begins_once_the_time_is_spent() -> None:
    attack = Fails(torch.nan)
    said = f"it was not tried on undefended messages of this net ({CUT})"
    assert reason(failed(attack, cut=CUT)) == Reason("budget spent", said)
    assert attack.met == 2


def test_no_attack_begins_once_the_time_is_spent() -> None:
    attack = Fails(torch.nan)
    made = made_up(Steps(2, 1)).run(Attacker(attack), Trial(cut=lambda: CUT))
    assert (made.inapplicable, attack.met) == (CUT, 0)


def test_beside_an_image_there_is_no_control() -> None:
    class Tokens(Fails):
        name = "any"
        finds_order = False

    said = "it was not tried on undefended messages of this net, which also takes an image with each text"
    assert reason(failed(Tokens(torch.nan), beside="an image")) == Reason("no control", said)


def test_who_finds_no_words_in_several_steps_is_tried_on_several_undefended_steps_of_the_net() -> None:
    """It does not read the change as one step, so that the number of steps alone is no reason."""
    schedules = []

    class Tokens(Fails):
        name = "any"
        finds_order = False

        def run(self, observations: Sequence[Observation], seed: int = 0) -> TextReconstruction:
            schedules.extend(observation.schedule for observation in observations)
            return super().run(observations, seed)

    target, steps = made_up(Steps(2, 1)), Schedule(lr=0.1, steps=3, batch_size=1)

    def observe(threat: ThreatModel) -> Iterator[Observation]:
        for seen in target.observe(threat):
            yield replace(seen, kind="change", schedule=steps)

    attack = Tokens(torch.nan)
    assert reason(failed(attack, observe=observe)).kind == "same net"
    assert schedules == [steps] * (2 + 3)


def test_without_the_private_layers_there_is_no_control() -> None:
    why = reason(failed(Fails(torch.nan), started=lambda what: None))
    assert why.kind == "no control" and "private layers were not kept" in why.text


@pytest.mark.slow
def test_gpt2s_linear_layers_have_their_weights_transposed(tmp_path: Path) -> None:
    import transformers

    tokenizer, _ = tiny_encoder(requests()[0])
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=48, n_layer=2, n_head=4, n_positions=64, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    target = made_up(Steps(2, 1, encoder=str(tmp_path), mask_embeddings=True))
    for ids, observation in zip(target.ids, target.observe(ThreatModel()), strict=True):
        length = int(ids.ne(target.facts.pad).sum())
        span = first_span(observation)
        assert span.basis.shape == (48, length) and total_tokens(observation) == length
        assert float(word_distances(observation, span, length)[ids[:length], torch.arange(length)].max()) < 1e-2


@pytest.mark.slow
def test_words_without_their_order_are_no_evidence_where_positions_are_relative(tmp_path: Path) -> None:
    """The first layers of such an encoder show words without their places, which the controls' BERT shows."""
    import transformers

    tokenizer, _ = tiny_encoder(requests()[0])
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id, bos_token_id=2, eos_token_id=3, cls_token_id=2,
        sep_token_id=3,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    target = made_up(Steps(2, 1, encoder=str(tmp_path), mask_embeddings=True))
    few = Attacker(SpanAttack(steps=2, starts=1, sweeps=0, budget=10))
    attempt = target.run(few)
    assert attempt.scores is not None and attempt.scores.exact is not None
    assert attempt.scores.exact.successes or attempt.reasons
