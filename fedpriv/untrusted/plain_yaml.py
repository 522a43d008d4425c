"""YAML for configs: the core schema of YAML 1.2, with limits on what a document expands to.

PyYAML reads YAML 1.1, in which ``1:30`` is 90, ``010`` is 8 and ``yes`` is true. Here they are a text, 10, and a text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

DEEPEST = 64
"""Levels of nesting."""
MOST_REPEATED = 10_000
"""Values that aliases repeat, in all."""
LONGEST = 40
"""Digits of an integer."""

_TOO_DEEP = f"nested more than {DEEPEST} levels deep"
# PyYAML 6.0.4 has a limit of its own (1000), and may reach it before its first event is seen here.
_LIBRARY_TOO_DEEP = "exceeded maximum nesting depth"

_PATTERNS = {
    "null": (r"~|null|Null|NULL|", [*"~nN", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}


class PlainYamlError(ValueError):
    """What is wrong with a document, in one line."""


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 -- of the base class

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._checked = set[int]()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if id(node) not in self._checked:  # its own keys, before others are merged into it
            self._checked.add(id(node))
            _check_keys(node)
        super().flatten_mapping(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = node.value
        if len(text) > LONGEST:
            raise PlainYamlError(f"an integer of {len(text)} digits; at most {LONGEST}")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


class _Dumper(yaml.CSafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 -- of the base class

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind in (_Loader, _Dumper):
    for _name, (_pattern, _first) in _PATTERNS.items():
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def load(text: str) -> Any:
    """The value of a document.

    Raises:
        PlainYamlError: it is not YAML, is nested too deeply, repeats too much by aliases, or has tags, huge integers, or a key
            twice, of which PyYAML would take the last.
    """
    try:
        _check_size(text)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        if isinstance(error, yaml.MarkedYAMLError) and error.problem == _LIBRARY_TOO_DEEP:
            raise PlainYamlError(f"{_line(error.problem_mark)}: {_TOO_DEEP}") from None
        # PyYAML names a file that it has not read.
        raise PlainYamlError(" ".join(str(error).replace('in "<unicode string>",', "at").split())) from None


def dump(value: Any) -> str:
    """A document that :func:`load` reads back to an equal value; the keys of mappings keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def _line(mark: Any) -> str:
    return f"line {mark.line + 1}" if mark else "somewhere"


def _check_size(text: str) -> None:
    """Refuse a document that would be large once it is composed, from its events, which are at most as many as its letters."""
    sizes, repeated = dict[str, int](), 0
    open_ones: list[tuple[str | None, int]] = [(None, 0)]  # anchor, and values within so far
    for event in yaml.parse(text, _Loader):
        line = _line(event.start_mark)
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag not in (None, "!"):
            raise PlainYamlError(f"{line}: tags such as {event.tag} are not read")
        if isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((event.anchor, 1))
            if len(open_ones) > DEEPEST + 1:
                raise PlainYamlError(f"{line}: {_TOO_DEEP}")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_ones.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise PlainYamlError(f"{line}: *{event.anchor} names nothing that ends before it")
            anchor, size = None, sizes[event.anchor]
            repeated += size
            if repeated > MOST_REPEATED:
                raise PlainYamlError(f"{line}: aliases repeat more than {MOST_REPEATED} values")
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, before = open_ones[-1]
        open_ones[-1] = (outer, before + size)


def _check_keys(node: yaml.MappingNode) -> None:
    """Refuse a mapping that has a key twice."""
    seen = set[tuple[str, str]]()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise PlainYamlError(f"{_line(key.start_mark)}: the key {key.value!r} is there twice")
            seen.add((key.tag, key.value))
