"""The documentation's site has everything that the code has, and needs no network to be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from fedpriv.attacks.attack import ATTACKS
from fedpriv.cli import main
from fedpriv.config import RunConfig
from fedpriv.methods import methods

ROOT = Path(__file__).parent.parent
PAGES = ("commands", "config", "attacks")
ELSEWHERE = r"(?:https?:)?//"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    pytest.importorskip("mkdocs", reason="needs the group docs: uv run --group docs pytest tests/test_site.py")
    from mkdocs.__main__ import cli

    to = tmp_path_factory.mktemp("site")
    cli.main(["build", "--strict", "--quiet", "-f", str(ROOT / "mkdocs.yml"), "-d", str(to)], standalone_mode=False)
    return to


def commands(command: click.Command, path: str) -> Iterator[str]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path}-{name}")


def keys(section: BaseModel, prefix: str = "") -> Iterator[str]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        inner = isinstance(value, BaseModel) and name not in ("method", "objective", "aggregation")
        yield from keys(value, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]


def test_everything_by_name_has_its_place(site: Path) -> None:
    anchors = {name: set(re.findall(r'id="([^"]+)"', (site / f"reference/{name}.html").read_text())) for name in PAGES}
    assert set(commands(main, "fedpriv")) - {"fedpriv"} <= anchors["commands"]
    assert set(keys(RunConfig())) <= anchors["config"]
    assert ATTACKS.all().keys() <= anchors["attacks"]
    for name in methods():
        assert "The idea" in (site / "methods" / f"{name}.html").read_text(), f"docs/methods/notes/{name}.md says what it does"


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    pages, sheets = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert len(pages) > 60 and sheets
    loads = re.compile(rf'<(?:script|img|iframe)[^>]* src="{ELSEWHERE}|<link[^>]* href="{ELSEWHERE}')
    assert not [page for page in pages if loads.search(page.read_text())]
    assert not [sheet for sheet in sheets if re.search(rf"(?:@import|url\()[\s\"']*{ELSEWHERE}", sheet.read_text())]
