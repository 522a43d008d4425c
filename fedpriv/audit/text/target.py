"""The target of an attack on text: one step on chosen sentences, or a message of a run; with the true texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, TextFacts, ThreatModel
from fedpriv.audit.fitting import unfit
from fedpriv.audit.record.base import Message
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.statistics import as_gradient, gradient_like, named, steps_behind
from fedpriv.audit.text.samples import CLASSES, requests
from fedpriv.audit.text.victim import opening, specials, text_victim
from fedpriv.data.sources import load_dataset
from fedpriv.data.tokens import tokenise
from fedpriv.defenses import build_transforms
from fedpriv.errors import UsageError
from fedpriv.models.encoders import Encoder, find_encoder
from fedpriv.models.text import Tune, features, text_encoder
from fedpriv.wire import Transform

Observe = Callable[[ThreatModel], Iterator[Observation]]
LONGEST = 128
"""Largest number of tokens of a sentence in a single step; longer ones are truncated."""


@dataclass(frozen=True, eq=False)
class TextTarget:
    """Texts to attack.

    Attributes:
        title: a description for tables.
        ids, labels: the truth, token ids ``(n, L)`` and ``(n,)``; attacks are scored against it and never see it.
        messages: ``N``; each stands for ``n / N`` sentences, in order.
        observe: threat model -> the messages, one at a time.
        public: token ids of other texts of the same kind ``(m, L)``, for the word frequencies of the baseline.
        hidden: whether the last layer was not sent, so that it matters what is known of it.
        trained_apart: whether layers that were never sent may have been trained since round 0, so that the initial ones are not
            those of the message.
        unreadable: why no attack can recover sentences from the messages.
        beside: further inputs of the net besides a text.
        statistics: statistics that are gradients, by name, as messages like those of ``observe``.
        started: such a statistic, or empty for what ``observe`` gives -> the weights at which the client of the first message
            began, by the names of the message, hidden ones too; ``None``: they were not kept. Attacks never get these.
    """

    title: str
    ids: Tensor
    labels: Tensor
    messages: int
    encoder: Encoder
    observe: Observe
    public: Tensor
    hidden: bool = False
    trained_apart: bool = False
    unreadable: str | None = None
    beside: str | None = None
    statistics: Mapping[str, Observe] = field(default_factory=dict)
    started: Callable[[str], Mapping[str, Tensor] | None] = lambda what: None

    @cached_property
    def facts(self) -> TextFacts:
        """The special ids, for scoring; the knowledge of attacks is in their observations."""
        encoder = self.encoder
        return TextFacts("", None, encoder.pad, specials(encoder), encoder.length, opening(encoder), encoder.unknown)

    @property
    def words(self) -> int:
        """Size of the vocabulary V."""
        return int(self.encoder.config.vocab_size)

    @property
    def frequency(self) -> Tensor:
        """How often each word occurs in public texts ``(V,)``."""
        return self.public.flatten().long().bincount(minlength=self.words)

    def read(self, ids: Tensor) -> list[str]:
        """Token ids ``(n, L)`` decoded to text, without special tokens."""
        kept = [[i for i in row if i not in (self.facts.pad, *self.facts.special)] for row in ids.tolist()]
        return [str(text) for text in self.encoder.tokenizer.batch_decode(kept)]


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
        raise UsageError(f"--n {steps.count} messages of {steps.size} sentences are {wanted}, and there are {len(texts)} {what}")
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


def message(evidence: RunRecord, round: int, client: int) -> TextTarget:
    """A client's real upload in a round of a run; it covers all its training texts.

    Raises:
        UsageError: the run was trained on images, or the client has no texts.
    """
    if "text" not in evidence.modalities:
        raise unfit(str(evidence.folder.path), "images" if "image" in evidence.modalities else "rows of a table")
    if evidence.federation.data.lacking(client) == "text":
        raise UsageError(f"client {client} of {evidence.folder.path} has images alone")
    ids, labels = evidence.texts(client), evidence.labels(client)
    title = f"round {round}, client {client} of {evidence.folder.path.name}: {len(labels)} training texts"
    return of_messages(evidence, title, [evidence.message(round, client)], ids, labels)


def of_messages(evidence: RunRecord, title: str, found: Sequence[Message], ids: Tensor, labels: Tensor) -> TextTarget:
    """Messages of a run, each of which stands for the same number of the texts ``(n, L)``."""
    encoder, seen = evidence.federation.prepared.encoder, evidence.observation(found[0], ThreatModel())
    assert encoder is not None

    def observe(threat: ThreatModel) -> Iterator[Observation]:
        return (evidence.observation(one, threat) for one in found)

    def read(what: str, threat: ThreatModel) -> Iterator[Observation]:
        for one in found:
            seen, steps = as_gradient(evidence, one, what, threat), steps_behind(evidence, one, what)
            mean = () if steps is None or steps.steps == 1 else (f"it reads the mean of {steps.steps} steps' gradients as one",)
            yield replace(seen, unlike=(*seen.unlike, *mean))

    def started(what: str) -> Mapping[str, Tensor] | None:
        # In place of private layers that were not kept, those that every client began with: any are as good for a control.
        of, sent = evidence.attacker.started, _sent(found[0], what)
        return of(found[0], sent) or of(replace(found[0], first_update=True), sent)

    return TextTarget(
        title, ids, labels, len(found), encoder, observe, evidence.public_texts(),
        hidden=not any(name.startswith("top.") for name in seen.shared),
        trained_apart=any(_trained_apart(evidence, one) for one in found),
        unreadable=_unreadable(seen.text),
        beside="an image" if "image" in evidence.modalities else None,
        statistics={what: partial(read, what) for what in gradient_like(found[0])},
        started=started,
    )  # fmt: skip


def _sent(message: Message, what: str) -> Mapping[str, Tensor] | None:
    """The tensors of a statistic by the net's names; ``None`` for the model."""
    return named(message.uploaded, what) if what else None


def _trained_apart(evidence: RunRecord, message: Message) -> bool:
    """In an earlier local update of the client, or in a phase of this one that changes nothing of what was sent."""
    federation = evidence.federation
    sent = {name.partition(".")[0] for name in message.of_model}
    private = {entry.role for entry in federation.resident.space.entries if entry.name not in message.received} - sent
    phases = [one.trains for one in federation.method.phases(message.round) if one.trains & private]
    return bool(phases) and (not message.first_update or any(not trains & sent for trains in phases))
