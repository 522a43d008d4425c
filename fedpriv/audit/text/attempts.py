"""One attack on texts, message by message, and what else messages reveal where it cannot be mounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedpriv.attacks.attack import TextAttack
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.core.status import Reason
from fedpriv.attacks.core.text_reconstruction import TextReconstruction
from fedpriv.attacks.inference.labels import batch_labels
from fedpriv.attacks.lab.attempts import NO_PROMISE
from fedpriv.attacks.lab.same_net_texts import sentences_on_same_net
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.attacks.scoring.text_scores import TextScores, match_sentences, score_text
from fedpriv.attacks.text.case import text_case
from fedpriv.attacks.text.controls import sized_control
from fedpriv.attacks.text.mixture import unexplained
from fedpriv.attacks.text.rank import longest, total_tokens
from fedpriv.attacks.text.rows import unexplained as unexplained_rows
from fedpriv.audit.results import PartialLeakage
from fedpriv.audit.text.target import Observe, TextTarget
from fedpriv.errors import UsageError
from fedpriv.seeding import kept_rng

COMPUTED = 1e-10
"""Unexplained share of a gradient that may differ because it is computed again: an error of 1e-5 of each tensor."""


@dataclass(frozen=True)
class TextAttacker:
    """An attack with its options, and what it is assumed to know.

    Attributes:
        what: the statistic that it attacks instead of the model's change, if any.
    """

    attack: TextAttack
    threat: ThreatModel = ThreatModel()  # noqa: RUF009 (frozen)
    what: str = ""

    @property
    def name(self) -> str:
        """The name in tables."""
        known = ", knowing the initial head" if self.threat.top == "initial" else ""
        return f"{self.attack.name}{known}{f' on {self.what}' if self.what else ''}"


@dataclass(frozen=True)
class TextAttempt:
    """One attacker's result on a target.

    Attributes:
        ids: the reconstructed sentences ``(n, L)``, in the order of the true ones; ``None`` where the attack finds no order.
        refused: number of messages on which it could not be mounted; they count as not recovered.
        inapplicable: why it was not mounted on any; then the others are ``None``.
        left: where it could not be mounted, what else the messages reveal.
        reasons: why it is no evidence that it found no sentence, or without an order not all tokens; none: it is, or it did.
    """

    attacker: TextAttacker
    found: TextReconstruction | None = None
    scores: TextScores | None = None
    ids: Tensor | None = None
    refused: int = 0
    inapplicable: Reason | None = None
    left: PartialLeakage | None = None
    reasons: tuple[Reason, ...] = ()


def attempt_text(
    attacker: TextAttacker, target: TextTarget, seed: int, cut: Callable[[], Reason | None] = lambda: None
) -> TextAttempt:
    """Mount the attack on each message, and score all results together; if it failed, look whether that is evidence.

    Args:
        cut: why no further step may begin; ``None``: one may.
    """
    if (over := cut()) is not None:
        return TextAttempt(attacker, inapplicable=over)
    observe = target.statistics[attacker.what] if attacker.what else target.observe
    if target.unreadable:
        return TextAttempt(attacker, inapplicable=Reason("not available", target.unreadable), left=what_is_left(observe, target))
    if reason := _not_tried(attacker.attack, target):
        return TextAttempt(attacker, inapplicable=reason)
    found, astray, unlike, first = list[TextReconstruction | str](), list[str](), list[str](), None
    size = len(target.ids) // target.messages
    try:
        for own, true, observation in zip(
            torch.split(target.ids, size), torch.split(target.labels, size), observe(attacker.threat), strict=True
        ):
            first = first or observation
            found.append(_one(attacker.attack, observation, seed))
            astray += _astray(attacker.attack, found[-1], observation, own, true)
            matches = attacker.attack.finds_order or attacker.attack.is_malicious()
            unlike = _unlike(attacker, target, observation) if matches else _estimated(observation)
    except UsageError as error:  # earlier messages that a statistic needs were not kept
        return TextAttempt(attacker, inapplicable=Reason("not available", str(error)))
    made = [one for one in found if isinstance(one, TextReconstruction)]
    if not made:
        return TextAttempt(attacker, inapplicable=Reason("does not apply", str(found[0])), left=what_is_left(observe, target))
    whole = _joined(found, made[0], size, target.facts.pad)
    scores = score_text(whole, target.ids, target.labels, target.facts)
    refusals, reasons = [one for one in found if isinstance(one, str)], tuple[Reason, ...]()
    if not _succeeded(scores):
        reasons = tuple(Reason("unlike the controls", clause) for clause in unlike)
        if refusals:
            some = f"{len(refusals)} of {len(found)} messages"
            reasons += (Reason("does not apply", f"it could not be mounted on {some} ({refusals[0]})"),)
        if not reasons:
            assert first is not None
            beyond = [Reason("unlike the controls", clause) for clause in astray[:1]]
            reasons = tuple(beyond) or _beyond_its_controls(attacker, target, first, seed, cut)
    ids = None if whole.ids is None else match_sentences(whole, target.ids, target.facts)[0]
    return TextAttempt(attacker, whole, scores, ids, refused=len(refusals), reasons=reasons)


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


def _unlike(attacker: TextAttacker, target: TextTarget, observation: Observation) -> list[str]:
    """What keeps attacks that match one gradient from finding sentences: a clause each."""
    found, schedule = list(observation.unlike), observation.schedule
    if observation.kind == "change" and (schedule is None or schedule.steps > 1):
        behind = "" if schedule is None else f", and behind the message are {schedule.steps}"
        found.append(f"it reads the change as one step of SGD{behind}")
    if attacker.threat.top == "initial" and target.trained_apart:
        found.append("it matches through the initial weights of layers that the client has trained since and not sent")
    harder = attacker.attack.harder(observation)
    return found if harder is None else [*found, harder]


def _estimated(observation: Observation) -> list[str]:
    """Why words may be missing among those that the word embedding names: a clause, if any."""
    why = None if observation.text is None else unexplained_rows(observation, observation.text.words)
    return [why] if why else []


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
    of_truth = unexplained(text_case(observation), ids, labels)
    if left <= of_truth + COMPUTED:
        return []
    return [
        f"its search did not converge: it left {left:.2g} of the gradient unexplained, and the true text leaves {of_truth:.2g}"
    ]


def _beyond_its_controls(
    attacker: TextAttacker, target: TextTarget, first: Observation, seed: int, cut: Callable[[], Reason | None]
) -> tuple[Reason, ...]:
    """A reason where the attack, with its budget, finds no undefended sentences of that number and length either: through the
    small net of its controls or, if it does, through the attacked one.

    That a malicious server altered the net is no exception: its weights are those of the download.
    """
    attack, lengths = attacker.attack, target.ids.ne(target.facts.pad).sum(1).tolist()
    if attack.control is None:
        return (NO_PROMISE,)
    steps = 1 if first.kind == "gradient" else None if first.schedule is None else first.schedule.steps
    if steps != 1:  # who reads more steps as one has been told so
        return ()
    untried = "it was not tried on undefended messages of this net"
    if target.beside:
        return (Reason("no control", f"{untried}, which also takes {target.beside} with each text"),)
    if attack.finds_order:
        width = int(target.encoder.config.hidden_size)
        control = sized_control(attack, len(lengths) // target.messages, max(lengths), width, seed)
        if not control.passed:
            return (Reason("control failed", control.sentence),)
    if (weights := target.started(attacker.what)) is None:
        unkept = "the client's private layers were not kept, so that it could not be tried on undefended messages of this net"
        return (Reason("no control", unkept),)
    if (over := cut()) is not None:
        return (Reason(over.kind, f"{untried} ({over})"),)
    control = sentences_on_same_net(attack, first, weights, lengths, target.frequency, seed)
    return () if control.passed else (Reason("same net", control.sentence),)


def _not_tried(attack: TextAttack, target: TextTarget) -> Reason | None:
    """Why the attack is not tried on this target; ``None`` if it is."""
    if attack.finds_order and target.beside:
        beside = f"the net also takes {target.beside} with each text, which this attack cannot reconstruct"
        return Reason("other inputs", beside)
    size = len(target.ids) // target.messages
    if not (attack.optimises and attack.is_beyond(size)):
        return None
    return Reason("too many samples", f"{size} sentences behind one message, and the budget is for {attack.at_once} at once")


def _one(attack: TextAttack, observation: Observation, seed: int) -> TextReconstruction | str:
    try:
        with kept_rng():
            return attack.run([observation], seed)
    except Inapplicable as error:
        return str(error)


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
