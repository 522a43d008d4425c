"""A client's labels from its messages: by every rule that applies, over several rounds, and by shadow clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedpriv.attacks.api.label_rules import RULES, STATED, Inferred, infer
from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.inference.labels import count_accuracy, to_counts
from fedpriv.attacks.inference.shadow import fit_shadows, score_shadows
from fedpriv.attacks.labels.stated import LabelSet
from fedpriv.attacks.scoring.scores import wilson
from fedpriv.audit.judge.classes import rate_of_rules
from fedpriv.audit.progress import unlimited
from fedpriv.audit.record.base import Message, Record
from fedpriv.audit.record.earlier_updates import had_earlier_update, keeps_state
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.results.labels import LabelResult, LabelRule, ShadowLabels
from fedpriv.audit.results.outcome import Interval, Sender
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError
from fedpriv.seeding import generator

BEFORE_TRAINING = "counts of classes that the client told before round 1"
"""A rule: what is read from no message of a round, but from the statistics that a client sends before the first."""
MOST_LABELS = 4
"""Most classes of a shadow client; each has one or more, as the attacker does not know the true number."""


@dataclass(frozen=True)
class Labels:
    """The labels that each rule infers from a message, and the true ones.

    Attributes:
        by: rule -> the classes and counts that it infers.
        true: the true counts ``(C,)``, for scoring.
        not_applicable: rule -> why it does not apply.
        guess: the share of clients whose set is found by naming the same one each time; ``None``: not known.
        limit: why a failure is no evidence; ``None``: it is evidence.
    """

    round: int
    client: int
    sender: Sender
    by: Mapping[str, LabelSet]
    true: Tensor
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    guess: float | None = None
    limit: str | None = None

    def exact(self, rule: str) -> bool:
        """Whether the set of classes by a rule is the true one; false where the rule does not apply."""
        return rule in self.by and torch.equal(self.by[rule].present, self.true > 0)

    def counts_right(self, rule: str) -> float | None:
        """The share of samples with the right label by a rule; ``None``: the rule gives no counts."""
        counts = self.by[rule].counts if rule in self.by else None
        return None if counts is None else count_accuracy(counts, self.true)


@dataclass(frozen=True)
class LabelFindings:
    """What messages reveal of labels: by message, by rule, and by client over all rounds."""

    labels: tuple[LabelResult, ...]
    rules: tuple[LabelRule, ...]
    over_rounds: tuple[LabelResult, ...]


def label_findings(messages: Sequence[Labels]) -> LabelFindings:
    """What messages reveal of their senders' labels.

    The best rule is the one that is exact for most messages, and the best rule for counts the one that is right for most samples;
    neither is chosen for a single message. A message to which the best one does not apply is read by the next.
    """
    sets, counts = _ranked(messages)
    return LabelFindings(
        tuple(_result(message, sets, counts) for message in messages),
        tuple(_of_rule(rule, messages, sets, counts) for rule in _names(messages)),
        tuple(labels_over_rounds(messages)),
    )


def _names(messages: Sequence[Labels]) -> list[str]:
    """All rules that were tried."""
    return list(dict.fromkeys(rule for message in messages for rule in (*message.by, *message.not_applicable)))


def _ranked(messages: Sequence[Labels]) -> tuple[list[str], list[str]]:
    """The rules that apply to some message, the best for sets first; and those that give counts, the best for counts first.

    Clients that hold every class are used only to break ties, as their sets reveal least.
    """
    applied = [rule for rule in _names(messages) if any(rule in message.by for message in messages)]

    def right(rule: str) -> float:
        return sum(message.counts_right(rule) or 0.0 for message in messages)

    def exact(rule: str) -> tuple[int, int, float]:
        lacking = sum(message.exact(rule) for message in messages if not bool(message.true.all()))
        return lacking, sum(message.exact(rule) for message in messages), right(rule)

    counting = [rule for rule in applied if any(message.counts_right(rule) is not None for message in messages)]
    return sorted(applied, key=exact, reverse=True), sorted(counting, key=right, reverse=True)


def _result(message: Labels, sets: Sequence[str], counts: Sequence[str]) -> LabelResult:
    rule = next((name for name in sets if name in message.by), None)
    counting = next((name for name in counts if message.counts_right(name) is not None), None)
    equal_counts = to_counts(torch.ones(len(message.true)), int(message.true.sum()))
    return LabelResult(
        round=message.round,
        sender=message.sender,
        rule=rule,
        stated=rule in (STATED, BEFORE_TRAINING),
        classes=len(message.true),
        true=_classes(message.true > 0),
        inferred=() if rule is None else _classes(message.by[rule].present),
        count_rule=counting,
        count_accuracy=None if counting is None else message.counts_right(counting),
        count_guess=count_accuracy(equal_counts, message.true),
        rules=len(sets),
        guess=message.guess,
        note=None if rule else "; ".join(dict.fromkeys(message.not_applicable.values())),
        limit=message.limit,
    )


def _classes(present: Tensor) -> tuple[int, ...]:
    return tuple(present.nonzero().flatten().tolist())


def _of_rule(rule: str, messages: Sequence[Labels], sets: Sequence[str], counts: Sequence[str]) -> LabelRule:
    read = [message for message in messages if rule in message.by]
    exact = sum(message.exact(rule) for message in read)
    reasons = [message.not_applicable[rule] for message in messages if rule in message.not_applicable]
    of_all = rate_of_rules(exact, len(read), len(sets)) if read else None
    return LabelRule(
        rule=rule,
        rests_on=_rests_on(rule),
        messages=len(read),
        exact=wilson(exact, len(read)) if read else None,
        together=None if of_all is None else Interval(of_all.low, of_all.high, len(sets)),
        count_accuracy=_mean_counts(rule, read),
        best=rule == next(iter(sets), None),
        best_counts=rule == next(iter(counts), None),
        not_applicable="; ".join(dict.fromkeys(reasons)) or None,
    )


def _rests_on(rule: str) -> str:
    if rule == BEFORE_TRAINING:
        return "the statistics that the client sent before round 1, with the number of its samples of each class"
    return RULES[next(name for name in RULES if rule.endswith(name))].rests_on


def _mean_counts(rule: str, messages: Sequence[Labels]) -> float | None:
    """The mean share of samples with the right label by a rule, over the messages for which it gives counts."""
    right = [share for message in messages if (share := message.counts_right(rule)) is not None]
    return sum(right) / len(right) if right else None


def labels_over_rounds(messages: Sequence[Labels]) -> list[LabelResult]:
    """The labels of each client with at least two messages that a rule applies to, from all of them together.

    A client's data do not change, but what its messages reveal does. By a rule a class counts as present if at least half of the
    messages show it; counts are means over the messages, restricted to that set. One rule is chosen for all clients.
    """
    by_client = [[message for message in messages if message.client == number] for number in sorted({m.client for m in messages})]
    pooled = [(own, together) for own in by_client if (together := _together(own)).by]
    sets, counts = _ranked([together for _, together in pooled])
    results = []
    for own, together in pooled:
        result = _result(together, sets, counts)
        rule = result.rule or ""
        read = [message for message in own if rule in message.by]
        results.append(
            replace(
                result,
                round=None,
                messages=len(read),
                single_exact=sum(message.exact(rule) for message in read),
                single_count_accuracy=_mean_counts(result.count_rule or "", read),
            )
        )
    return results


def _together(own: Sequence[Labels]) -> Labels:
    """A client's messages as one, by each rule that applies to at least two of them."""
    by = dict[str, LabelSet]()
    for rule in _names(own):
        sets = [message.by[rule] for message in own if rule in message.by]
        if len(sets) < 2:
            continue
        present = 2 * torch.stack([labels.present for labels in sets]).sum(0) >= len(sets)
        counted = [labels.counts.double() for labels in sets if labels.counts is not None]
        counts = to_counts(torch.stack(counted).mean(0) * present, int(own[0].true.sum())) if counted else None
        by[rule] = LabelSet(present, counts)
    return replace(own[0], by=by, not_applicable={}, limit=None)


