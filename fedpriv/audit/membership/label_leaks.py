"""A client's labels from its messages: by every rule that applies, over several rounds, and by shadow clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from fedpriv.audit.record.base import Message, Record
from fedpriv.audit.record.earlier_updates import had_earlier_update, keeps_state
from fedpriv.audit.record.run import RunRecord
from fedpriv.audit.record.shadow_updates import ShadowUpdates
from fedpriv.audit.results import Interval, LabelResult, LabelRule, Sender, ShadowLabels
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError
from fedpriv.seeding import generator

MOST_LABELS = 4
"""Shadow clients hold one to so many classes, as the attacker does not know the true number."""


@dataclass(frozen=True)
class Labels:
    """What a message shows of its sender's labels, by each rule.

    Attributes:
        by: rule -> the classes and counts that it finds.
        true: the true counts ``(C,)``, for scoring.
        not_applicable: rule -> why it does not apply.
        guess: the share of clients whose set is found by naming the same one each time; ``None``: it is not known.
        limit: why it says nothing if the classes were not found; ``None``: it does.
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
        """Whether the set of classes by a rule is the true one; not so where the rule does not apply."""
        return rule in self.by and torch.equal(self.by[rule].present, self.true > 0)

    def counted(self, rule: str) -> float | None:
        """The share of the samples whose label a rule found; ``None``: it shows no counts."""
        counts = self.by[rule].counts if rule in self.by else None
        return None if counts is None else count_accuracy(counts, self.true)

    @property
    def by_equal_counts(self) -> float:
        """The share of the samples whose label is found by naming all classes equally often, without any message."""
        return count_accuracy(to_counts(torch.ones(len(self.true)), int(self.true.sum())), self.true)


@dataclass(frozen=True)
class LabelFindings:
    """
    Attributes:
        labels: by message.
        rules: each that was tried.
        over_rounds: by client, see :func:`labels_over_rounds`.
    """

    labels: tuple[LabelResult, ...]
    rules: tuple[LabelRule, ...]
    over_rounds: tuple[LabelResult, ...]


def findings_of(messages: Sequence[Labels]) -> LabelFindings:
    """What messages show of their senders' labels.

    The best rule is the one that finds most sets over all messages, and the best rule for counts the one that finds the labels of
    most samples; neither is chosen for a single message. A message to which the best one does not apply is read by the next.
    """
    sets, counts = _ranked(messages)
    return LabelFindings(
        tuple(_result(one, sets, counts) for one in messages),
        tuple(_of_rule(rule, messages, sets, counts) for rule in _names(messages)),
        tuple(labels_over_rounds(messages)),
    )


def _names(messages: Sequence[Labels]) -> list[str]:
    """All rules that were tried."""
    return list(dict.fromkeys(rule for one in messages for rule in (*one.by, *one.not_applicable)))


def _ranked(messages: Sequence[Labels]) -> tuple[list[str], list[str]]:
    """The rules that apply to some message, the best for sets first; and those that show counts, the best for counts first.

    Sets of clients that hold every class say least, and decide only between rules that are equal in the others.
    """
    applied = [rule for rule in _names(messages) if any(rule in one.by for one in messages)]

    def right(rule: str) -> float:
        return sum(one.counted(rule) or 0.0 for one in messages)

    def exact(rule: str) -> tuple[int, int, float]:
        lacking = sum(one.exact(rule) for one in messages if not bool(one.true.all()))
        return lacking, sum(one.exact(rule) for one in messages), right(rule)

    counting = [rule for rule in applied if any(one.counted(rule) is not None for one in messages)]
    return sorted(applied, key=exact, reverse=True), sorted(counting, key=right, reverse=True)


