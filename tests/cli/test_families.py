"""Each family of errors has its section in docs/errors.md, and a message names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import Result

from fedpriv.cli.families import CLASSES, MODULES, family_of
from fedpriv.errors import ClientDiverged, FedprivError, UploadRefused, UsageError
from fedpriv.files import Damaged
from fedpriv.tracking import ForeignStore, ServerAway

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def kinds(of: type[FedprivError] = FedprivError) -> Iterator[str]:
    yield of.__name__
    for kind in of.__subclasses__():
        yield from kinds(kind)


def test_the_page_has_a_section_for_each_and_no_other() -> None:
    sections = [title.lower().replace(" ", "-") for title in re.findall("^## (.+)$", PAGE.read_text(), re.MULTILINE)]
    assert sorted(sections) == sorted({*CLASSES.values(), *MODULES.values()})


def test_what_the_table_names_is_there() -> None:
    assert CLASSES.keys() <= set(kinds())
    assert all(find_spec(name) for name in MODULES)


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (ClientDiverged(1, 2, 0.1), "client-diverged"),
        (UploadRefused("x"), "upload-refused"),
        (Damaged("x"), "run-folder"),
        (ForeignStore("x"), "tracking"),
        (ServerAway("x"), "tracking"),
        (UsageError("x"), "usage"),
        (FedprivError("x"), None),
    ],
)
def test_of_a_class(error: FedprivError, family: str | None) -> None:
    assert family_of(error) == family


@pytest.mark.parametrize(
    ("arguments", "family"),
    [
        ("train --method fedvag", "unknown-name"),
        ("train --set train.lr", "config"),
        ("train --lr 0", "config"),
        ("train --dataset cifar10 --data-dir nowhere", "data"),
        ("resume nothing", "run-folder"),
        ("train --dp sample --noise 1 --method local", "privacy"),
        ("ui --runs-dir nowhere", "usage"),
        ("ui --tracking-uri ftp://host", "tracking"),
        ("train --variance 0.1", "usage"),
        ("train --mask-layers 9", "usage"),
        ("train --device banana", "config"),
        ("train --model no_such_module_here:Net", "usage"),
        ("attack analytik", "unknown-name"),
        ("audit run --fail-if recoverd>0", "unknown-name"),
    ],
)
def test_a_message_ends_with_it(empty_folder: Path, fedpriv: Callable[..., Result], arguments: str, family: str) -> None:
    result = fedpriv(*arguments.split(), "--json")
    assert result.exit_code == 2
    assert result.stderr.endswith(f"  [{family}]\n") and len(result.stderr.splitlines()) == 1
    assert json.loads(result.stdout)["family"] == family


def test_without_a_family_there_is_none(fedpriv: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise FedprivError("that failed")

    monkeypatch.setattr("fedpriv.simulation.run.start", fail)
    result = fedpriv("train", "--json")
    assert result.stderr == "fedpriv: that failed\n"
    assert json.loads(result.stdout) == {"error": "that failed", "family": None}
