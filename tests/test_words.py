"""Names are the field's words: variables are named for the thing, and words of our own that the field has one for do not come
back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted(set((ROOT / "fedpriv").rglob("*.py")))
NO_NAMES = {"one", "found", "made", "said", "told"}
"""Name nothing: a loop over conditions has a condition."""
RETIRED = {
    "turn": "local update",
    "stretch": "phase",
    "halves": "client part and server part",
    "dealt": "partition",
    "dealer": "partition rule",
    "keeper": "supervisor",
    "courier": "transport",
    "remarks": "notes",
    "held_against": "marked inconclusive",
    "that_count": "conclusive",
    "telling": "conclusive",
}
"""Words of our own, with the field's."""


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable, argument, function, class and attribute that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


@cache
def all_bound() -> list[tuple[Path, int, str]]:
    return [(path, *place) for path in SOURCES for place in bound(ast.parse(path.read_text(encoding="utf-8")))]


def places(words: set[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{line}: {name}" for path, line, name in all_bound() if name.lstrip("_") in words]


def test_variables_are_named_for_the_thing() -> None:
    assert not places(NO_NAMES)


def test_retired_words_do_not_come_back() -> None:
    assert not places(set(RETIRED))
    modules = {path.stem for path in SOURCES}
    assert not modules & (
        set(RETIRED) | {"asked", "called", "dealing", "far_clients", "home", "idle_keys", "leaving", "outside", "own"}
    )
