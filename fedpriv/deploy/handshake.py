"""What clients declare before the first round, and whether it fits together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedpriv
from fedpriv.agreement import Declared
from fedpriv.config import RunConfig, parse
from fedpriv.deploy.frames import line_of
from fedpriv.errors import UsageError
from fedpriv.models.text.pretrained import BUILT_IN
from fedpriv.models.user_net import is_user_net
from fedpriv.samples import Modality
from fedpriv.simulation.inputs.unseen import SampleForm
from fedpriv.untrusted.names import shortened

HANDSHAKE = "handshake"
"""The run of frames before there is one."""
CLOCKS = 300.0
"""Seconds by which clocks may differ; certificates, keys and the time a message has depend on them."""
_SUGGESTED = re.compile(
    r"data\.(partition\.\w+|image_size|max_tokens|augment)|train\.(lr|participation|batch_size|local_epochs|optimizer)"
    r"|model\.(encoder|backbone|pretrained|projection|projector|predictor|tune)",
    re.ASCII,
)
"""Keys of the config that data sets suggest."""
MOST_SAMPLES = 2**31 - 1
"""That a client may declare to have. The server can check none of them, and counts uploads by them."""


@dataclass(frozen=True)
class Facts:
    """What a client declares: of its data nothing but this.

    Attributes:
        code: version of fedpriv, and the beginning of a hash of its source files.
        time: its clock, in seconds since 1970.
        train, test: numbers of samples.
        lacks: of image-text pairs, what it does not have.
        usual_model, suggests: what its data set suggests for open keys of the config.
        partition: hash of the partition of which it holds a share; ``None``: its data are its own.
    """

    client: int
    code: str
    time: float
    form: SampleForm
    classes: tuple[str, ...]
    train: int
    test: int
    usual_model: str
    lacks: Modality | None = None
    suggests: Mapping[str, Any] = field(default_factory=dict)
    partition: str | None = None

    @property
    def samples(self) -> dict[str, int]:
        """How many it has to train on and to be tested on."""
        return {"train": self.train, "test": self.test}

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of(cls, told: Any, client: int) -> Facts:
        """Read what a client told; :class:`UsageError` where it makes no sense."""
        return parse(cls, told, f"what client {client} declares")


@cache
def code_version() -> str:
    """Version of this fedpriv, with a hash of its source files: two that differ may compute different numbers.

    Attacks are no part of a deployment. They are a link in a clone and a folder in a wheel.
    """
    root = Path(fedpriv.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] != "attacks":
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return f"{version('fedpriv')}+{digest.hexdigest()[:12]}"


def check(facts: Sequence[Facts], now: float) -> None:
    """Check that clients can train together, with this server.

    Args:
        facts: of all clients, in order; ``now``: the server's clock.

    Raises:
        UsageError: which client differs, in what, and what the others have.
    """
    for one in facts:
        if one.code != code_version():
            raise UsageError(
                f"client {one.client} runs fedpriv {line_of(one.code)}, this server {code_version()}; install the same on both"
            )
        if abs(one.time - now) > CLOCKS:
            raise UsageError(f"the clock of client {one.client} is {one.time - now:+.0f} s from the server's; set both by NTP")
        _check_suggested(one)
        for number in (one.train, one.test):
            if not 0 <= number <= MOST_SAMPLES:
                raise UsageError(f"client {one.client} declares {shortened(str(number), 30, 5)} samples, not 0 to {MOST_SAMPLES}")
    first = facts[0]
    for one in facts[1:]:
        _same(first, one, "form", "samples of", _form)
        _same(first, one, "classes", "the classes", partial(_listed, first=first.classes, other=one.classes))
        _same(first, one, "usual_model", "the usual net", str)
        _same(first, one, "suggests", "suggestions", str)
        _same(
            first, one, "partition", "partition", lambda partition: "its own data" if partition is None else str(partition)[:12]
        )
    if not any(one.train for one in facts):
        raise UsageError("no client holds training data")


def outweighing(facts: Sequence[Facts], config: RunConfig) -> list[str]:
    """Warnings of a client that alone outweighs all others, of more than one: in the model, where uploads are weighted by
    samples, and in the weighted accuracy."""
    found = []
    if (config.aggregation or config.method).params.get("weights") != "uniform":
        what = (
            "training samples, which the server cannot check: where uploads are weighted by samples, the model is mostly its own"
        )
        found += _most({one.client: one.train for one in facts}, what)
    what = "test samples, which the server cannot check: the accuracy that is weighted by samples is mostly its own"
    return found + _most({one.client: one.test for one in facts}, what)


def _most(samples: Mapping[int, int], what: str) -> list[str]:
    sizes = {client: size for client, size in samples.items() if size}
    total, client = sum(sizes.values()), max(sizes, key=lambda one: sizes[one], default=0)
    if len(sizes) < 3 or 2 * sizes[client] <= total:
        return []
    return [f"client {client} declares {sizes[client]} of all {total} {what}"]


def declared(facts: Sequence[Facts]) -> Declared:
    """What the server knows of the clients' data."""
    sizes = {one.client: one.train for one in facts if one.train}
    lacks = {one.client: one.lacks for one in facts if one.lacks is not None}
    return Declared(len(facts[0].classes), sorted(sizes), sum(sizes.values()) / len(sizes), max(sizes.values()), lacks)


