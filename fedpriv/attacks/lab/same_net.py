"""The control on the attacked net: an attack that recovers nothing is tried on undefended messages of the same net.

An attack can pass its other controls, which have small nets, and have no chance on another kind of net: the gradient of a net
with ReLU is not smooth in the image, and that of a deep or well trained net shows little. In an encoder whose positions are
relative or rotary, the first layers show words without their places, and trained attention is sharper than random. Where the
attack fails on undefended messages, too, its failure is no evidence for a defence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from fedpriv.attacks.attack import ImageAttack, RowAttack, TextAttack
from fedpriv.attacks.core.altered import UNALTERED
from fedpriv.attacks.core.columns import made_up_rows
from fedpriv.attacks.core.observation import Observation, Public, Schedule, TextFacts
from fedpriv.attacks.core.reconstruction import mounting
from fedpriv.attacks.gradients.multistep import as_gradient
from fedpriv.attacks.lab.control import Control, behind_a_message, run_control
from fedpriv.attacks.lab.explained import simulated
from fedpriv.attacks.lab.images import default_images
from fedpriv.attacks.lab.setting import HALF
from fedpriv.attacks.scoring.row_scores import in_order, score_rows, typical_row
from fedpriv.attacks.scoring.scores import RECOVERED, errors, match_batches
from fedpriv.attacks.scoring.text_scores import score_text, word_weights

MIN_SAMPLES = 4
"""Smallest number of samples in a control, unless messages stand for more."""
LARGEST = 64
"""Largest side of a crop, in pixels; for larger inputs it is scaled up."""
TRIED_ON = "undefended messages of this net"


def on_same_net(
    attack: ImageAttack, observation: Observation, weights: Mapping[str, Tensor], seed: int, steps: Schedule | None = None
) -> Control:
    """Check that the attack recovers half of some images from undefended messages of the net that it attacks.

    The messages have the schedule, the shared layers and the number of images of the attacked ones; the order of the batches is
    drawn, as no attacker knows it. The images are photographs. An attack that knows public images may have learned what they look
    like: it is tried on some of them, which it then does not get.

    Args:
        observation: one of the attacked messages.
        weights: the weights that the client began with, by the net's names, hidden ones too.
        steps: the steps behind a gradient that is the mean of several steps' gradients.
    """

    per_message = observation.num_examples or 1

    def judge(raw: Tensor, images: Tensor, what: str) -> tuple[bool, str]:
        recovered = int((errors(raw[match_batches(raw, images, per_message)], images) < RECOVERED).sum())
        needed = f"MSE below {RECOVERED:g}; at least {HALF:.0%} needed"
        return recovered >= HALF * len(images), _sentence(attack, f"{recovered} of {len(images)} {what}", per_message, needed)

    def check() -> tuple[bool, str]:
        crops, generator = photographs(_sample_count(per_message), observation.input_shape, seed), _generator(seed)
        return _tried(attack, observation, weights, seed, steps, generator, crops, "photographs", judge)

    return run_control("same net", attack.name, TRIED_ON, check)


def sentences_on_same_net(
    attack: TextAttack, observation: Observation, weights: Mapping[str, Tensor], lengths: Sequence[int], frequency: Tensor,
    seed: int,
) -> Control:  # fmt: skip
    """Check that the attack recovers half of some made-up sentences from undefended messages of the net that it attacks.

    As :func:`on_same_net`; an attack that finds no order must find all words of half of the messages. The control ends once
    enough are recovered, or too few are left.

    Args:
        lengths: numbers of tokens of the sentences behind the attacked messages, special ones included; made-up sentences have
            these in turn.
        frequency: how often each word occurs in public texts ``(V,)``; words are drawn by it.
    """

    def check() -> tuple[bool, str]:
        per_message, text = observation.num_examples or 1, observation.text
        assert text is not None, "it is a control of attacks on text"
        count, generator = _sample_count(per_message), _generator(seed)
        ids = made_up([lengths[i % len(lengths)] for i in range(count)], text, frequency, generator)
        labels = _draw_labels(count, observation, generator)
        recovered, tried, needed, what = 0, 0, math.ceil(HALF * count), "made-up sentences"
        for message, true, classes in _undefended(observation, weights, ids, labels, generator):
            with mounting():
                scores = score_text(attack.run([message], seed), true, classes, text)
            if scores.exact is None:
                what = "made-up sentences' sets of words"
                recovered += per_message * bool(scores.recall.eq(1).all())
            else:
                recovered += scores.exact.successes
            tried += per_message
            if recovered >= needed or recovered + count - tried < needed:
                break
        sentence = _sentence(attack, f"{recovered} of {tried} {what}", per_message, f"{needed} of {count} needed")
        return recovered >= needed, sentence

    return run_control("same net", attack.name, TRIED_ON, check)


def rows_on_same_net(
    attack: RowAttack, observation: Observation, weights: Mapping[str, Tensor], seed: int, steps: Schedule | None = None
) -> Control:
    """Check that the attack recovers cells of made-up rows of the table from undefended messages of the net that it attacks: half
    of those that the means and most frequent levels have wrong, or more.

    Arguments and messages as for :func:`on_same_net`, public rows as its public images.
    """

    per_message, encoding = observation.num_examples or 1, observation.encoding
    assert encoding is not None, "it is a control of attacks on rows"

    def judge(raw: Tensor, rows: Tensor, what: str) -> tuple[bool, str]:
        recovered = score_rows(in_order(raw, rows, encoding, len(rows) // per_message)[0], rows, encoding).cells.share
        needed = (1 + score_rows(typical_row(encoding).expand_as(rows), rows, encoding).cells.share) / 2
        cells = f"{recovered:.0%} of the cells of {len(rows)} {what}"
        return recovered >= needed, _sentence(attack, cells, per_message, f"at least {needed:.0%} needed")

    def check() -> tuple[bool, str]:
        generator = _generator(seed)
        rows = made_up_rows(encoding, _sample_count(per_message), generator)
        return _tried(attack, observation, weights, seed, steps, generator, rows, "made-up rows", judge)

    return run_control("same net", attack.name, TRIED_ON, check)


def photographs(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Crops of photographs in [0, 1] as a net takes images: ``(count, *shape)`` for ``shape`` ``(C, H, W)``."""
    channels, height, width = shape
    images, _ = default_images(count, seed, side=min(max(height, width), LARGEST))
    if images.shape[2:] != (height, width):
        images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False)
    return images if channels == 3 else images.mean(1, keepdim=True).expand(-1, channels, -1, -1).contiguous()


