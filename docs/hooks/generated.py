"""Parts of pages that are made from the code: ``<!-- generated: NAME -->`` on a line of its own stands for them.

The line after it, for readers of the repository, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import catalogue
import commands
import config_keys
import methods
import statement
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

MARK = re.compile(r"^<!-- generated: (.+) -->(?:\n\*In the repository .+\*)?$", re.MULTILINE)
PARTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "commands": commands.commands,
    "config keys": config_keys.keys,
    "methods": methods.table,
    "objectives": lambda: methods.parts("objective"),
    "aggregations": lambda: methods.parts("aggregation"),
    "defences": catalogue.defences,
    "attacks": catalogue.attacks,
    "attacks of audits": catalogue.attacks_of_audits,
    "nets": catalogue.nets,
    "data sets": catalogue.datasets,
    "partitions": catalogue.partitions,
    "statement sample": lambda: statement.statement("sample"),
    "statement client": lambda: statement.statement("client"),
}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return MARK.sub(lambda mark: "\n".join(PARTS[mark[1]]()), markdown)
