"""From files and options to a config: YAML, dotted keys, and errors in one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedpriv.config.run import RunConfig
from fedpriv.config.sections import keys_of
from fedpriv.errors import NoSuchOption, UnknownName, UsageError
from fedpriv.untrusted import plain_yaml
from fedpriv.untrusted.kinds import brief, check_kinds

T = TypeVar("T")

_NAMED = ("method", "objective", "aggregation")
"""The sections that are a name and its options."""


def parse(schema: type[T], values: Any, where: str) -> T:
    """Validate ``values`` against a pydantic model or dataclass.

    Args:
        where: what the values are, for the message (``"config"``, ``"method mpfedcon"``).

    Numbers and flags are taken as they are: ``true`` is no number, ``1`` no flag, and a text neither.

    Raises:
        UsageError: in one line, the first thing wrong, where it stands and what would be right.
    """
    try:
        config = TypeAdapter(schema).validate_python(values)
    except ValidationError as error:
        raise _readable(error, schema, where) from None
    check_kinds(values, config, where, "")
    return config


def _readable(error: ValidationError, schema: Any, where: str) -> UsageError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        section = schema
        for part in path[:-1]:
            section = section.model_fields[part].annotation
        if where.partition(" ")[0] in _NAMED:
            return NoSuchOption(where, path[-1], _field_names(section))
        prefix = "".join(part + "." for part in path[:-1])
        elsewhere = keys_of(RunConfig) if schema is RunConfig else ()
        return UnknownName(
            f"key in {where}", prefix + path[-1], [prefix + name for name in _field_names(section)], within=elsewhere
        )
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return UsageError(f"{where}: {message}")
    return UsageError(f"{where}: {'.'.join(path)} = {brief(first['input'])}: {message[0].lower()}{message[1:]}")


def _field_names(schema: Any) -> list[str]:
    fields = getattr(schema, "model_fields", None) or schema.__dataclass_fields__
    return list(fields)


def read_yaml(path: Path) -> dict[str, Any]:
    """A config file as a mapping; :class:`UsageError` where it is not one."""
    try:
        values = plain_yaml.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"config {path} is not a text file") from None
    except plain_yaml.PlainYamlError as error:
        raise UsageError(f"config {path} is not YAML that can be read: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"config {path} must be a mapping such as 'method: {{name: mpfedcon}}', not a {type(values).__name__}")
    return values


def assign(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``values['a']['b'] = value`` for ``dotted = 'a.b'``, in place, making mappings on the way."""
    *sections, key = dotted.split(".")
    for section in sections:
        inner = values.get(section) or {}
        if section in _NAMED and isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise UsageError(f"--set {dotted}: {section!r} is not a section")
        values[section] = inner = dict(inner)
        if section in _NAMED and key == "name" and inner.get("name") not in (None, value):
            inner.clear()  # another one: the options of the one before are not its own
            if section == "method":  # nor are the parts that replaced that one's
                values.pop("objective", None)
                values.pop("aggregation", None)
        values = inner
    values[key] = value


def parse_assignment(text: str, option: str = "--set", example: str = "method.mu=5") -> tuple[str, Any]:
    """``'method.mu=5'`` -> ``('method.mu', 5)``; the value is read as YAML (1.2). ``option`` and ``example`` are for errors."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} {brief(text)}: expected key=value, such as {example}")
    try:
        return key.strip(), plain_yaml.load(value)
    except plain_yaml.PlainYamlError as error:
        raise UsageError(f"{option} {key.strip()}: the value is not YAML that can be read: {error}") from None


def load_config(path: Path | None = None, overrides: dict[str, Any] | None = None) -> RunConfig:
    """The config of ``path`` (or the defaults) with dotted ``overrides`` laid over it.

    Raises:
        UsageError: unreadable file, not a mapping, unknown key (with the nearest), value out of range.
    """
    return laid_over(read_yaml(path) if path else {}, overrides or {}, f"config {path}" if path else "config")


def laid_over(values: dict[str, Any], overrides: Mapping[str, Any], where: str) -> RunConfig:
    """The config of nested ``values`` with dotted ``overrides`` laid over them; arguments and errors as for :func:`parse`."""
    lay_over(values, overrides)
    return parse(RunConfig, values, where)


def lay_over(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set keys of nested ``values``, in place, in whatever order they are given.

    What a method's name takes away, such as the options of the one before, is never one of the others.
    """

    def place(dotted: str) -> int:
        named = dotted.removesuffix(".name")
        return _NAMED.index(named) if named in _NAMED else len(_NAMED)

    for dotted in sorted(overrides, key=place):
        assign(values, dotted, overrides[dotted])


def lookup(config: RunConfig, dotted: str) -> Any:
    """The value of a dotted key, such as ``train.lr``."""
    value: Any = config
    for part in dotted.split("."):
        value = getattr(value, part)
    return value


def filled(config: RunConfig, suggestions: Mapping[str, Any]) -> RunConfig:
    """The config with the suggestions (by dotted key) for keys that are not set, or left open (null); then they are set."""

    def fill(section: T, path: list[str], value: Any) -> T:
        inner = getattr(section, path[0])
        is_open = inner is None or path[0] not in section.model_fields_set  # type: ignore[attr-defined]
        new = fill(inner, path[1:], value) if len(path) > 1 else value if is_open else inner
        changed = new is not inner if len(path) > 1 else is_open
        return section.model_copy(update={path[0]: new}) if changed else section  # type: ignore[attr-defined]

    for key, value in suggestions.items():
        config = fill(config, key.split("."), value)
    return config
