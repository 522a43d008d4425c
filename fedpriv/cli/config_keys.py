"""Every key of a run's config in words: what it may be, its default, what it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from fedpriv.config import NamedOptions, RunConfig
from fedpriv.config.sections import inner_section, sections_of
from fedpriv.errors import UnknownName, UsageError
from fedpriv.untrusted import plain_yaml

_BOUNDS = {"minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}", "exclusiveMaximum": "below {}"}
_TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null", "string": "a text"}
_NAMED = "a name, or a mapping of a name and options"


@dataclass(frozen=True)
class Key:
    """A key of the config.

    Attributes:
        name: dotted, such as ``train.lr``.
        values: what it may be, in words.
        default: as YAML.
    """

    name: str
    values: str
    default: str
    description: str


def sections() -> dict[str, str]:
    """The sections by dotted name, such as ``train``, with what each is for; ``""`` has the keys outside of any."""
    return {
        name.rstrip("."): (section.__doc__ or "").partition("\n")[0].replace("``", "`")
        for name, section in sections_of(RunConfig)
    }


def keys(within: str | None = None) -> list[Key]:
    """All keys, or those of a section with its inner sections, or one key.

    Raises:
        UnknownName: there is neither such a key nor such a section; the nearest is named.
        UsageError: it is an option of a method, an objective or an aggregation.
    """
    every = [
        _key(prefix, section, name)
        for prefix, section in sections_of(RunConfig)
        for name in section.model_fields
        if inner_section(section, name) is None
    ]
    if within is None:
        return every
    matching = [key for key in every if key.name == within or key.name.startswith(f"{within}.")]
    if matching:
        return matching
    first = within.partition(".")[0]
    if first in RunConfig.model_fields and "." in within and inner_section(RunConfig, first) is None:
        raise UsageError(f"{within}: `fedpriv methods` lists the options of each {first}")
    raise UnknownName("key in config", within, [key.name for key in every])


def _key(prefix: str, section: type[BaseModel], name: str) -> Key:
    field = section.model_fields[name]
    if NamedOptions in (field.annotation, *get_args(field.annotation)):
        values = _NAMED if field.annotation is NamedOptions else f"{_NAMED}, or null"
    else:
        values = in_words(TypeAdapter(section).json_schema()["properties"][name])
    return Key(prefix + name, values, as_yaml(field.get_default()), field.description or "")


def as_yaml(value: Any) -> str:
    """A value of a config as YAML in one line."""
    if isinstance(value, NamedOptions):
        return as_yaml(value.model_dump(mode="json") if value.params else value.name)
    if isinstance(value, str) and plain_yaml.load(value) == value:
        return value
    return json.dumps(value, default=str)


def in_words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if "anyOf" in schema:
        return _listed([in_words(option) for option in schema["anyOf"]])
    if "enum" in schema:
        return _listed([str(value) for value in schema["enum"]])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        inner = schema.get("items")
        return f"a list, each {in_words(inner)}" if inner else "a list"
    if schema.get("type") == "object":
        return "a mapping"
    if schema.get("format") == "path":
        return "a path"
    bounds = [words.format(f"{schema[bound]:g}") for bound, words in _BOUNDS.items() if bound in schema]
    return f"{_TYPES.get(schema.get('type', ''), 'a value')}{' ' if bounds else ''}{' and '.join(bounds)}"


def _listed(words: list[str]) -> str:
    between = ", or " if any(" or " in word for word in words) else " or "
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}{between}{words[-1]}"
