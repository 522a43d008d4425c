"""YAML of version 1.2, and no document that grows."""

from __future__ import annotations

import math

import pytest
import yaml

from fedpriv.untrusted.plain_yaml import DEEPEST, PlainYamlError, dump, load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("010", 10),
        ("0o10", 8),
        ("0x10", 16),
        ("1_0", "1_0"),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("2001-01-01", "2001-01-01"),
        ("1e-3", 0.001),
        ("1.5E+3", 1500.0),
        ("-.inf", -math.inf),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("[1, .5, null]", [1, 0.5, None]),
        ("{a: 1, <<: {b: 2}}", {"a": 1, "b": 2}),
        ("[&x 1, *x]", [1, 1]),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: object) -> None:
    value = load(text)
    assert value == value and type(value) is type(value)


@pytest.mark.parametrize("value", ["1e3", "010", "yes", "1:30", "0o7", "", "~", "true", "=", "<<", "a\nb", "é\x1b"])
def test_a_text_stays_a_text(value: str) -> None:
    assert load(dump({"a": value})) == {"a": value}
    assert yaml.safe_load(dump({"a": "plain"})) == {"a": "plain"}


def test_the_same_list_twice_is_written_twice() -> None:
    shared = [1, 2]
    assert "&" not in dump({"a": shared, "b": shared})


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (bomb(9), "aliases repeat more than 10000 values"),
        (bomb(300), "aliases repeat"),
        ("a: &a [*a]", r"\*a names nothing that ends before it"),
        ("[*b]", r"\*b names nothing"),
        ("[" * 1000 + "]" * 1000, f"more than {DEEPEST} levels"),
        ("[" * 100_000, f"more than {DEEPEST} levels"),
        ("- " * 2000 + "x", f"more than {DEEPEST} levels"),
        ("{a: " * 1000, f"more than {DEEPEST} levels"),
        ("9" * 5000, "5000 digits"),
        ("!!python/object/apply:os.system [ls]", "tags such as"),
        ("!!int abc", "tags such as"),
        ("!!timestamp x", "tags such as"),
        ("[1", "line 1"),
        ("a: 1\0", "control characters"),
        ("{[a]: 1}", "unhashable"),
        ("--- 1\n--- 2", "document"),
        ("train: {lr: 1}\ntrain: {rounds: 2}", "line 2: the key 'train' is there twice"),
        ("- {a: [{b: 1, b: 1}]}", "line 1: the key 'b' is there twice"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_what_cannot_be_read_is_refused_in_a_line(text: str, why: str) -> None:
    with pytest.raises(PlainYamlError, match=why) as caught:
        load(text)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_nesting_and_aliases_within_reason_are_read() -> None:
    assert load("[" * DEEPEST + "]" * DEEPEST) is not None
    assert len(load(bomb(4))["a3"]) == 9
    assert load("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}, "what is merged may be there, too"