def _result(one: Labels, sets: Sequence[str], counts: Sequence[str]) -> LabelResult:
    rule = next((name for name in sets if name in one.by), None)
    counting = next((name for name in counts if one.counted(name) is not None), None)
    return LabelResult(
        round=one.round,
        sender=one.sender,
        rule=rule,
        stated=rule == STATED,
        classes=len(one.true),
        true=_classes(one.true > 0),
        found=() if rule is None else _classes(one.by[rule].present),
        count_rule=counting,
        count_accuracy=None if counting is None else one.counted(counting),
        count_guess=one.by_equal_counts,
        rules=len(sets),
        guess=one.guess,
        note=None if rule else "; ".join(dict.fromkeys(one.not_applicable.values())),
        limit=one.limit,
    )


def _classes(present: Tensor) -> tuple[int, ...]:
    return tuple(present.nonzero().flatten().tolist())


def _of_rule(rule: str, messages: Sequence[Labels], sets: Sequence[str], counts: Sequence[str]) -> LabelRule:
    read = [one for one in messages if rule in one.by]
    right = [share for one in read if (share := one.counted(rule)) is not None]
    exact = sum(one.exact(rule) for one in read)
    reasons = [one.not_applicable[rule] for one in messages if rule in one.not_applicable]
    of_all = rate_of_rules(exact, len(read), len(sets)) if read else None
    return LabelRule(
        rule=rule,
        rests_on=RULES[next(name for name in RULES if rule.endswith(name))].rests_on,
        messages=len(read),
        exact=wilson(exact, len(read)) if read else None,
        together=None if of_all is None else Interval(of_all.low, of_all.high, len(sets)),
        count_accuracy=sum(right) / len(right) if right else None,
        best=rule == next(iter(sets), None),
        best_counts=rule == next(iter(counts), None),
        not_applicable="; ".join(dict.fromkeys(reasons)) or None,
    )


def labels_over_rounds(messages: Sequence[Labels]) -> list[LabelResult]:
    """The labels of each client with at least two messages that a rule applies to, from all of them together.

    A client's data do not change, but what one round shows of them does. By a rule a class counts as present if at least half of
    the messages show it; counts are the mean of those of its messages, within that set. The best rule is that over all clients.
    """
    together = [
        _together([one for one in messages if one.client == client]) for client in sorted({one.client for one in messages})
    ]
    pooled = [one for one in together if one.by]
    sets, counts = _ranked(pooled)
    found = []
    for one in pooled:
        result = _result(one, sets, counts)
        rule, counting = result.rule or "", result.count_rule or ""
        own = [message for message in messages if message.client == one.client and rule in message.by]
        alone = [share for message in own if (share := message.counted(counting)) is not None]
        found.append(
            replace(
                result,
                round=None,
                messages=len(own),
                single_exact=sum(message.exact(rule) for message in own),
                single_count_accuracy=sum(alone) / len(alone) if alone else None,
            )
        )
    return found


def _together(own: Sequence[Labels]) -> Labels:
    """A client's messages as one, by each rule that applies to at least two of them."""
    by = dict[str, LabelSet]()
    for rule in _names(own):
        sets = [one.by[rule] for one in own if rule in one.by]
        if len(sets) < 2:
            continue
        present = 2 * torch.stack([one.present for one in sets]).sum(0) >= len(sets)
        counted = [one.counts.double() for one in sets if one.counts is not None]
        counts = to_counts(torch.stack(counted).mean(0) * present, int(own[0].true.sum())) if counted else None
        by[rule] = LabelSet(present, counts)
    return replace(own[0], by=by, not_applicable={}, limit=None)


def labels_of(record: Record, round: int, client: int) -> Labels:
    """Infer the client's labels from its message, by every rule of :mod:`fedpriv.attacks.api.label_rules` that applies; of a run
    also from statistics that are gradients."""
    message, samples = record.message(round, client), record.public_samples()
    true, plain = torch.bincount(record.labels(client), minlength=record.classes), record.plain_change(message)
    seen = record.observation(message, ThreatModel())
    if plain.corrected and plain.open is not None:
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
    sender, guess = record.sender(round, client), record.set_guess(true)
    return Labels(round, client, sender, by, true, not_applicable, guess, plain.open)


