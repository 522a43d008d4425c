"""Docstrings as the site shows them: reStructuredText's roles as Markdown's code, and each of several parameters for itself."""

from __future__ import annotations

import re
from typing import Any

import griffe

GROUP = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 {4}.*)*)", re.MULTILINE)
"""Parameters that are described together: ``lr, steps: of the client's SGD``."""
ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    """``:func:`fedpriv.train``` as ``fedpriv.train`` in code; ``a, b: text`` as ``a: text`` and ``b: text``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = GROUP.sub(_each, ROLE.sub(r"`\1`", obj.docstring.value))


def _each(group: re.Match[str]) -> str:
    indent, names, text = group.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))
