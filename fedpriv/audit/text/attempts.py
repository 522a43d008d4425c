"""One attack on texts, message by message, and what else messages reveal where it cannot be mounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.observation import Observation, ThreatModel
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
from fedpriv.audit.results import PartialLeakage
from fedpriv.audit.text.target import Observe, TextTarget
from fedpriv.errors import UsageError

COMPUTED = 1e-10
"""Unexplained share of a gradient that may differ because it is computed again: an error of 1e-5 of each tensor."""


@dataclass(frozen=True)
class TextAttempt(Attempt[TextAttack, TextReconstruction, TextScores]):
    """One attacker's result on texts.

    Attributes:
        ids: the reconstructed sentences ``(n, L)``, in the order of the true ones; ``None`` where the attack finds no order.
        refused: number of messages on which it could not be mounted; they count as not recovered.
        left: where it could not be mounted, what else the messages reveal.
    """

    ids: Tensor | None = None
    refused: int = 0
    left: PartialLeakage | None = None


def attempt_text(
    attacker: Attacker[TextAttack], target: TextTarget, seed: int, cut: Callable[[], Reason | None] = lambda: None
) -> TextAttempt:
    """Mount the attack on each message, and score all results together; if it failed, look whether that is evidence.

    Args:
        cut: why no further step may begin; ``None``: one may.
    """
    return _Texts(target).run(attacker, Trial(seed, cut))


@dataclass(frozen=True)
class _Texts(Task[TextAttack, TextReconstruction, TextAttempt]):
    """A target, message by message: one may be large. The controls were run before, once for all targets."""

    target: TextTarget

    def messages(self, attacker: Attacker[TextAttack]) -> Iterator[list[Observation]]:
        if self.target.unreadable:
            raise NotTried(Reason("not available", self.target.unreadable))
        if attacker.attack.finds_order and self.target.beside:
            beside = f"the net also takes {self.target.beside} with each text, which this attack cannot reconstruct"
            raise NotTried(Reason("other inputs", beside))
        if reason := out_of_reach(attacker.attack, self.samples_behind()):
            raise NotTried(reason)
        try:
            yield from ([observation] for observation in self._observe(attacker)(attacker.threat))
        except UsageError as error:  # earlier messages that a statistic needs were not kept
            raise NotTried(Reason("not available", str(error))) from None

    def samples_behind(self, part: Sequence[Observation] = ()) -> int:
        return len(self.target.ids) // self.target.messages

    def note_part(
        self, attacker: Attacker[TextAttack], number: int, part: Sequence[Observation], made: TextReconstruction | str
    ) -> tuple[list[str], list[str]]:
        """In what a message is unlike the controls; and a clause where the search did not converge."""
        attack, own = attacker.attack, slice(number * self.samples_behind(), (number + 1) * self.samples_behind())
        astray = _astray(attack, made, part[0], self.target.ids[own], self.target.labels[own])
        return _unlike(attacker, self.target, part[0]), astray

    def not_tried(self, attacker: Attacker[TextAttack], reason: NotTried) -> TextAttempt:
        why = reason.reason
        left = why.kind == "does not apply" or (self.target.unreadable is not None and why.kind == "not available")
        observe = self._observe(attacker)
        return TextAttempt(attacker, inapplicable=why, left=what_is_left(observe, self.target) if left else None)

    def judge(self, attacker: Attacker[TextAttack], mounted: Mounted[TextReconstruction], trial: Trial) -> TextAttempt:
        target, made = self.target, [one for one in mounted.results if not isinstance(one, str)]
        refusals = [one for one in mounted.results if isinstance(one, str)]
        whole = _joined(mounted.results, made[0], self.samples_behind(), target.facts.pad)
        ids = None if whole.ids is None else match_sentences(whole, target.ids, target.facts)[0]
        scores = score_text(whole, target.ids, target.labels, target.facts)
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
        return _beyond_its_controls(attempt, target, mounted.first[0], trial)

    def _observe(self, attacker: Attacker[TextAttack]) -> Observe:
        return self.target.statistics[attacker.what] if attacker.what else self.target.observe


def _succeeded(scores: TextScores) -> bool:
    """Whether a sentence was found, or without an order all tokens."""
    return bool(scores.exact.successes) if scores.exact is not None else bool(scores.recall.eq(1).all())


def what_is_left(observe: Observe, target: TextTarget) -> PartialLeakage:
    """Labels and numbers of tokens inferred from the messages, compared with the truth."""
    size, right = len(target.ids) // target.messages, Counter[str]()
    lengths = target.ids.ne(target.facts.pad).sum(1)
    for observation, own, true in zip(
        observe(ThreatModel()), torch.split(lengths, size), torch.split(target.labels, size), strict=True
    ):
        with suppress(Inapplicable):
            right["labels"] += (Counter(batch_labels(observation).tolist()) & Counter(true.tolist())).total()
        if observation.text is not None:
            right["longest"] += longest(observation) == int(own.max())
            right["total"] += total_tokens(observation) == int(own.sum())
    counts = {"labels": len(target.labels), "longest": target.messages, "total": target.messages}
    return PartialLeakage(**{name: wilson(right[name], n) for name, n in counts.items()})


def _unlike(attacker: Attacker[TextAttack], target: TextTarget, observation: Observation) -> list[str]:
    """What keeps attacks that match one gradient from finding sentences: a clause each. Of others, why words may be missing among
    those that the word embedding names."""
    if not (attacker.attack.finds_order or attacker.attack.is_malicious()):
        why = None if observation.text is None else why_estimated(observation, observation.text.words)
        return [why] if why else []
    found, schedule = list(observation.control_differences), observation.schedule
    if observation.kind == "change" and (schedule is None or schedule.steps > 1):
        behind = "" if schedule is None else f", and behind the message are {schedule.steps}"
        found.append(f"it reads the change as one step of SGD{behind}")
    if attacker.threat.top == "initial" and target.trained_apart:
        found.append("it matches through the initial weights of layers that the client has trained since and not sent")
    harder = attacker.attack.harder(observation)
    return found if harder is None else [*found, harder]


def _astray(
    attack: TextAttack, made: TextReconstruction | str, observation: Observation, ids: Tensor, labels: Tensor
) -> list[str]:
    """A clause where a search did not converge: the true sentences ``(B, L)`` with labels ``(B,)``, which no attack sees, explain
    a message without noise better than those at which it ended. Then the search failed, and no defence held."""
    if not attack.finds_order or isinstance(made, str) or observation.altered.variance:
        return []
    left = float(made.loss)
    if not left > COMPUTED:  # nor where it minimises nothing
        return []
    of_truth = unexplained_share(text_case(observation), ids, labels)
    if left <= of_truth + COMPUTED:
        return []
    return [
        f"its search did not converge: it left {left:.2g} of the gradient unexplained, and the true text leaves {of_truth:.2g}"
    ]


def _beyond_its_controls(made: TextAttempt, target: TextTarget, first: Observation, trial: Trial) -> TextAttempt:
    """An attempt that failed, with a reason where the attack, with its budget, finds no undefended sentences of that number and
    length either: through the small net of its controls or, if it does, through the attacked one.

    That a malicious server altered the net is no exception: its weights are those of the download.
    """
    attack, lengths = made.attacker.attack, target.ids.ne(target.facts.pad).sum(1).tolist()

    def because(reason: Reason) -> TextAttempt:
        return replace(made, reasons=(reason,))

    if attack.control is None:
        return because(NO_CONTROL)
    steps = 1 if first.kind == "gradient" else None if first.schedule is None else first.schedule.steps
    if steps != 1:  # who reads more steps as one has been told so
        return made
    untried = "it was not tried on undefended messages of this net"
    if target.beside:
        return because(Reason("no control", f"{untried}, which also takes {target.beside} with each text"))
    if attack.finds_order:
        width = int(target.encoder.config.hidden_size)
        control = sized_control(attack, len(lengths) // target.messages, max(lengths), width, trial.seed)
        if not control.passed:
            return because(Reason("control failed", control.sentence))
    if (weights := target.started(made.attacker.what)) is None:
        unkept = "the client's private layers were not kept, so that it could not be tried on undefended messages of this net"
        return because(Reason("no control", unkept))
    if (over := trial.cut()) is not None:
        return because(Reason(over.kind, f"{untried} ({over})"))
    return add_same_net_control(made, sentences_on_same_net(attack, first, weights, lengths, target.frequency, trial.seed))


def _joined(found: Sequence[TextReconstruction | str], like: TextReconstruction, size: int, pad: int) -> TextReconstruction:
    """Merge the results of messages; refused ones get empty sentences and no labels."""
    empty = TextReconstruction(
        None if like.ids is None else torch.full((size, 1), pad),
        torch.zeros_like(like.counts),
        torch.full((size,), -1),
        torch.full((1,), torch.nan),
        ("",),
    )
    parts = [empty if isinstance(one, str) else one for one in found]
    width = max((part.ids.shape[1] for part in parts if part.ids is not None), default=0)
    return TextReconstruction(
        None
        if like.ids is None
        else torch.cat([F.pad(part.ids, (0, width - part.ids.shape[1]), value=pad) for part in parts if part.ids is not None]),
        torch.cat([part.counts for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat([part.loss for part in parts]),
        tuple(one if isinstance(one, str) else one.notes[0] for one in found),
        sum(part.cpu_seconds for part in parts),
    )
