"""All config keys, from the schema of the config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plain import plain
from pydantic import BaseModel

from fedpriv.config import RunConfig
from fedpriv.outside import plain_yaml

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
HALVES = ("method", "objective", "aggregation")


def keys() -> Iterator[str]:
    """All keys, section by section."""
    schema = RunConfig.model_json_schema()
    sections = {name: field.default for name, field in RunConfig.model_fields.items() if is_section(name, field.default)}
    yield "## The run\n"
    yield from (
        entry(schema, name, schema["properties"][name], getattr(RunConfig(), name))
        for name in RunConfig.model_fields
        if name not in sections
    )
    for name, section in sections.items():
        yield from section_keys(schema, name, type(section))


def is_section(name: str, default: Any) -> bool:
    return isinstance(default, BaseModel) and name not in HALVES


def section_keys(schema: dict[str, Any], prefix: str, section: type[BaseModel]) -> Iterator[str]:
    """The keys of a section, then those of the sections in it."""
    properties = schema["$defs"][section.__name__]["properties"]
    yield f"\n## {prefix} {{ #section-{prefix} }}\n\n{plain(section.__doc__ or '')}\n"
    inner = {name: field.default for name, field in section.model_fields.items() if isinstance(field.default, BaseModel)}
    for name, field in section.model_fields.items():
        if name not in inner:
            yield entry(schema, f"{prefix}.{name}", properties[name], field.default)
    for name, default in inner.items():
        yield from section_keys(schema, f"{prefix}.{name}", type(default))


def entry(schema: dict[str, Any], key: str, values: dict[str, Any], default: Any) -> str:
    """A key with an anchor of its own, what it may be, its default and its description."""
    shown = default.name if hasattr(default, "name") else list(default) if isinstance(default, tuple) else default
    text = plain_yaml.dump(shown).removesuffix("...\n").strip()
    return f"`{key}`{{ #{key} }} {allowed(values)}; default `{text}`\n:   {plain(values.get('description', ''))}\n"


def allowed(values: dict[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    if "anyOf" in values:
        return " or ".join(dict.fromkeys(map(allowed, values["anyOf"])))
    if "enum" in values or "const" in values:
        return ", ".join(f"`{value}`" for value in values.get("enum", [values.get("const")]))
    if "$ref" in values:
        return "a name, or a mapping with `name` and options"
    kind = {"array": "list", "string": "text", "object": "mapping", "null": "`null`"}.get(values["type"], values["type"])
    bounds = " and ".join(f"{sign} {values[key]:g}" for key, sign in BOUNDS.items() if key in values)
    inner = f" of {allowed(values['items'])}" if values.get("items") else ""
    return f"{kind}{' ' + bounds if bounds else ''}{inner}"
