"""Lists of what has a name: defences, attacks, nets, data sets. The facts are those of the commands with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from click.testing import CliRunner
from plain import plain
from pydantic import TypeAdapter

from fedpriv.attacks.attack import ATTACKS, Attack
from fedpriv.audit.page.words import ATTACKS_OF_AUDITS
from fedpriv.cli import main
from fedpriv.cli.config_keys import in_words
from fedpriv.defenses import transforms

LAYERS = {
    "shared": "the last layer's gradient has to be in the message",
    "hidden": "for messages without the last layer",
    "either": "with or without the last layer",
}


@cache
def as_json(*command: str) -> dict[str, Any]:
    """What a command answers with ``--json``."""
    result = CliRunner().invoke(main, [*command, "--json"], catch_exceptions=False)
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def options(rows: Sequence[Mapping[str, Any]], schema: Any, prefix: str = "") -> Iterator[str]:
    """The options of a dataclass: what each may be, its default and description."""
    described = TypeAdapter(schema).json_schema()
    yield "" if rows else "It has no options.\n"
    for row in rows:
        values = described.get("properties", {}).get(row["name"])
        default = ", ".join(map(str, row["default"])) or "()" if isinstance(row["default"], list) else row["default"]
        yield f"`{prefix}{row['name']}` {in_words(values) + '; ' if values else ''}default `{default}`"
        yield f":   {plain(row['description']) or '&nbsp;'}\n"


def defences() -> Iterator[str]:
    for row in as_json("defenses")["defenses"]:
        yield f"## {row['name']}\n\n{plain(row['about'])}\n"
        yield from options(row["options"], transforms()[row["name"]])


def attacks() -> Iterator[str]:
    for row in as_json("attacks")["attacks"]:
        yield f"## {row['name']}\n\nOn {row['on']}. {plain(row['about'])}\n"
        yield from needs(row["name"])
        shown = ", ".join(f"`{option['name']}={option['default']}`" for option in row["options"])
        yield f"Options and defaults: {shown}\n" if shown else "It has no options.\n"


def attacks_of_audits() -> Iterator[str]:
    for name, about in ATTACKS_OF_AUDITS.items():
        yield f"{name}\n:   {plain(about)}\n"


def needs(name: str) -> Iterator[str]:
    """What the class of an attack declares."""
    kind = ATTACKS.all().get(name)
    if kind is None:
        return
    if kind.modality != "text":
        yield f"* Layers: {LAYERS[kind.head]}."
    if kind.is_malicious():
        yield "* A malicious server: `--threat malicious`; no audit mounts it."
    elif kind.audit_options is None:
        yield "* No audit mounts it: another attack does the same better."
    else:
        yield f"* Audits try it on {scope(kind)}."
    if kind.control is None:
        yield "* It has no positive control, so its failure is no evidence."
    yield ""


def scope(kind: type[Attack[Any]]) -> str:
    """The messages that an attack's control covers."""
    any_number = not kind.optimises or kind.max_batch is None
    samples = f"any number of {kind.modality}s" if any_number else (
        f"one {kind.modality}" if kind.max_batch == 1 else f"up to {kind.max_batch} {kind.modality}s"
    )  # fmt: skip
    steps = "" if kind.most_steps is None else f", and up to {kind.most_steps} local steps"
    return f"{samples} behind a message{steps}"


def nets() -> Iterator[str]:
    yield "| net | from | input | encoder | projector | head |\n|---|---|---|---|---|---|"
    for row in as_json("models")["models"]:
        sizes = " | ".join(f"{row['bytes'][role] / 1000:,.0f} kB" for role in ("encoder", "projector", "head"))
        yield f"| `{row['name']}` | {plain(row['source'])} | {' x '.join(map(str, row['input_shape']))} | {sizes} |"


def datasets() -> Iterator[str]:
    yield "| data set | samples | default net |\n|---|---|---|"
    for row in as_json("data", "list")["datasets"]:
        yield f"| `{row['name']}` | {plain(row['about'])} | `{row['model']}` |"


def partitions() -> Iterator[str]:
    yield "| partition | how samples are assigned |\n|---|---|"
    for row in as_json("data", "list")["partitions"]:
        yield f"| `{row['name']}` | {plain(row['about'])} |"
