"""Attacks on texts, message by message, and the partial leakage where an attack cannot be mounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.observation import Observation, TextFacts, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.lab.same_net import sentences_on_same_net
from fedpriv.attacks.lab.trial import (
    NO_CONTROL,
    Attacker,
    Attempt,
    Mounted,
    NotTried,
    Task,
    Trial,
    add_same_net_control,
    difference_reasons,
    out_of_reach,
)
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.attacks.scoring.text_scores import TextScores, match_sentences, score_text
from fedpriv.attacks.text.case import text_case
from fedpriv.attacks.text.controls import sized_control
from fedpriv.attacks.text.mixture import unexplained_share
from fedpriv.attacks.text.rank import longest, total_tokens
from fedpriv.attacks.text.rows import why_estimated
from fedpriv.audit.record.attacker_view import opening, specials
from fedpriv.audit.results.texts import PartialLeakage
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import Encoder

Observe = Callable[[ThreatModel], Iterator[Observation]]

COMPUTED = 1e-10
"""The share that recomputing a gradient can leave unexplained: an error of 1e-5 of each tensor."""


@dataclass(frozen=True)
class TextAttempt(Attempt[TextAttack, TextReconstruction, TextScores]):
    """One attacker's result on texts.

    Attributes:
        ids: the reconstructed sentences ``(n, L)``, in the order of the true ones; ``None`` where the attack finds no order.
        refused: number of messages on which it could not be mounted; they count as not recovered.
        left: where it could not be mounted, what else the messages leak.
    """

    ids: Tensor | None = None
    refused: int = 0
    left: PartialLeakage | None = None


@dataclass(frozen=True, eq=False)
class TextTarget(Task[TextAttack, TextReconstruction, TextAttempt]):
    """Texts to attack, message by message, as one may be large. The controls were run before, once for all targets.

    Attributes:
        title: a description for tables.
        ids, labels: the truth, token ids ``(n, L)`` and ``(n,)``; attacks are scored against it and never see it.
        count: number of messages ``N``; each stands for ``n / N`` sentences, in order.
        observe: threat model -> the messages, one at a time.
        public: token ids of other texts of the same kind ``(m, L)``, for the word frequencies of the baseline.
        hidden: whether the last layer was not sent, so that it matters what is known of it.
        trained_apart: whether layers that were never sent may have been trained since round 0, so that the initial ones are not
            those of the message.
        unreadable: why no attack can recover sentences from the messages.
        beside: further inputs of the net besides a text.
        statistics: statistics that are gradients, by name, as messages like those of ``observe``.
        started: maps a statistic's name (empty: the model's change) to the weights at which the client of the first message
            began, by the names of the message, hidden ones too; ``None``: they were not kept. Attacks never get these.
    """

    title: str
    ids: Tensor
    labels: Tensor
    count: int
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

    @property
    def size(self) -> int:
        """The number of sentences behind each message."""
        return len(self.ids) // self.count

    def read(self, ids: Tensor) -> list[str]:
        """Token ids ``(n, L)`` decoded to text, without special tokens."""
        kept = [[i for i in row if i not in (self.facts.pad, *self.facts.special)] for row in ids.tolist()]
        return [str(text) for text in self.encoder.tokenizer.batch_decode(kept)]

    def messages(self, attacker: Attacker[TextAttack]) -> Iterator[list[Observation]]:
        if self.unreadable:
            raise NotTried(Reason("not available", self.unreadable))
        if attacker.attack.finds_order and self.beside:
            beside = f"the net also takes {self.beside} with each text, which this attack cannot reconstruct"
            raise NotTried(Reason("other inputs", beside))
        if reason := out_of_reach(attacker.attack, self.size):
            raise NotTried(reason)
        try:
            yield from ([observation] for observation in self._observe(attacker)(attacker.threat))
        except UsageError as error:  # earlier messages that a statistic needs were not kept
            raise NotTried(Reason("not available", str(error))) from None

    def samples_behind(self, part: Sequence[Observation]) -> int:
        return self.size

    def note_part(
        self, attacker: Attacker[TextAttack], number: int, part: Sequence[Observation], result: TextReconstruction | str
    ) -> tuple[list[str], list[str]]:
        """Clauses on how a message differs from those of the controls, and one where the search did not converge."""
        its = slice(number * self.size, (number + 1) * self.size)
        astray = _astray(attacker.attack, result, part[0], self.ids[its], self.labels[its])
        return _differences(attacker, self, part[0]), astray

    def not_tried(self, attacker: Attacker[TextAttack], reason: NotTried) -> TextAttempt:
        why = reason.reason
        is_partial = why.kind == "does not apply" or (self.unreadable is not None and why.kind == "not available")
        left = partial_leakage(self._observe(attacker), self) if is_partial else None
        return TextAttempt(attacker, inapplicable=why, left=left)

    def judge(self, attacker: Attacker[TextAttack], mounted: Mounted[TextReconstruction], trial: Trial) -> TextAttempt:
        reconstructed = [result for result in mounted.results if not isinstance(result, str)]
        refusals = [result for result in mounted.results if isinstance(result, str)]
        whole = _joined(mounted.results, reconstructed[0], self.size, self.facts.pad)
        ids = None if whole.ids is None else match_sentences(whole, self.ids, self.facts)[0]
        scores = score_text(whole, self.ids, self.labels, self.facts)
        attempt = TextAttempt(attacker, whole, scores, ids=ids, refused=len(refusals))
        if _succeeded(scores):
            return attempt
        reasons = difference_reasons(mounted.notes[-1][0])
        if refusals:
            some = f"{len(refusals)} of {len(mounted.results)} messages"
            reasons += (Reason("does not apply", f"it could not be mounted on {some} ({refusals[0]})"),)
        reasons = reasons or difference_reasons([clause for _, astray in mounted.notes for clause in astray][:1])
        if reasons:
            return replace(attempt, reasons=reasons)
        return _with_controls(attempt, self, mounted.first[0], trial)

    def _observe(self, attacker: Attacker[TextAttack]) -> Observe:
        return self.statistics[attacker.what] if attacker.what else self.observe


def _succeeded(scores: TextScores) -> bool:
    """Whether a sentence was found, or without an order all tokens."""
    return bool(scores.exact.successes) if scores.exact is not None else bool(scores.recall.eq(1).all())


def partial_leakage(observe: Observe, target: TextTarget) -> PartialLeakage:
    """Labels and numbers of tokens inferred from the messages, compared with the truth."""
    size, right = target.size, Counter[str]()
    lengths = torch.split(target.ids.ne(target.facts.pad).sum(1), size)
    for observation, length, true in zip(observe(ThreatModel()), lengths, torch.split(target.labels, size), strict=True):
        with suppress(Inapplicable):
            right["labels"] += (Counter(batch_labels(observation).tolist()) & Counter(true.tolist())).total()
        if observation.text is not None:
            right["longest"] += longest(observation) == int(length.max())
            right["total"] += total_tokens(observation) == int(length.sum())
    counts = {"labels": len(target.labels), "longest": target.count, "total": target.count}
    return PartialLeakage(**{name: wilson(right[name], n) for name, n in counts.items()})


def _differences(attacker: Attacker[TextAttack], target: TextTarget, observation: Observation) -> list[str]:
    """For attacks that match a gradient: what makes this message harder. For others: why the found words are an estimate."""
    if not (attacker.attack.finds_order or attacker.attack.is_malicious()):
        why = None if observation.text is None else why_estimated(observation, observation.text.words)
        return [why] if why else []
    clauses, schedule = list(observation.control_differences), observation.schedule
    if observation.kind == "change" and (schedule is None or schedule.steps > 1):
        behind = "" if schedule is None else f", but the client took {schedule.steps} steps"
        clauses.append(f"it reads the change as one step of SGD{behind}")
    if attacker.threat.top == "initial" and target.trained_apart:
        clauses.append("it uses the initial weights of unsent layers, which the client has trained since")
    harder = attacker.attack.harder(observation)
    return clauses if harder is None else [*clauses, harder]


def _astray(
    attack: TextAttack, result: TextReconstruction | str, observation: Observation, ids: Tensor, labels: Tensor
) -> list[str]:
    """A clause where a search did not converge: the true sentences ``(B, L)`` with labels ``(B,)`` explain a message without
    noise better than the result. Then the search is to blame, not a defence."""
    if not attack.finds_order or isinstance(result, str) or observation.altered.variance:
        return []
    left = float(result.loss)
    if not left > COMPUTED:  # also true for attacks without a loss (NaN)
        return []
    of_truth = unexplained_share(text_case(observation), ids, labels)
    if left <= of_truth + COMPUTED:
        return []
    return [
        f"its search did not converge: it left {left:.2g} of the gradient unexplained, and the true text leaves {of_truth:.2g}"
    ]


def _with_controls(attempt: TextAttempt, target: TextTarget, first: Observation, trial: Trial) -> TextAttempt:
    """Mark a failed attempt inconclusive if the attack also fails on an undefended message of the same size.

    This is tried first on the small control net, then, if passed, on the attacked net with the steps of the message.

    After a malicious server, the attacked net has the weights of the altered download.
    """
    attack, lengths = attempt.attacker.attack, target.ids.ne(target.facts.pad).sum(1).tolist()

    def because(reason: Reason) -> TextAttempt:
        return replace(attempt, reasons=(reason,))

    if attack.control is None:
        return because(NO_CONTROL)
    untried = "it was not tried on undefended messages of this net"
    if target.beside:
        return because(Reason("no control", f"{untried}, which also takes {target.beside} with each text"))
    if attack.finds_order:
        width = int(target.encoder.config.hidden_size)
        control = sized_control(attack, target.size, max(lengths), width, trial.seed)
        if not control.passed:
            return because(Reason("control failed", control.sentence))
    if (weights := target.started(attempt.attacker.what)) is None:
        unkept = "the client's private layers were not kept, so that it could not be tried on undefended messages of this net"
        return because(Reason("no control", unkept))
    if (over := trial.cut()) is not None:
        return because(Reason(over.kind, f"{untried} ({over})"))
    return add_same_net_control(attempt, sentences_on_same_net(attack, first, weights, lengths, target.frequency, trial.seed))


def _joined(results: Sequence[TextReconstruction | str], like: TextReconstruction, size: int, pad: int) -> TextReconstruction:
    """Merge the results of messages; refused ones get empty sentences and no labels."""
    empty = TextReconstruction(
        None if like.ids is None else torch.full((size, 1), pad),
        torch.zeros_like(like.counts),
        torch.full((size,), -1),
        torch.full((1,), torch.nan),
        ("",),
    )
    parts = [empty if isinstance(result, str) else result for result in results]
    width = max((part.ids.shape[1] for part in parts if part.ids is not None), default=0)
    return TextReconstruction(
        None
        if like.ids is None
        else torch.cat([F.pad(part.ids, (0, width - part.ids.shape[1]), value=pad) for part in parts if part.ids is not None]),
        torch.cat([part.counts for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat([part.loss for part in parts]),
        tuple(result if isinstance(result, str) else result.notes[0] for result in results),
        sum(part.cpu_seconds for part in parts),
    )