def made_up(lengths: Sequence[int], text: TextFacts, frequency: Tensor, generator: torch.Generator) -> Tensor:
    """Sentences of so many tokens, special ones included, of words drawn by their frequency ``(V,)``: ``(n, L)``, padded."""
    weight, rows = word_weights(frequency, text), []
    for length in lengths:
        words = weight.multinomial(max(1, length - len(text.special)), replacement=True, generator=generator)
        rows.append(torch.cat([words.new_tensor(text.opening), words, words.new_tensor(text.closing)]))
    return pad_sequence(rows, batch_first=True, padding_value=text.pad)


def undefended(
    observation: Observation, weights: Mapping[str, Tensor], samples: Tensor, labels: Tensor, seed: int
) -> Observation:
    """An undefended message like the observed one on other samples; the order of the batches is drawn."""
    whole = replace(observation, num_examples=len(labels))
    ((message, _, _),) = _undefended(whole, weights, samples, labels, _generator(seed))
    return message


def _tried(
    attack: ImageAttack | RowAttack, observation: Observation, weights: Mapping[str, Tensor], seed: int, steps: Schedule | None,
    generator: torch.Generator, samples: Tensor, what: str, judge: Callable[[Tensor, Tensor, str], tuple[bool, str]],
) -> tuple[bool, str]:  # fmt: skip
    """Whether an attack passes the control, and a sentence on it.

    Args:
        generator: draws labels and the order of the batches.
        samples: behind the messages, if the attack knows no public ones; ``what``: their name.
        judge: reconstructions, the samples behind the messages, and their name -> the result.
    """
    seen, count = observation, len(samples)
    if (public := seen.public) is None:
        labels = _draw_labels(count, seen, generator)
    elif len(public.images) < 2 * count:
        of = f"public {attack.modality}s"
        return False, f"{len(public.images)} {of} are too few to try {attack.name} on messages of this net"
    else:  # with their labels, as the attack may have learned what samples of each class look like
        what, samples, labels = f"public {attack.modality}s", public.images[:count].to(samples), public.labels[:count]
        seen = replace(seen, public=Public(public.images[count:], public.labels[count:]))
    messages = [message for message, _, _ in _undefended(seen, weights, samples, labels, generator, steps)]
    with mounting():
        raw = attack.run(messages, seed).raw
    return judge(raw.to(samples), samples, what)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _sample_count(per_message: int) -> int:
    return max(1, MIN_SAMPLES // per_message) * per_message


def _draw_labels(count: int, observation: Observation, generator: torch.Generator) -> Tensor:
    """Labels ``(count,)`` that differ within each message as far as there are classes; or standardised numbers."""
    if observation.numbers:
        return torch.randn(count, generator=generator)
    classes, behind = observation.classes, observation.num_examples or 1
    messages = range(count // behind)
    return torch.cat([torch.randperm(classes, generator=generator).repeat(behind)[:behind] for _ in messages])


def _undefended(
    observation: Observation, weights: Mapping[str, Tensor], samples: Tensor, labels: Tensor, generator: torch.Generator,
    steps: Schedule | None = None,
) -> Iterator[tuple[Observation, Tensor, Tensor]]:  # fmt: skip
    """Undefended messages like the observed one on other samples, each with its samples and labels.

    Args:
        weights, steps: see :func:`on_same_net`.
        samples, labels: see :func:`fedpriv.attacks.lab.explained.simulated`.
        generator: draws the order of the batches.
    """
    per_message = observation.num_examples or 1
    for inputs, classes in zip(torch.split(samples, per_message), torch.split(labels, per_message), strict=True):
        # Where the schedule is unknown, the simulated message has no weight decay; without `penalty` and
        # `zero_gradient_change` attacks do not subtract any.
        plain = replace(
            observation, labels=None if observation.labels is None else classes, statistics={}, altered=UNALTERED,
            control_differences=(), penalty=None, zero_gradient_change=None,
        )  # fmt: skip
        change = plain if steps is None else replace(plain, kind="change", weights=weights, schedule=steps)
        moved = simulated(change, weights, inputs, classes, generator)
        shared = {name: tensor.detach() for name, tensor in moved.items()}
        if steps is not None:
            shared = dict(as_gradient(replace(change, shared=shared)).shared)
        yield replace(plain, shared=shared), inputs, classes


def _sentence(attack: ImageAttack | TextAttack | RowAttack, recovered: str, per_message: int, needed: str) -> str:
    return f"from {TRIED_ON}, {attack.name} recovers {recovered}{behind_a_message(per_message)} ({needed})"
