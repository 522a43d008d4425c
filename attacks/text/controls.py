"""Controls that run with every attack on text: it must find short undefended sentences, and nothing in random gradients."""

from __future__ import annotations

import math
import time
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.doing import doing
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.reconstruction import Inapplicable, one_thread
from fedpriv.attacks.lab.kept import Control, kept
from fedpriv.attacks.lab.setting import TextSetting
from fedpriv.attacks.scoring.text_scores import TextScores, random_text, score_text
from fedpriv.attacks.text.victims import SMALL, facts, observe_text, sentences, small_bert

LARGEST = 200
"""Largest number of tokens of a message in a control."""
PUBLIC = 200
"""Number of other sentences that a malicious server knows."""
CHANCE = 0.2
"""How far the negative control may score above random words: about two words in all, which happens by chance."""
FEW = {"steps": 50, "starts": 1, "sweeps": 2}
"""Options in the negative control, where a leak would show at once."""


def text_controls(attack: TextAttack, seed: int = 0) -> list[Control]:
    """Positive and negative control of an attack with its own options: an undefended gradient of one sentence each; kept
    (:mod:`fedpriv.attacks.lab.kept`)."""

    @one_thread()
    def compute() -> list[Control]:
        with doing(f"positive control of {attack.name}"):
            positive = positive_control(attack, seed)
        with doing(f"negative control of {attack.name}"):
            return [positive, negative_control(attack, seed)]

    return list(kept(attack, seed, compute=compute))


def positive_control(attack: TextAttack, seed: int = 0) -> Control:
    """Check that the attack finds every token of undefended sentences, in order if it is an attack that finds an order."""
    began, setting = time.process_time(), _setting(attack)
    observations, ids, labels = _victims(seed, attack)
    scores = score_text(attack.run(observations, seed), ids, labels, facts())
    recall, rouge = float(scores.recall.mean()), None if scores.rouge is None else float(scores.rouge.mean())
    order = "" if rouge is None else f", with a ROUGE-L of {rouge:.2f} (at least {setting.rouge:g} needed)"
    sentence = f"{attack.name} found {recall:.0%} of the tokens of {setting.messages} undefended sentences (all needed){order}"
    passed = recall == 1 and (rouge is None or rouge >= setting.rouge)
    return Control("positive", passed, sentence, time.process_time() - began)


def sized_control(attack: TextAttack, count: int, tokens: int, width: int, seed: int = 0) -> Control:
    """A positive control on one message of ``count`` sentences of so many ``tokens``; kept.

    Args:
        width: of the encoder; the control's is as wide where that matters, as all is harder to find in a narrow one.
    """
    enough = max(2 * SMALL.width, SMALL.heads * math.ceil(count * tokens / (0.7 * SMALL.heads)))
    width = min(width - width % SMALL.heads, enough)
    return kept(attack, seed, count, tokens, width, compute=lambda: [_sized(attack, count, tokens, width, seed)])[0]


def _sized(attack: TextAttack, count: int, tokens: int, width: int, seed: int) -> Control:
    what = f"undefended message of {count} sentence{'' if count == 1 else 's'} of {tokens} tokens, at a width of {width}"
    setting = _setting(attack)
    if count * tokens > LARGEST:
        return Control("positive", False, f"{attack.name} has no control that is as large as an {what}", None)
    began = time.process_time()
    size = replace(SMALL, length=max(SMALL.length, tokens), width=width)
    ids, labels = sentences([tokens] * count, seed, size), torch.arange(count) % size.classes
    try:
        made = attack.run([observe_text(small_bert(seed, size), ids, labels, facts(size))], seed)
    except Inapplicable as error:
        return Control("positive", False, f"{attack.name} cannot be mounted on an {what} ({error})", time.process_time() - began)
    scores = score_text(made, ids, labels, facts(size))
    rouge = 0.0 if scores.rouge is None else float(scores.rouge.mean())
    sentence = f"{attack.name} finds an {what}, with a ROUGE-L of {rouge:.2f} (at least {setting.rouge:g} needed)"
    return Control("positive", rouge >= setting.rouge, sentence, time.process_time() - began)


def negative_control(attack: TextAttack, seed: int = 0) -> Control:
    """Check that the attack scores no better than random words on random gradients, whose tensors have the true norms."""
    began, setting = time.process_time(), _setting(attack)
    observations, ids, labels = _victims(seed, attack)
    draw = torch.Generator().manual_seed(seed)
    noised = [
        replace(observation, shared={n: _like(t, draw) for n, t in observation.shared.items()}) for observation in observations
    ]
    cheap = FEW | {"length": setting.tokens}  # there is no length to search for in noise
    few: dict[str, Any] = {f.name: cheap[f.name] for f in fields(attack) if f.name in cheap}  # type: ignore[arg-type]
    chance = _found(score_text(random_text(ids, setting.messages, facts(), SMALL.words, None, seed), ids, labels, facts()))
    try:
        made: TextAttack = replace(attack, **few)  # type: ignore[type-var]
        score = _found(score_text(made.run(noised, seed), ids, labels, facts()))
        outcome = f"scored {score:.2f}"
    except Inapplicable as error:
        score, outcome = 0.0, f"refused ({error})"
    sentence = f"{attack.name} {outcome} on {setting.messages} random gradients (random words score {chance:.2f})"
    return Control("negative", score <= chance + CHANCE, sentence, time.process_time() - began)


def _setting(attack: TextAttack) -> TextSetting:
    return attack.control or TextSetting()


def _victims(seed: int, attack: TextAttack) -> tuple[list[Observation], Tensor, Tensor]:
    """A message on one sentence each, the sentences ``(n, L)`` and their labels ``(n,)``.

    An attack of a malicious server has altered the net, knowing other sentences.
    """
    setting = _setting(attack)
    ids = sentences([setting.tokens] * setting.messages, seed)
    labels = torch.arange(setting.messages) % SMALL.classes
    net = small_bert(seed)
    if attack.is_malicious():
        honest = observe_text(net, ids[:1], labels[:1])
        net.load_state_dict(attack.alter(honest, sentences([setting.tokens] * PUBLIC, seed + 1), seed), strict=False)
    pairs = zip(torch.split(ids, 1), torch.split(labels, 1), strict=True)
    return [observe_text(net, sentence, label) for sentence, label in pairs], ids, labels


def _like(tensor: Tensor, draw: torch.Generator) -> Tensor:
    """A random tensor with the norm of this one."""
    noise = torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype)
    long: Tensor = noise * tensor.norm() / noise.norm()
    return long


def _found(scores: TextScores) -> float:
    """Mean ROUGE-L where the attack finds an order, else mean share of the tokens found."""
    return float(scores.recall.mean() if scores.rouge is None else scores.rouge.mean())
