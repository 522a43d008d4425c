"""What an audit of a record will be able to tell, and what has to be recorded for more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fedpriv.recorder.layout import PROGRAM
from fedpriv.recorder.reader import Recorded


@dataclass(frozen=True)
class Ability:
    """A part of the audit.

    Attributes:
        missing: what to record so that it can be run; empty: it can be.
    """

    part: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contents:
    """What a record holds.

    Attributes:
        messages: answers of clients; ``attackable``: those with their download and their client's samples.
        ended: why the writer stopped before training did; ``None``: it did not, as far as the record says.
        cut: lines that a kill or a full disk cut off.
    """

    rounds: int
    clients: int
    messages: int
    attackable: int
    abilities: tuple[Ability, ...]
    ended: str | None
    cut: int


def check(record: Recorded) -> Contents:
    """Read a record, without its net, and say what an audit can tell.

    Raises:
        Damaged: a file is not what was written.
        UsageError: it is no record.
    """
    answers = record.answered()
    with_samples = {client for client in record.clients if record.has_truth(client)}
    for name in dict.fromkeys(name for client in record.clients for name in record.behind(client)):
        record.truth(name)  # reads it
    sent = [(round, client) for round, client in answers if record.received(round, client) is not None]
    for line in {(line.file, line.sha256): line for line in record.lines.values()}.values():
        record.tensors_of(line)  # reads it, and its checksum
    return Contents(
        rounds=len({round for round, _ in answers}),
        clients=len(record.clients),
        messages=len(answers),
        attackable=sum(client in with_samples for _, client in sent),
        abilities=tuple(_abilities(record, bool(sent), bool(with_samples))),
        ended=record.ended,
        cut=record.cut,
    )


def _abilities(record: Recorded, has_downloads: bool, has_samples: bool) -> Iterator[Ability]:
    facts, public = record.facts, record.public()
    base = [] if has_downloads else ["what clients were sent (record.sent)"]
    base += [] if has_samples else ["the samples of some clients (record.truth)"]
    if any(line.kind == "gradient" for line in record.lines.values()):
        steps, unknown = [], [] if facts.training.loss == "cross_entropy" else ["a loss of cross_entropy"]
    else:
        unknown = list(facts.training.unknown())
        steps = [what for what in unknown if what in ("lr", "local_epochs or local_steps")]
        steps += ["an optimizer of sgd"] if facts.training.optimizer != "sgd" else []
    if facts.transforms is None:
        unknown.append("transforms, what uploads went through")
    schedule, repeated = [f"training: {what}" for what in steps], [f"training: {what}" for what in unknown]
    yield Ability(f"samples: {facts.samples} behind the messages", (*base, *schedule))
    yield Ability("classes: the labels of clients, counted", (*base, *schedule))
    if record.sums:
        yield Ability("single samples", ("answers of single clients, in place of sums",))
    else:
        yield Ability("single samples: simulated clients that hold one sample each", (*base, *repeated))
    fewest = [] if public is None else Counter(public["labels"].tolist()).values()
    enough = len(fewest) > 0 and max(fewest) >= 2
    others = [] if enough else ["samples that are no client's, two or more of a class (record.public)"]
    yield Ability("membership: whether given samples are a client's, with shadow models", (*base, *repeated, *others))
    if facts.net == PROGRAM and (record.folder / PROGRAM).is_file():
        yield Ability(f"the net, from {PROGRAM}; give it to the audit as --model {record.folder / PROGRAM}, as it is code")
    elif facts.net == PROGRAM:
        yield Ability("the net", (f"{PROGRAM}, which net names",))
    else:
        yield Ability("the net, from its name", () if facts.net else ("net: package.module:Name, or give it to the audit",))
