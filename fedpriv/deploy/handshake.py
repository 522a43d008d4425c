"""The checks that clients fit to the server, and to each other, by what they declare before the first round."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedpriv.config import RunConfig
from fedpriv.data.statistics.fitting import ColumnForm, SampleKind
from fedpriv.deploy.facts import Facts, class_names
from fedpriv.deploy.frames import one_line
from fedpriv.deploy.versions import check_code
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import BUILT_IN
from fedpriv.models.user_net import is_user_net
from fedpriv.simulation.inputs.unseen import SampleForm
from fedpriv.untrusted.names import shortened

MAX_CLOCK_DIFFERENCE = 300.0
"""Seconds; certificates, keys and times to live depend on the clocks."""
_SUGGESTED = re.compile(
    r"data\.(partition\.\w+|image_size|max_tokens|augment)|train\.(lr|participation|batch_size|local_epochs|optimizer)"
    r"|model\.(encoder|backbone|pretrained|projection|projector|predictor|tune)",
    re.ASCII,
)
"""Config keys that a data set may suggest values for."""
MAX_SAMPLES = 2**31 - 1
"""The most samples that a client may declare. The server cannot check the number, and weights uploads by it."""


def check_together(facts: Sequence[Facts]) -> None:
    """Check that clients can train together.

    Args:
        facts: of all clients, in order.

    Raises:
        UsageError: names the client that differs, and in what.
    """
    first = facts[0]
    for other in facts[1:]:
        _check_same(first, other, "form", "samples of", _form)
        if (labels := _labels(other)) != _labels(first):
            raise UsageError(
                f"labels are {_labels(first)} at client {first.client}, and {labels} at client {other.client}; "
                "--set data.task=regression, or classification, says what they are"
            )
        if _is_table(first):
            _check_classes(facts, other)
        else:
            of_classes = partial(_class_difference, first=first.classes, other=other.classes)
            _check_same(first, other, "classes", "the classes", of_classes)
        _check_same(first, other, "default_model", "the default net", str)
        _check_same(first, other, "suggests", "suggestions", str)
        _check_same(first, other, "partition", "the partition", _partition)
    if not any(client.train for client in facts):
        raise UsageError("no client holds training data")


def check_alone(facts: Facts, now: float) -> None:
    """Check that a client can train with this server, whatever the others are.

    Args:
        now: the server's clock, in seconds since 1970.

    Raises:
        UsageError: it cannot.
    """
    check_code(facts.code, f"client {facts.client} runs")
    if abs(facts.time - now) > MAX_CLOCK_DIFFERENCE:
        raise UsageError(f"the clock of client {facts.client} is {facts.time - now:+.0f} s from the server's; set both by NTP")
    _check_suggestions(facts)
    for number in (facts.train, facts.test):
        if not 0 <= number <= MAX_SAMPLES:
            raise UsageError(f"client {facts.client} declares {shortened(str(number), 30, 5)} samples, not 0 to {MAX_SAMPLES}")


def warn_of_majorities(facts: Sequence[Facts], config: RunConfig) -> list[str]:
    """Warnings about a client with more than half of all training samples (if uploads are weighted by them) or test samples."""
    warnings = []
    if (config.aggregation or config.method).params.get("weights") != "uniform":
        what = (
            "training samples, which the server cannot check: where uploads are weighted by samples, the model is mostly its own"
        )
        warnings += _majority({client.client: client.train for client in facts}, what)
    what = "test samples, which the server cannot check: the accuracy that is weighted by samples is mostly its own"
    return warnings + _majority({client.client: client.test for client in facts}, what)


def _majority(samples: Mapping[int, int], what: str) -> list[str]:
    sizes = {client: size for client, size in samples.items() if size}
    total, client = sum(sizes.values()), max(sizes, key=sizes.__getitem__, default=0)
    if len(sizes) < 3 or 2 * sizes[client] <= total:
        return []
    return [f"client {client} declares {sizes[client]} of all {total} {what}"]


def _is_table(facts: Facts) -> bool:
    return facts.unscaled is not None and bool(facts.unscaled.columns)


def warn_of_classes(facts: Sequence[Facts]) -> list[str]:
    """Warnings about clients without a sample of some classes."""
    names = class_names(facts)
    return [
        f"client {client.client} has no sample of {', '.join(map(repr, lacking[:5]))}{', ...' if len(lacking) > 5 else ''}"
        for client in facts
        if (lacking := [name for name in map(one_line, names) if name not in map(one_line, client.classes)])
    ]


def agreed_kind(facts: Sequence[Facts]) -> SampleKind | None:
    """What is to be known of all clients' samples before they can be scaled and coded; ``None``: it is known.

    A column of a table is a feature if it is one by the rows of clients that hold most of the rows with values in it.

    Raises:
        UsageError: clients have other kinds of samples, a client lacks a column, or a column holds numbers at some of them alone.
    """
    first = facts[0].unscaled
    if strange := next((client for client in facts if _without_columns(client.unscaled) != _without_columns(first)), None):
        raise UsageError(f"client {strange.client} and client {facts[0].client} have samples of other kinds")
    if first is None or not first.columns:
        return first
    held = {client.client: {column.name: column for column in client.unscaled.columns} for client in facts if client.unscaled}
    columns = [_agreed_column(column.name, facts, held) for column in first.columns]
    for client in facts:
        for name, column in held[client.client].items():
            if name not in held[facts[0].client] and not column.left_out:
                raise _lacks(facts[0].client, name, client.client)
    return SampleKind(tuple(column for column in columns if column is not None), target=first.target)


def _labels(facts: Facts) -> str:
    """What a client's labels are, in words."""
    if facts.unscaled is None or (target := facts.unscaled.target) is None:
        return "classes"
    return f"numbers in column {one_line(target.name)!r}" + (f", written with {one_line(target.unit)}" if target.unit else "")


