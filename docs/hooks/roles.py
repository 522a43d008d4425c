"""Docstrings name Python objects by reStructuredText's roles and double backticks; the site shows them as Markdown's code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    """``:func:`fedpriv.train```, as ``fedpriv.train`` in code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
