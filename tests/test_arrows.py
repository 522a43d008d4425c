"""Which package may import which. Imports are parsed, not run, and those within functions count too."""

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
    "cli flower nvflare",
    "api",
    "frontier",
    "experiments",
    "audit",
    "deploy",
    "prediction",
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
    "storage scores",
    "models data noise_source recorder optim",
    "config parameters wire registry plugins files hub processes",
    "untrusted",
    "errors samples seeding spans",
)
"""The rooms (packages and modules) of fedpriv, from top to bottom. Each imports only from the lines below its own."""
ONLY_ERRORS = ("config", "parameters", "wire")
ATTACKERS = {"cli", "api", "frontier", "experiments", "audit"}
"""The packages that may import attacks; a run never does."""
FOR_ALL = {f"fedpriv.attacks.core.{name}" for name in ("by_name", "functional", "threads")}
"""Exceptions, which know no attack. They lie there because attacks import nothing else of fedpriv."""
ONLY_IN = {
    "mlflow": ("fedpriv.tracking",),
    "flwr": ("fedpriv.deploy", "fedpriv.flower"),
    "nvflare": ("fedpriv.nvflare",),
    "ray": ("fedpriv.simulation.executors.ray",),
}
"""Library -> the only packages that import it, so that the rest works without it."""
MOST = 14
"""Modules in a package, besides its ``__init__``."""
ONE_A_FILE = {"fedpriv.aggregation", "fedpriv.cli", "fedpriv.methods", "fedpriv.models", "fedpriv.objectives"}
"""Packages with a file for each command, net or paper, which may have more."""


When = Literal["now", "later", "for types"]


class Import(NamedTuple):
    """``when``: ``now``, as the module is imported; ``later``, within a function; or only for the type checker."""

    module: str
    when: When


def read(source: str) -> Iterator[tuple[str, str | None, When]]:
    """Yield (module, name from it, when) of every import."""

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
    """Name -> file; a package has the name of its folder."""
    files = sorted((ROOT / "fedpriv").rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@cache
def imports() -> Mapping[str, tuple[Import, ...]]:
    """Module -> what it imports; of a package whose submodule is named, the submodule."""
    by_module = {}
    for module, file in modules().items():
        targets = ((f"{of}.{name}" if f"{of}.{name}" in modules() else of, when) for of, name, when in read(file.read_text()))
        by_module[module] = tuple(Import(*target) for target in targets)
    return by_module


def room(module: str) -> str:
    """The room of a module: of ``fedpriv.server.sampling``, ``server``."""
    return module.removeprefix("fedpriv.").partition(".")[0]


def packages() -> list[str]:
    return [module for module, file in modules().items() if file.name == "__init__.py"]


def arrows() -> Iterator[tuple[str, str]]:
    """Yield (importing module, imported module) within fedpriv."""
    for module, imported in imports().items():
        yield from ((module, target.module) for target in imported if target.module.split(".")[0] == "fedpriv")


def check_without_circle(graph: Mapping[str, set[str]]) -> None:
    """Fail, with the modules of a circle, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_imports_are_read() -> None:
    source = "import a.b\nif TYPE_CHECKING:\n    from c import d\nclass C:\n    import e\n    def f(self): from g import h"
    assert list(read(source)) == [("a.b", None, "now"), ("c", "d", "for types"), ("e", None, "now"), ("g", "h", "later")]
    assert Import("fedpriv.errors", "now") in imports()["fedpriv.config.run"]
    assert len(modules()) > 200


def test_rooms_import_only_lower_layers() -> None:
    height = {name: -number for number, line in enumerate(LAYERS) for name in line.split()}
    rooms = {room(module) for module in modules()} - {"fedpriv", "attacks"}
    assert rooms == height.keys(), "LAYERS has every room of fedpriv"
    wrong = [
        f"{module} imports {target}"
        for module, target in arrows()
        if not {"fedpriv", "attacks"} & {room(module), room(target)}
        if room(module) != room(target) and height[room(module)] <= height[room(target)]
    ]
    assert not wrong


def test_config_parameters_and_wire_import_only_errors() -> None:
    targets = {room(target) for module, target in arrows() if room(module) in ONLY_ERRORS and room(target) != room(module)}
    assert targets <= {"errors", "untrusted"}


def test_attacks_import_nothing_else_of_fedpriv() -> None:
    assert not [f"{module} imports {target}" for module, target in arrows() if room(module) == "attacks" != room(target)]


def test_a_run_imports_no_attack() -> None:
    importers = {
        room(module) for module, target in arrows() if room(target) == "attacks" != room(module) and target not in FOR_ALL
    }
    assert importers <= ATTACKERS
    assert not any(target.startswith("fedpriv.") for name in FOR_ALL for target, _ in imports()[name])


def test_a_net_is_called_with_other_tensors_in_one_way() -> None:
    """Torch's own way damages nets that have a layer under several names."""
    assert not [name for name, file in modules().items() if re.search(r"import .*\bstateless\b", file.read_text())]
    callers = [name for name, file in modules().items() if "torch.func.functional_call(" in file.read_text()]
    assert callers == ["fedpriv.attacks.core.functional"]
    assert not [name for name, file in modules().items() if ("torch.func", "functional_call", "now") in read(file.read_text())]


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_in_one_package(library: str) -> None:
    importers = [
        module for module, imported in imports().items() if any(target.module.split(".")[0] == library for target in imported)
    ]
    assert not [
        module for module in importers if not f"{module}.".startswith(tuple(f"{package}." for package in ONLY_IN[library]))
    ]


def test_no_circle_of_packages() -> None:
    """A package with packages in it counts file by file. Imports within functions are checked below."""
    with_rooms = {package.rpartition(".")[0] for package in packages()}
    here = {m: m if m in packages() or m.rpartition(".")[0] in with_rooms else m.rpartition(".")[0] for m in modules()}
    graph = defaultdict[str, set[str]](set)
    for module, imported in imports().items():
        targets = {here[target.module] for target in imported if target.when == "now" and target.module in here}
        graph[here[module]] |= targets - {here[module]}
    check_without_circle(graph)


def test_no_circle_of_modules_even_within_functions() -> None:
    own = modules().keys() - {"fedpriv"}
    graph = {
        module: {target.module for target in imports()[module] if target.when != "for types" and target.module in own} - {module}
        for module in own
    }
    check_without_circle(graph)


@pytest.mark.parametrize("package", packages())
def test_a_package_has_a_docstring(package: str) -> None:
    docstring = ast.get_docstring(ast.parse(modules()[package].read_text()))
    assert docstring and len(docstring.splitlines()[0]) > 20


def test_rooms_are_small() -> None:
    sizes = Counter(module.rpartition(".")[0] for module in modules() if module not in packages())
    assert not {name: n for name, n in sizes.items() if n > MOST and name not in ONE_A_FILE}


@pytest.mark.parametrize("package", packages())
def test_names_differ_by_more_than_an_ending(package: str) -> None:
    own = [module.rpartition(".")[2] for module in modules() if module.rpartition(".")[0] == package]
    stems = Counter(re.sub(r"(ing|ed|e?s|e?rs?|ors?|e)$", "", name) for name in own)
    assert not [stem for stem, n in stems.items() if n > 1]
