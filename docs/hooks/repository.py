"""Documents of the repository that lie outside docs/ become pages, and links between files are made to hold on the site."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BROUGHT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mlflow/README.md", "experiments/**/*.md", "benchmarks/*.md")
PICTURES = ("experiments/**/*.png",)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them under their own paths; README.md is the home page."""
    for pattern in (*BROUGHT, *PICTURES):
        for path in ROOT.glob(pattern):
            files.append(File.generated(config, page_of(path.relative_to(ROOT).as_posix()), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they hold in the repository, as links that hold on the site; of files that are not on it, the text is left."""
    here = page.file.src_uri
    source = here if (ROOT / here).exists() else "README.md" if here == "index.md" else f"docs/{here}"
    folder = PurePosixPath(source).parent

    def link(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        if source.startswith("docs/") and files.get_file_from_path(normpath(f"{PurePosixPath(here).parent}/{target}")):
            return match[0]
        there = page_of(normpath(folder / target).removesuffix("/."))
        if files.get_file_from_path(there) is None and (ROOT / folder / target / "README.md").exists():
            there += "/README.md"
        if files.get_file_from_path(there) is None:
            if not (ROOT / folder / target).exists():
                return match[0]  # MkDocs warns of it
            return text
        return f"{mark}[{text}]({relpath(there, PurePosixPath(here).parent)}{anchor or ''})"

    return LINK.sub(link, markdown)


def page_of(path: str) -> str:
    """The path on the site of a path in the repository."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")
