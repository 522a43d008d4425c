"""A client's labels from its messages: stated in them, by rules for the last layer, over several rounds, or by shadow clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.core.observation import Observation, ThreatModel
from fedpriv.attacks.core.reconstruction import Inapplicable
from fedpriv.attacks.image.centers import read_label_set
from fedpriv.attacks.inference.labels import batch_labels, count_accuracy, present_classes, to_counts
from fedpriv.attacks.inference.shadow import fit_shadows, score_shadows
from fedpriv.attacks.scoring.guessing import most_common_share
from fedpriv.audit.evidence.earlier_turns import had_earlier_turn, keeps_state, plain_change
from fedpriv.audit.evidence.messages import Evidence, Message
from fedpriv.audit.evidence.shadow_turns import ShadowTurns
from fedpriv.audit.evidence.statistics import as_gradient, exposed, gradient_like
from fedpriv.audit.membership.classes import NO_RULE, STATED
from fedpriv.data.federated import Split
from fedpriv.errors import FedprivError, UsageError
from fedpriv.seeding import generator

MOST_LABELS = 4
"""Shadow clients hold one to so many classes, as the attacker does not know the true number."""

RULE = "last layer: its bias rose for the classes that are there"


@dataclass(frozen=True)
class Labels:
    """What a message shows of its sender's labels.

    Attributes:
        how: the rule that was used.
        present: the classes that were found ``(C,)``.
        counts: of each class ``(C,)``; ``None`` where only the set can be inferred.
        true: the true counts ``(C,)``, for scoring.
        guess: the share of clients whose set is found by naming the same one each time; ``None``: it is not known.
        open: why it says nothing if the classes were not found; ``None``: it does.
    """

    round: int
    client: int
    sender: int | str
    how: str
    present: Tensor
    counts: Tensor | None
    true: Tensor
    note: str | None
    guess: float | None = None
    open: str | None = None

    def described(self) -> dict[str, Any]:
        """As JSON.

        ``applies``: whether a rule did; ``exact``: whether the set of classes is right; ``count_accuracy``: the share of samples
        whose label was found.
        """
        scored = {"of": len(self.true), **_scored(self.present, self.counts, self.true)}
        applies = self.how != NO_RULE
        return {
            "round": self.round,
            "client": self.sender,
            "how": self.how,
            "applies": applies,
            **scored,
            "guess": self.guess,
            "note": self.note,
            "open": self.open,
        }


def _scored(present: Tensor, counts: Tensor | None, true: Tensor) -> dict[str, Any]:
    return {
        "true": (true > 0).nonzero().flatten().tolist(),
        "found": present.nonzero().flatten().tolist(),
        "exact": bool(torch.equal(present, true > 0)),
        "count_accuracy": None if counts is None else count_accuracy(counts, true),
    }


def labels_over_rounds(messages: Sequence[Labels]) -> list[dict[str, Any]]:
    """The labels of each client with at least two messages that a rule applies to, from all of them together, as JSON.

    A client's data do not change, but what one round shows of them does. A class counts as present if at least half of the
    messages show it; counts are the mean of those of its messages, within that set. ``single_exact`` of the messages were exact
    on their own, with a mean count accuracy of ``single_count_accuracy``.
    """
    found = []
    for client in sorted({one.client for one in messages}):
        own = [one for one in messages if one.client == client and one.how != NO_RULE]
        if len(own) < 2:
            continue
        present = 2 * torch.stack([one.present for one in own]).sum(0) >= len(own)
        counted = [one.counts.double() for one in own if one.counts is not None]
        true, counts = own[0].true, None
        if counted:
            counts = to_counts(torch.stack(counted).mean(0) * present, int(true.sum()))
        alone = [one.described() for one in own]
        accuracies = [one["count_accuracy"] for one in alone if one["count_accuracy"] is not None]
        found.append(
            {
                "client": own[0].sender,
                "messages": len(own),
                "how": "; ".join(dict.fromkeys(one.how for one in own)),
                "of": len(true),
                "guess": own[0].guess,
                **_scored(present, counts, true),
                "single_exact": sum(one["exact"] for one in alone),
                "single_count_accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
            }
        )
    return found


def labels_of(evidence: Evidence, round: int, client: int) -> Labels:
    """Infer the client's labels from its message, by the first method that applies."""
    message = evidence.message(round, client)
    observation = evidence.attacker.observation(message, ThreatModel())
    labels, classes = evidence.labels(client), len(evidence.federation.dataset.classes)
    true = torch.bincount(labels, minlength=classes)
    guess = None if evidence.summed else most_common_share(_label_sets(evidence, evidence.federation.data.nonempty))
    counts: Tensor | None = None
    note = None
    plain = plain_change(evidence, message)
    try:
        read = read_label_set(observation)
        how, found, counts = STATED, read.present, read.counts
    except Inapplicable:
        ways: dict[str, Callable[[], Observation]] = {} if plain.corrected else {RULE: lambda: observation}
        gradients = gradient_like(message)
        unaltered = exposed(evidence) if gradients else ()
        for what in gradients:
            reader = partial(as_gradient, evidence, message, what, ThreatModel())
            # A statistic that no defence altered is used before the altered model.
            read_as = f"{what}, of the last layer: the bias gradient is negative for the classes that are there"
            ways = {read_as: reader, **ways} if what in unaltered else {**ways, read_as: reader}
        how, found = NO_RULE, torch.zeros(classes, dtype=torch.bool)
        reasons = [plain.open] if plain.corrected and plain.open is not None else []
        for rule, observe in ways.items():
            try:
                seen = observe()
                present = present_classes(seen).cpu()
                # A statistic may be a mean or a sum over the samples, so it shows no counts.
                guessed = torch.bincount(batch_labels(seen), minlength=classes) if seen.kind == "change" else None
            except (Inapplicable, UsageError) as error:
                reasons.append(str(error))
                continue
            how, found = rule, present
            if guessed is not None:
                counts = to_counts((guessed * found).double(), len(labels))
            break
        else:
            note = "; ".join(dict.fromkeys(reasons))
    return Labels(round, client, evidence.sender(round, client), how, found, counts, true, note, guess, plain.open)