def infer_labels(record: Record, round: int, client: int) -> Labels:
    """Infer the client's labels from its message, by every rule of :mod:`fedpriv.attacks.api.label_rules` that applies; of a run
    also from statistics that are gradients, and from the counts that the client told before round 1."""
    message, samples = record.message(round, client), record.public_samples()
    true, plain = torch.bincount(record.labels(client), minlength=record.classes), record.plain_change(message)
    seen = record.observation(message, ThreatModel())
    if plain.uncorrected and plain.open is not None:
        inferred = infer(seen, samples, only=[STATED])
        inferred = Inferred(inferred.by, dict.fromkeys((rule for rule in RULES if rule not in inferred.by), plain.open))
    else:
        inferred = infer(seen, samples)
    by, not_applicable = dict(inferred.by), dict(inferred.not_applicable)
    for what, of in _statistics(record, message) if isinstance(record, RunRecord) else ():
        rules = [rule for rule in RULES if rule != STATED]
        read = Inferred({}, dict.fromkeys(rules, of)) if isinstance(of, str) else infer(of, samples, only=rules)
        by |= {f"{what}, {rule}": labels for rule, labels in read.by.items()}
        not_applicable |= {f"{what}, {rule}": reason for rule, reason in read.not_applicable.items()}
    if (counts := record.told_classes(client)) is not None:
        by[BEFORE_TRAINING] = LabelSet(counts > 0, counts)
    sender, guess = record.sender(round, client), record.set_guess(true)
    return Labels(round, client, sender, by, true, not_applicable, guess, plain.open)


