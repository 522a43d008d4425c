"""The target of an attack on text: one step on chosen sentences, or a message of a run; with the true texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, TextFacts, ThreatModel
from fedpriv.audit.fitting import unfit
from fedpriv.audit.record.base import Message, Record
from fedpriv.audit.text.attempts import TextTarget
from fedpriv.audit.text.samples import CLASSES, requests
from fedpriv.audit.text.victim import text_victim
from fedpriv.data.sources import load_dataset
from fedpriv.data.tokens import tokenise
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import find_encoder
from fedpriv.models.text.transformer import Tune, features, text_encoder
from fedpriv.wire import Transform

LONGEST = 128
"""Largest number of tokens of a sentence in a single step; longer ones are truncated."""


@dataclass(frozen=True)
class Steps:
    """Single steps to attack.

    Attributes:
        count, size: number of messages, and of sentences per message.
        tune, mask_embeddings: as for :func:`fedpriv.audit.text.victim.text_victim`.
        masked: number of fully connected layers, from the last, that are not sent.
        noise: variance of Gaussian noise on the message.
    """

    count: int
    size: int
    encoder: str | None = None
    tune: Tune = "full"
    mask_embeddings: bool = False
    masked: int = 0
    noise: float = 0.0
    seed: int = 0

    @property
    def transforms(self) -> list[Transform]:
        """fedpriv's transforms for these options, in the order of a run."""
        masks = [{"name": "mask", "last": self.masked}] if self.masked else []
        return build_transforms([*masks, *([{"name": "gaussian", "variance": self.noise}] if self.noise else [])])

    @property
    def description(self) -> str:
        """What is trained and what is done to the message, in words."""
        learns = {
            "full": "the whole encoder is trained",
            "lora": "LoRA's adapters are trained, as after some training",
            "head": "the encoder is frozen and only the head is trained",
        }
        words = [learns[self.tune]]
        if self.mask_embeddings:
            words.append("the embeddings of words and positions are not sent")
        return ", ".join([*words, *map(str, self.transforms)])


def samples(name: str, data_dir: Path | None, steps: Steps, label: str | None = None) -> TextTarget:
    """One step each on test texts of a data set, drawn by the seed.

    Raises:
        UsageError: the data set has no texts, or too few.
    """
    dataset = load_dataset(name, data_dir, label=label)
    if dataset.texts is None:
        raise unfit(dataset.name, "images" if dataset.vectors is None else "rows of a table")
    return _steps(f"test texts of {dataset.name}", *dataset.texts, dataset.test_labels, len(dataset.classes), steps)


def made_up(steps: Steps) -> TextTarget:
    """One step each on invented requests; needs no data set."""
    texts, labels = requests()
    return _steps("synthetic requests", texts, texts, labels, len(CLASSES), replace(steps, encoder=steps.encoder or "tiny"))


def _steps(what: str, public: Sequence[str], texts: Sequence[str], labels: Tensor, classes: int, steps: Steps) -> TextTarget:
    wanted = steps.count * steps.size
    if wanted > len(texts):
        needed = f"messages of {steps.size} sentences need {wanted} sentences"
        raise UsageError(f"--n {steps.count} {needed}, and there are only {len(texts)} {what}")
    encoder = find_encoder(steps.encoder, public)
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(steps.seed))[:wanted]
    longest = min(LONGEST, encoder.length)
    known, _ = tokenise(public, encoder.tokenizer, longest)
    ids, true = tokenise([texts[i] for i in order], encoder.tokenizer, longest)[0].long(), labels[order]
    victim = text_victim(encoder, classes, known.shape[1], steps.tune, steps.mask_embeddings, steps.transforms, steps.seed)
    inputs = ids if victim.facts is not None else features(text_encoder(encoder, "head"), ids)

    def observe(threat: ThreatModel) -> Iterator[Observation]:
        return victim.observe(inputs, true, steps.size, threat, steps.seed)

    each = "one step each" if steps.size == 1 else f"one step on each {steps.size}"
    title = f"{wanted} {what}, {each}, through {encoder.name}: {steps.description}"
    weights = {name: parameter.detach() for name, parameter in victim.net.named_parameters()}
    return TextTarget(
        title, ids, true, steps.count, encoder, observe, known, hidden=bool(steps.masked),
        unreadable=_unreadable(victim.facts), started=lambda what: weights,
    )  # fmt: skip


def _unreadable(facts: TextFacts | None) -> str | None:
    if facts is not None:
        return None
    return (
        "nothing of the encoder was sent: only layers on its features are trained, and this audit does not invert features to "
        "sentences"
    )


def message(record: Record, round: int, client: int) -> TextTarget:
    """A client's real upload in a round; it covers all its training texts.

    Raises:
        UsageError: the record is not of texts, or the client has none.
    """
    if "text" not in record.modalities:
        raise unfit(record.name, "images" if "image" in record.modalities else "rows of a table")
    if record.lacking(client) == "text":
        raise UsageError(f"client {client} of {record.name} has images alone")
    ids, labels = record.texts(client), record.labels(client)
    title = f"round {round}, client {client} of {record.name}: {len(labels)} training texts"
    return of_messages(record, title, [record.message(round, client)], ids, labels)


def of_messages(record: Record, title: str, messages: Sequence[Message], ids: Tensor, labels: Tensor) -> TextTarget:
    """Messages, each of which stands for the same number of the texts ``(n, L)``."""
    first = messages[0]
    seen = record.observation(first, ThreatModel())
    assert record.encoder is not None

    def observe(threat: ThreatModel, what: str = "") -> Iterator[Observation]:
        for message in messages:
            seen, steps = record.observation(message, threat, what), record.steps_behind(message, what) if what else None
            mean = () if steps is None or steps.steps == 1 else (f"it reads the mean of {steps.steps} steps' gradients as one",)
            yield replace(seen, control_differences=(*seen.control_differences, *mean))

    def started(what: str) -> Mapping[str, Tensor] | None:
        # In place of private layers that were not kept, those that every client began with: any are as good for a control.
        return record.started(first, what) or record.started(replace(first, first_update=True), what)

    return TextTarget(
        title, ids, labels, len(messages), record.encoder, observe, record.public_texts(),
        hidden=not any(name.startswith("top.") for name in seen.shared),
        trained_apart=any(map(record.trained_apart, messages)),
        unreadable=_unreadable(seen.text),
        beside="an image" if "image" in record.modalities else None,
        statistics={what: partial(observe, what=what) for what in record.gradients(first)},
        started=started,
    )  # fmt: skip
