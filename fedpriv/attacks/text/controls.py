"""The positive and the negative control of attacks on text: they must find short undefended sentences, and nothing in noise."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.observation import Observation
from fedpriv.attacks.core.threads import one_thread
from fedpriv.attacks.lab.control import Control, cached_controls, noise_like, run_control
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
    """The positive and the negative control with the attack's options, from the cache if they are in it."""

    @one_thread()
    def compute() -> list[Control]:
        return [positive_control(attack, seed), negative_control(attack, seed)]

    return list(cached_controls(attack, seed, compute=compute))


def positive_control(attack: TextAttack, seed: int = 0) -> Control:
    """Check that the attack finds every token of undefended sentences, and their order if it is one that finds an order."""

    def check() -> tuple[bool, str]:
        setting = _setting(attack)
        messages, ids, labels = _victims(seed, attack)
        scores = score_text(attack.run(messages, seed), ids, labels, facts())
        recall, rouge = float(scores.recall.mean()), None if scores.rouge is None else float(scores.rouge.mean())
        order = "" if rouge is None else f", with a ROUGE-L of {rouge:.2f} (at least {setting.rouge:g} needed)"
        tokens = f"{recall:.0%} of the tokens of {setting.messages} undefended sentences"
        passed = recall == 1 and (rouge is None or rouge >= setting.rouge)
        return passed, f"{attack.name} found {tokens} (all needed){order}"

    return run_control("positive", attack.name, "undefended sentences", check)


def sized_control(attack: TextAttack, count: int, tokens: int, width: int, seed: int = 0) -> Control:
    """A positive control on one message of ``count`` sentences of so many ``tokens``, from the cache if it is in it.

    Args:
        width: of the encoder. The control uses this width up to the point where more width no longer matters; all tokens are
            harder to find in a narrow encoder.
    """
    enough = max(2 * SMALL.width, SMALL.heads * math.ceil(count * tokens / (0.7 * SMALL.heads)))
    width = min(width - width % SMALL.heads, enough)
    what = f"undefended message of {count} sentence{'' if count == 1 else 's'} of {tokens} tokens, at a width of {width}"

    def check() -> tuple[bool, str]:
        if count * tokens > LARGEST:
            return False, f"{attack.name} has no control that is as large as an {what}"
        rouge_needed, size = _setting(attack).rouge, replace(SMALL, length=max(SMALL.length, tokens), width=width)
        ids, labels = sentences([tokens] * count, seed, size), torch.arange(count) % size.classes
        text = attack.run([observe_text(small_bert(seed, size), ids, labels, facts(size))], seed)
        scores = score_text(text, ids, labels, facts(size))
        rouge = 0.0 if scores.rouge is None else float(scores.rouge.mean())
        needed = f"at least {rouge_needed:g} needed"
        return rouge >= rouge_needed, f"{attack.name} finds an {what}, with a ROUGE-L of {rouge:.2f} ({needed})"

    def compute() -> list[Control]:
        return [run_control("positive", attack.name, f"an {what}", check)]

    return cached_controls(attack, seed, count, tokens, width, compute=compute)[0]


def negative_control(attack: TextAttack, seed: int = 0) -> Control:
    """Check that the attack scores no better than random words on random gradients, whose tensors have the true norms."""

    def check() -> tuple[bool, str]:
        setting, generator = _setting(attack), torch.Generator().manual_seed(seed)
        undefended, ids, labels = _victims(seed, attack)
        messages = [replace(message, shared=noise_like(message, generator)) for message in undefended]
        cheap = FEW | {"length": setting.tokens}  # there is no length to search for in noise
        few: dict[str, Any] = {f.name: cheap[f.name] for f in fields(attack) if f.name in cheap}  # type: ignore[arg-type]
        random_words = random_text(ids, setting.messages, facts(), SMALL.words, None, seed)
        chance = _share_found(score_text(random_words, ids, labels, facts()))
        quick: TextAttack = replace(attack, **few)  # type: ignore[type-var]
        score = _share_found(score_text(quick.run(messages, seed), ids, labels, facts()))
        scored = f"{attack.name} scored {score:.2f} on {setting.messages} random gradients"
        return score <= chance + CHANCE, f"{scored} (random words score {chance:.2f})"

    return run_control("negative", attack.name, "random gradients", check)


def _setting(attack: TextAttack) -> TextSetting:
    return attack.control or TextSetting()


def _victims(seed: int, attack: TextAttack) -> tuple[list[Observation], Tensor, Tensor]:
    """Messages on one sentence each, the sentences ``(n, L)`` and their labels ``(n,)``; a malicious server altered the net."""
    setting = _setting(attack)
    ids = sentences([setting.tokens] * setting.messages, seed)
    labels = torch.arange(setting.messages) % SMALL.classes
    net = small_bert(seed)
    if attack.is_malicious():
        honest = observe_text(net, ids[:1], labels[:1])
        net.load_state_dict(attack.alter(honest, sentences([setting.tokens] * PUBLIC, seed + 1), seed), strict=False)
    pairs = zip(torch.split(ids, 1), torch.split(labels, 1), strict=True)
    return [observe_text(net, sentence, label) for sentence, label in pairs], ids, labels


def _share_found(scores: TextScores) -> float:
    """Mean ROUGE-L where the attack finds an order, else mean share of the tokens found."""
    return float(scores.recall.mean() if scores.rouge is None else scores.rouge.mean())