def _statistics(record: RunRecord, message: Message) -> Iterator[tuple[str, Observation | str]]:
    """The statistics that are gradients, as attackers see them, or why they cannot be read.

    Such a gradient may be a mean or a sum over the samples, so that it is known up to a factor.
    """
    for what in record.gradients(message):
        try:
            observation = record.observation(message, ThreatModel(), what)
        except UsageError as reason:
            yield what, str(reason)
            continue
        yield what, replace(observation, altered=replace(observation.altered, rescaled=True))


def shadow_labels(record: Record, round: int, shadows: int, seed: int, in_time: Callable[[], None] = unlimited) -> ShadowLabels:
    """Infer the label sets of a round's kept clients from the changes of the shared weights; needs no head and no centres.

    The server simulates local updates on public data (the data set's test split) with chosen label sets, and trains a classifier
    on them. It learns nothing of a class that all simulated clients hold, or none, and never predicts some sets.

    Args:
        in_time: called before each local update; raises :class:`fedpriv.audit.progress.BudgetSpent` where none may begin.

    Raises:
        FedprivError: a shadow local update diverged, or no client has complete samples as the shadows have.
    """
    if record.summed:
        raise FedprivError(
            f"shadow clients hold 1 to {MOST_LABELS} classes each, but a sum has the classes of all its clients, so they do not "
            "resemble it"
        )
    clients = record.whole_clients(round)  # as the shadows are
    messages = [record.message(round, client) for client in clients]
    classes = record.classes
    noise = generator(seed, round, "label sets")
    sizes = torch.randint(1, min(MOST_LABELS, classes) + 1, (shadows,), generator=noise).tolist()
    sets = torch.zeros(shadows, classes, dtype=torch.bool)
    for row, size in zip(sets, sizes, strict=True):
        row[torch.randperm(classes, generator=noise)[:size]] = True
    samples = record.samples_behind(messages[0])

    def changes() -> Iterator[dict[str, Tensor]]:
        def data(number: int) -> Split:
            in_time()
            return _public_like(record, sets, samples, number)

        for simulated in record.shadows(round, clients[0], data, range(shadows)):
            if simulated is None:
                raise FedprivError(f"round {round}: the local update of a shadow client diverged, as a real one's may have")
            yield _changes(record, simulated)

    classifier = fit_shadows(changes(), sets)

    sent, true = [_changes(record, message) for message in messages], record.label_sets(clients)
    report = score_shadows(classifier, sent, true, record.label_sets(record.holders()))
    held = true.sum(1)
    lacks = held < classes
    wider = lacks & (held > int(sets.sum(1).max()))
    learned = sets.any(0) & ~sets.all(0)
    unlearned = lacks & ~wider & ((true != sets.all(0))[:, ~learned].any(1) | ~learned.any())
    earlier = [
        isinstance(record, RunRecord) and keeps_state(record) and had_earlier_update(record, round, client) for client in clients
    ]
    later = torch.tensor(earlier) & lacks
    return ShadowLabels(report, round, shadows, wider=int(wider.sum()), unlearned=int(unlearned.sum()), later=int(later.sum()))


def _changes(record: Record, message: Message) -> dict[str, Tensor]:
    """The changes of the shared parameters in the order of the net; the last ones depend most on labels."""
    change = record.plain_change(message).of
    return {name: change[name].cpu() for name in record.parameters() if name in change}


def _public_like(record: Record, sets: Tensor, samples: int, number: int) -> Split:
    """``samples`` of the server's own samples with the labels of a shadow client's set; repeated where there are fewer."""
    labels = record.server_labels()
    positions = sets[number].to(labels.device)[labels].nonzero().flatten()
    if not len(positions):
        raise FedprivError("no sample of the server's own has a class of a simulated client")
    order = torch.randperm(len(positions), generator=generator(number, "shadow client")).to(positions.device)
    chosen = positions[order].repeat(-(-samples // max(1, len(positions))))[:samples]
    return record.server_samples(chosen)