def told_to_clients(known: Declared) -> dict[str, Any]:
    """The same as JSON, for the clients."""
    lacks = [[client, what] for client, what in sorted(known.lacks.items())]
    return asdict(known) | {"trainable": list(known.trainable), "lacks": lacks}


def told_by_server(told: Any) -> Declared:
    """Read what :func:`told_to_clients` made; :class:`UsageError` where it makes no sense."""
    lacks = told.get("lacks") if isinstance(told, dict) else None
    if not isinstance(lacks, list) or not all(isinstance(one, list) and len(one) == 2 for one in lacks):
        raise UsageError("what the server declares: no list of who lacks what")
    return parse(Declared, {**told, "lacks": dict(lacks)}, "what the server declares")


@dataclass(frozen=True)
class Apart:
    """Clients of which no two hold the same sample, as far as is known: client -> its number of training samples."""

    sizes: Mapping[int, int]

    def holders(self) -> list[tuple[int, ...]]:
        """Each on its own."""
        return [(client,) for client in sorted(self.sizes)]

    def distinct(self) -> int:
        """All of them."""
        return sum(self.sizes.values())


def differing(ours: RunConfig, theirs: RunConfig) -> str:
    """The first key, by its dotted name, in which two configs differ, with both values."""

    def walk(a: Any, b: Any, path: str) -> str | None:
        if isinstance(a, dict) and isinstance(b, dict):
            return next((found for key in sorted({*a, *b}) if (found := walk(a.get(key), b.get(key), f"{path}.{key}"))), None)
        return None if a == b else f"{path[1:]} is {a!r} there and {b!r} here"

    return walk(ours.model_dump(mode="json"), theirs.model_dump(mode="json"), "") or "they do not differ"


def _same(first: Facts, other: Facts, field: str, what: str, shown: Any) -> None:
    mine, its = getattr(first, field), getattr(other, field)
    if mine != its:
        raise UsageError(
            f"client {other.client} has {what} {line_of(shown(its))}, client {first.client} {line_of(shown(mine))}; "
            "they must be the same"
        )


def _check_suggested(one: Facts) -> None:
    """A data set suggests how it is partitioned and trained on, and a net: nothing that a server would open, import or connect
    to."""
    if is_user_net(one.usual_model):
        raise UsageError(f"client {one.client} suggests the net {line_of(one.usual_model)}, which would have to be imported")
    for key, value in one.suggests.items():
        if not _SUGGESTED.fullmatch(key) or (key == "model.encoder" and value not in BUILT_IN):
            raise UsageError(f"client {one.client} suggests {line_of(key)} = {line_of(value)}, which is the operator's to say")


def _form(form: SampleForm) -> str:
    parts = []
    if form.shape is not None:
        parts.append(("images of " if len(form.shape) == 3 else "rows of ") + "x".join(map(str, form.shape)))
    if form.words is not None:
        parts.append(f"texts of {form.words} words ({(form.tokenizer or '')[:12]})")
    return " with ".join(parts)


def _listed(classes: Sequence[str], first: Sequence[str], other: Sequence[str]) -> str:
    own, both = set(classes), {*first} & {*other}  # a client may declare a million
    only = next((name for name in classes if name not in both), None)
    lacks = next((name for name in (*first, *other) if name not in own), None)
    if only is not None or lacks is not None:
        return f"{len(classes)}, " + (f"with {only!r}" if only is not None else f"without {lacks!r}")
    return f"{len(classes)} in another order"
