"""Texts of the code (help, docstrings, descriptions) as Markdown: what is not code is shown as it is written."""

from __future__ import annotations

import re

CODE = re.compile(r"`[^`]*`")
SIGNS = {"<": "&lt;", "*": r"\*", "$": "&#36;", "|": "&#124;", "_": r"\_", "[": r"\["}


def plain(text: str) -> str:
    """With double backticks as single ones, and without a meaning for other signs outside of them."""
    text = text.replace("``", "`")
    between = CODE.split(text)
    shown = ["".join(SIGNS.get(sign, sign) for sign in part) for part in between]
    code = [*CODE.findall(text), ""]
    return "".join(part + inside for part, inside in zip(shown, code, strict=True))