def shadow_labels(evidence: Evidence, round: int, shadows: int, seed: int) -> dict[str, Any]:
    """Infer the label sets of a round's kept clients from the changes of the shared weights; needs no head and no centres.

    The server simulates turns on public data (the data set's test split) with chosen label sets, and trains a classifier on them.
    Of the clients that lack a class, ``wider`` hold more classes than any simulated one; of the others, ``unlearned`` have a set
    that the classifier names of no message, as it says the same of all messages for a class that all simulated clients hold, or
    none; and ``later`` kept something from an earlier turn, as no simulated one did.

    Raises:
        FedprivError: a shadow turn diverged, or no client has complete samples as the shadows have.
    """
    if evidence.summed:
        raise FedprivError(f"a shadow holds one to {MOST_LABELS} classes, and a sum those of all its clients")
    clients = evidence.whole_clients(round)  # as the shadows are
    messages = [evidence.message(round, client) for client in clients]
    download, federation = evidence.store.download(round), evidence.federation
    assert download is not None
    turns = ShadowTurns(federation, round, download, evidence.store.broadcast())
    classes = len(federation.dataset.classes)
    draw = generator(seed, round, "label sets")
    sizes = torch.randint(1, min(MOST_LABELS, classes) + 1, (shadows,), generator=draw).tolist()
    sets = torch.zeros(shadows, classes, dtype=torch.bool)
    for row, size in zip(sets, sizes, strict=True):
        row[torch.randperm(classes, generator=draw)[:size]] = True
    samples = messages[0].num_examples or 10 * federation.config.train.batch_size

    def changes() -> Iterator[dict[str, Tensor]]:
        for result in turns.run(lambda number: _public(evidence, sets[number], samples, number), range(shadows)):
            if result is None:
                raise FedprivError(f"round {round}: the turn of a shadow client diverged, as a real one's may have")
            yield _changes(evidence, messages[0].simulated(result.uploaded))

    classifier = fit_shadows(changes(), sets)

    sent, true = [_changes(evidence, one) for one in messages], _label_sets(evidence, clients)
    report = score_shadows(classifier, sent, true, _label_sets(evidence, federation.data.nonempty))
    auc = None if report.auc != report.auc else report.auc
    held, most = true.sum(1), int(sets.sum(1).max())
    lacks = held < classes
    wider = lacks & (held > most)
    learned = sets.any(0) & ~sets.all(0)
    unlearned = lacks & ~wider & ((true != sets.all(0))[:, ~learned].any(1) | ~learned.any())
    before = [keeps_state(evidence) and had_earlier_turn(evidence, round, client) for client in clients]
    later = int((torch.tensor(before) & lacks).sum())
    counts = {"wider": int(wider.sum()), "unlearned": int(unlearned.sum()), "later": later}
    return asdict(report) | {"auc": auc, "round": round, "shadows": shadows} | counts


def _label_sets(evidence: Evidence, clients: Sequence[int]) -> Tensor:
    """``(n, C)`` bool."""
    classes = len(evidence.federation.dataset.classes)
    return torch.stack([torch.bincount(evidence.labels(one), minlength=classes) > 0 for one in clients])


def _changes(evidence: Evidence, message: Message) -> dict[str, Tensor]:
    """The changes of the shared parameters in the order of the net; the last ones depend most on labels."""
    change = plain_change(evidence, message).of
    return {name: change[name].cpu() for name, _ in evidence.federation.resident.net.named_parameters() if name in change}


def _public(evidence: Evidence, present: Tensor, samples: int, number: int) -> Split:
    """``samples`` samples of the test split with these labels; repeated where there are fewer."""
    data = evidence.federation.data
    labels = data.labels("server")
    positions = present.to(labels.device)[labels].nonzero().flatten()
    order = torch.randperm(len(positions), generator=generator(number, "shadow client")).to(positions.device)
    chosen = positions[order].repeat(-(-samples // max(1, len(positions))))[:samples]
    return data.pick("server", chosen)