def _without_columns(kind: SampleKind | None) -> object:
    return kind and (bool(kind.columns), kind.channels, kind.images)


def _agreed_column(name: str, facts: Sequence[Facts], held: Mapping[int, Mapping[str, ColumnForm]]) -> ColumnForm | None:
    """A column as all clients have it; ``None``: it is no feature."""
    there = {client.client: column for client in facts if (column := held[client.client].get(name))}
    filled = {client: column for client, column in there.items() if column.kind != "empty"}
    rows = {client.client: client.train for client in facts}
    votes = sum(rows[client] if not column.left_out else -rows[client] for client, column in filled.items())
    if votes <= 0:
        return None
    if absent := sorted(rows.keys() - there.keys()):
        raise _lacks(absent[0], name, min(filled))
    client, column = next(iter(filled.items()))
    for other, differing in filled.items():
        if differing.kind != column.kind:
            numbers, texts = (client, other) if column.kind == "number" else (other, client)
            raise UsageError(
                f"column {one_line(name)!r} holds numbers at client {numbers}, and texts at client {texts}; write numbers in all "
                "files, and leave a cell empty where one is missing, or leave the column out (data.drop)"
            )
        if differing.unit != column.unit:
            units = ["plain numbers" if unit is None else one_line(unit) for unit in (column.unit, differing.unit)]
            raise UsageError(f"column {one_line(name)!r} is written as {units[0]} at client {client}, as {units[1]} at {other}")
    return ColumnForm(name, column.kind, column.unit)


def _lacks(client: int, name: str, other: int) -> UsageError:
    return UsageError(
        f"client {client} has no column {one_line(name)!r}, and client {other} has; add it, or leave it out everywhere "
        "(data.drop)"
    )


def _check_classes(facts: Sequence[Facts], client: Facts) -> None:
    """Check that a client has the classes of all, in their order; it may lack some."""
    names = class_names(facts)
    if client.classes != tuple(name for name in names if name in set(client.classes)):
        largest = next(other for other in facts if other.classes == names)
        describe = partial(_class_difference, first=largest.classes, other=client.classes)
        raise UsageError(
            f"client {client.client} has the classes {one_line(describe(client.classes))}, client {largest.client} "
            f"{one_line(describe(names))}; a client may lack classes, and have no others"
        )


def _check_same(first: Facts, other: Facts, field: str, what: str, describe: Callable[[Any], str]) -> None:
    expected, value = getattr(first, field), getattr(other, field)
    if expected != value:
        raise UsageError(
            f"client {other.client} has {what} {one_line(describe(value))}, client {first.client} "
            f"{one_line(describe(expected))}; they must be the same"
        )


def _check_suggestions(facts: Facts) -> None:
    """Check that a data set suggests only how to partition it and train on it, and nothing that a server would open or import."""
    if is_user_net(facts.default_model):
        raise UsageError(
            f"client {facts.client} suggests the net {one_line(facts.default_model)}, which would have to be imported"
        )
    for key, value in facts.suggests.items():
        if not _SUGGESTED.fullmatch(key) or (key == "model.encoder" and value not in BUILT_IN):
            raise UsageError(
                f"client {facts.client} suggests {one_line(key)} = {one_line(value)}, which is the operator's to choose"
            )


def _partition(hash: str | None) -> str:
    return "none (its own data)" if hash is None else str(hash)[:12]


def _form(form: SampleForm) -> str:
    parts = []
    if form.shape is not None:
        parts.append(("images of " if len(form.shape) == 3 else "rows of ") + "x".join(map(str, form.shape)))
    if form.words is not None:
        parts.append(f"texts of {form.words} words ({(form.tokenizer or '')[:12]})")
    return " with ".join(parts)


def _class_difference(classes: Sequence[str], first: Sequence[str], other: Sequence[str]) -> str:
    """The number of classes, and one that the other client has not, or that is missing. Linear: there may be a million."""
    own, common = set(classes), {*first} & {*other}
    extra = next((name for name in classes if name not in common), None)
    missing = next((name for name in (*first, *other) if name not in own), None)
    if extra is not None or missing is not None:
        return f"{len(classes)}, " + (f"with {extra!r}" if extra is not None else f"without {missing!r}")
    return f"{len(classes)} in another order"
