"""A few hundred invented requests, for attacks on text without a data set."""

from __future__ import annotations

import torch
from torch import Tensor

_TOPICS = (
    ("book", "a table", "the flight to oslo", "two seats in the front row", "a room with a quiet garden"),
    ("cancel", "my subscription", "the order of last week", "her appointment with the dentist", "our trip"),
    ("repair", "the broken bicycle", "a leaking pipe in the kitchen", "my phone", "the old clock of his grandfather"),
    ("pay", "the rent", "this bill by card", "what i owe the garage", "the fee for a new passport"),
)
_BEGINNINGS = ("can you", "i want to", "how do i", "please", "who could", "is it possible to")
_ENDS = (
    "today",
    "before the end of the month",
    "as soon as you can",
    "for my mother",
    "without calling again",
    "tomorrow morning",
)

CLASSES = tuple(verb for verb, *_ in _TOPICS)


def requests() -> tuple[tuple[str, ...], Tensor]:
    """576 distinct sentences of 4 to 17 words, and their labels ``(576,)``, indices into :data:`CLASSES`."""
    labelled = [
        (f"{beginning} {verb} {thing} {end}", label)
        for label, (verb, *things) in enumerate(_TOPICS)
        for thing in things
        for beginning in _BEGINNINGS
        for end in _ENDS
    ]
    texts, labels = zip(*labelled, strict=True)
    return texts, torch.tensor(labels)
