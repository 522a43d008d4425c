"""The control on the attacked net for texts: an attack that finds no sentence is tried on undefended ones of the same net.

Controls of attacks on text have a small BERT, which adds a vector of its position to each word. In an encoder whose positions are
relative or rotary, the first layers show words without their places, and the order must come from what is left; trained attention
is sharper than random. So an attack that passes its controls may have no chance, and its failure there is no evidence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.observation import Observation, TextFacts
from fedpriv.attacks.core.reconstruction import Inapplicable, mounting
from fedpriv.attacks.lab.kept import Control
from fedpriv.attacks.lab.same_net import labels_for, samples_for, undefended
from fedpriv.attacks.lab.setting import HALF
from fedpriv.attacks.scoring.text_scores import score_text, word_weights


def sentences_on_same_net(
    attack: TextAttack, observation: Observation, weights: Mapping[str, Tensor], lengths: Sequence[int], frequency: Tensor,
    seed: int,
) -> Control:  # fmt: skip
    """Check that the attack finds half of some made-up sentences from undefended messages of the net that it attacks.

    As many sentences are behind each message, with the same schedule, and the same tensors are sent; of an attack that finds no
    order, half of the messages must give away all their words. It ends once enough are found, or too few are left.

    Args:
        observation: one of the messages.
        weights: those that the client began with, by the net's names, hidden ones too.
        lengths: numbers of tokens of the sentences behind the messages, special ones included; made-up ones have these in turn.
        frequency: ``(V,)``, how often words occur in public texts; sentences are drawn by it.
    """
    began, each, text = time.process_time(), observation.num_examples or 1, observation.text
    assert text is not None, "it is a control of attacks on text"
    count, draw = samples_for(each), torch.Generator().manual_seed(seed)
    ids = made_up([lengths[i % len(lengths)] for i in range(count)], text, frequency, draw)
    labels = labels_for(count, each, observation.classes, draw)
    messages, found, tried, order = count // each, 0, 0, True
    needed = math.ceil(HALF * count)
    for own, of in zip(torch.split(ids, each), torch.split(labels, each), strict=True):
        if found >= needed or found + count - tried < needed:
            break
        message = undefended(observation, weights, own, of, draw)
        try:
            with mounting():
                scores = score_text(attack.run([message], seed), own, of, text)
        except Inapplicable as refusal:
            refused = f"{attack.name} refused an undefended message of this net ({refusal})"
            return Control("same net", False, refused, time.process_time() - began)
        order = scores.exact is not None
        found += each * bool(scores.recall.eq(1).all()) if scores.exact is None else scores.exact.successes
        tried += each
    what = "made-up sentences" if order else "made-up sentences' sets of words"
    behind = "" if messages == count else f", {each} behind one message"
    sentence = (
        f"from undefended messages of this net, {attack.name} finds {found} of {tried} {what}{behind} "
        f"({needed} of {count} needed)"
    )
    return Control("same net", found >= needed, sentence, time.process_time() - began)


def made_up(lengths: Sequence[int], text: TextFacts, frequency: Tensor, draw: torch.Generator) -> Tensor:
    """Sentences of so many tokens, special ones included, of words drawn by their frequency ``(V,)``: ``(n, L)``, padded."""
    weight, rows = word_weights(frequency, text), []
    for length in lengths:
        words = weight.multinomial(max(1, length - len(text.special)), replacement=True, generator=draw)
        rows.append(torch.cat([words.new_tensor(text.opening), words, words.new_tensor(text.closing)]))
    return pad_sequence(rows, batch_first=True, padding_value=text.pad)