def _statistics(record: RunRecord, message: Message) -> Iterator[tuple[str, Observation | str]]:
    """The statistics that are gradients, as attackers see them, or why they cannot be read.

    Such a gradient may be a mean or a sum over the samples, so that it is known up to a factor.
    """
    for what in record.gradients(message):
        try:
            seen = record.observation(message, ThreatModel(), what)
        except UsageError as reason:
            yield what, str(reason)
            continue
        yield what, replace(seen, altered=replace(seen.altered, rescaled=True))


def shadow_labels(evidence: RunRecord, round: int, shadows: int, seed: int) -> ShadowLabels:
    """Infer the label sets of a round's kept clients from the changes of the shared weights; needs no head and no centres.

    The server simulates turns on public data (the data set's test split) with chosen label sets, and trains a classifier on them.
    It names some sets of no message, as it says the same of all messages for a class that all simulated clients hold, or none.

    Raises:
        FedprivError: a shadow local update diverged, or no client has complete samples as the shadows have.
    """
    if evidence.summed:
        raise FedprivError(f"a shadow holds one to {MOST_LABELS} classes, and a sum those of all its clients")
    clients = evidence.whole_clients(round)  # as the shadows are
    messages = [evidence.message(round, client) for client in clients]
    download, federation = evidence.store.download(round), evidence.federation
    assert download is not None
    updates = ShadowUpdates(federation, round, download, evidence.store.broadcast())
    classes = len(federation.dataset.classes)
    draw = generator(seed, round, "label sets")
    sizes = torch.randint(1, min(MOST_LABELS, classes) + 1, (shadows,), generator=draw).tolist()
    sets = torch.zeros(shadows, classes, dtype=torch.bool)
    for row, size in zip(sets, sizes, strict=True):
        row[torch.randperm(classes, generator=draw)[:size]] = True
    samples = messages[0].num_examples or 10 * federation.config.train.batch_size

    def changes() -> Iterator[dict[str, Tensor]]:
        for result in updates.run(lambda number: _public(evidence, sets[number], samples, number), range(shadows)):
            if result is None:
                raise FedprivError(f"round {round}: the local update of a shadow client diverged, as a real one's may have")
            yield _changes(evidence, messages[0].simulated(result.uploaded))

    classifier = fit_shadows(changes(), sets)

    sent, true = [_changes(evidence, one) for one in messages], evidence.label_sets(clients)
    report = score_shadows(classifier, sent, true, evidence.label_sets(federation.data.nonempty))
    held, most = true.sum(1), int(sets.sum(1).max())
    lacks = held < classes
    wider = lacks & (held > most)
    learned = sets.any(0) & ~sets.all(0)
    unlearned = lacks & ~wider & ((true != sets.all(0))[:, ~learned].any(1) | ~learned.any())
    before = [keeps_state(evidence) and had_earlier_update(evidence, round, client) for client in clients]
    later = int((torch.tensor(before) & lacks).sum())
    return ShadowLabels(report, round, shadows, wider=int(wider.sum()), unlearned=int(unlearned.sum()), later=later)


def _changes(evidence: RunRecord, message: Message) -> dict[str, Tensor]:
    """The changes of the shared parameters in the order of the net; the last ones depend most on labels."""
    change = evidence.plain_change(message).of
    return {name: change[name].cpu() for name, _ in evidence.federation.resident.net.named_parameters() if name in change}


def _public(evidence: RunRecord, present: Tensor, samples: int, number: int) -> Split:
    """``samples`` samples of the test split with these labels; repeated where there are fewer."""
    data = evidence.federation.data
    labels = data.labels("server")
    positions = present.to(labels.device)[labels].nonzero().flatten()
    order = torch.randperm(len(positions), generator=generator(number, "shadow client")).to(positions.device)
    chosen = positions[order].repeat(-(-samples // max(1, len(positions))))[:samples]
    return data.pick("server", chosen)
