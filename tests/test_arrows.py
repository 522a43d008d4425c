"""Which room may import which. Imports are read, not run, and those within functions count too."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = (
    "__main__",
    "cli",
    "api",
    "frontier",
    "experiments",
    "audit",
    "deploy",
    "simulation",
    "plots",
    "tracking",
    "evaluation",
    "server client",
    "secure",
    "agreement",
    "privacy",
    "defenses methods",
    "aggregation",
    "objectives",
    "interfaces",
    "models data noise_source",
    "config parameters wire registry plugins files hub processes",
    "untrusted",
    "errors samples seeding spans",
)
"""Of fedpriv, from top to bottom. A room imports from the lines below its own; rooms on one line know nothing of each other."""
ONLY_ERRORS = ("config", "parameters", "wire")
ATTACKERS = {"cli", "api", "frontier", "experiments", "audit"}
"""Who may import attacks; a run never does."""
REGISTRY = ("registry", "fedpriv.attacks.core.by_name")
"""But for the one register of names, which knows no attack. Attacks import nothing else of fedpriv, so it lies with them."""
ONLY_IN = {"mlflow": "fedpriv.tracking", "flwr": "fedpriv.deploy", "ray": "fedpriv.simulation.executors.ray"}
"""What is imported in one place, so that the rest works without it."""
MOST = 14
"""Modules in a package, besides its ``__init__``."""
ONE_A_FILE = {"fedpriv.aggregation", "fedpriv.cli", "fedpriv.methods", "fedpriv.objectives"}
"""Catalogues: a command, a paper a file; they may be longer."""


When = Literal["now", "later", "for types"]


class Import(NamedTuple):
    """``when``: ``now``, as the module is imported; ``later``, within a function; or for the type checker alone."""

    module: str
    when: When


def read(source: str) -> Iterator[tuple[str, str | None, When]]:
    """(module, name from it, when) of every import."""

    def visit(node: ast.AST, when: When) -> Iterator[tuple[str, str | None, When]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, None, when) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.module and not child.level, "imports are absolute"
                yield from ((child.module, alias.name, when) for alias in child.names)
            else:
                inner = when
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    inner = "for types"
                elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "now":
                    inner = "later"
                yield from visit(child, inner)

    return visit(ast.parse(source), "now")


@cache
def modules() -> Mapping[str, Path]:
    """Name -> file; a package has the name of its folder. What lies in ``attacks`` is imported as ``fedpriv.attacks``."""
    files = sorted(file for top in ("attacks", "fedpriv") for file in (ROOT / top).rglob("*.py"))
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}
    return {f"fedpriv.{name}" if name.partition(".")[0] == "attacks" else name: file for name, file in names.items()}


@cache
def imports() -> Mapping[str, tuple[Import, ...]]:
    found = {}
    for module, file in modules().items():
        own = ((f"{of}.{name}" if f"{of}.{name}" in modules() else of, when) for of, name, when in read(file.read_text()))
        found[module] = tuple(Import(*one) for one in own)
    return found


def room(module: str) -> str:
    """Of ``fedpriv.server.sampling``: ``server``."""
    return module.removeprefix("fedpriv.").partition(".")[0]


def packages() -> list[str]:
    return [module for module, file in modules().items() if file.name == "__init__.py"]


def arrows() -> Iterator[tuple[str, str]]:
    """(who imports, what), of ours, between rooms."""
    for module, found in imports().items():
        yield from ((module, one.module) for one in found if one.module.split(".")[0] == "fedpriv")


def test_imports_are_read() -> None:
    source = "import a.b\nif TYPE_CHECKING:\n    from c import d\nclass C:\n    import e\n    def f(self): from g import h"
    assert list(read(source)) == [("a.b", None, "now"), ("c", "d", "for types"), ("e", None, "now"), ("g", "h", "later")]
    assert Import("fedpriv.errors", "now") in imports()["fedpriv.config.run"]
    assert len(modules()) > 200


def test_a_room_imports_what_lies_below_it() -> None:
    height = {name: -number for number, line in enumerate(LAYERS) for name in line.split()}
    rooms = {room(module) for module in modules()} - {"fedpriv", "attacks"}
    assert rooms == height.keys(), "every room of fedpriv has its place in LAYERS"
    wrong = [
        f"{module} imports {found}"
        for module, found in arrows()
        if not {"fedpriv", "attacks"} & {room(module), room(found)}
        if room(module) != room(found) and height[room(module)] <= height[room(found)]
    ]
    assert not wrong


def test_the_lowest_import_nothing_of_ours_but_what_imports_nothing() -> None:
    of_ours = {(room(module), room(found)) for module, found in arrows() if room(module) in ONLY_ERRORS}
    assert {found for own, found in of_ours if found != own} <= {"errors", "untrusted"}


def test_attacks_know_nothing_of_fedpriv() -> None:
    assert not [f"{module} imports {found}" for module, found in arrows() if room(module) == "attacks" != room(found)]


def test_a_run_knows_nothing_of_attacks() -> None:
    arrows_there = {(room(module), found) for module, found in arrows() if room(found) == "attacks" != room(module)}
    assert {own for own, found in arrows_there - {REGISTRY}} <= ATTACKERS


@pytest.mark.parametrize("library", ONLY_IN)
def test_imported_in_one_place(library: str) -> None:
    who = [module for module, found in imports().items() if any(one.module.split(".")[0] == library for one in found)]
    assert not [module for module in who if not f"{module}.".startswith(f"{ONLY_IN[library]}.")]


def test_no_room_imports_one_that_imports_it() -> None:
    """A room is a package without packages in it, or a single file of one that has some."""
    with_rooms = {package.rpartition(".")[0] for package in packages()}
    here = {m: m if m in packages() or m.rpartition(".")[0] in with_rooms else m.rpartition(".")[0] for m in modules()}
    graph = defaultdict[str, set[str]](set)
    for module, found in imports().items():
        graph[here[module]] |= {here[one.module] for one in found if one.when == "now" and one.module in here} - {here[module]}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("half", ["fedpriv.audit", "fedpriv.attacks"])
def test_no_import_of_audits_and_attacks_goes_round_in_a_circle(half: str) -> None:
    """Nor one within a function, which would only hide a circle."""
    own = {module for module in modules() if f"{module}.".startswith(f"{half}.")}
    graph = {
        module: {one.module for one in imports()[module] if one.when != "for types" and one.module in own} - {module, half}
        for module in own - {half}
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("package", packages())
def test_the_first_line_of_a_package_says_what_lives_there(package: str) -> None:
    told = ast.get_docstring(ast.parse(modules()[package].read_text()))
    assert told and len(told.splitlines()[0]) > 20


def test_rooms_are_small() -> None:
    sizes = Counter(module.rpartition(".")[0] for module in modules() if module not in packages())
    assert not {name: n for name, n in sizes.items() if n > MOST and name not in ONE_A_FILE}


@pytest.mark.parametrize("package", packages())
def test_names_differ_by_more_than_an_ending(package: str) -> None:
    own = [module.rpartition(".")[2] for module in modules() if module.rpartition(".")[0] == package]
    stems = Counter(re.sub(r"(ing|ed|e?s|e?rs?|ors?|e)$", "", name) for name in own)
    assert not [stem for stem, n in stems.items() if n > 1]
