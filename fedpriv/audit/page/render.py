"""An audit as one self-contained HTML file, and the same in Markdown.

Names, config and sentences come from run folders that others may have written, so that everything is escaped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from fedpriv.audit import formats
from fedpriv.audit.page.blocks import Content, Inline, Measured, Styled, Table
from fedpriv.audit.page.overview import title
from fedpriv.audit.page.sections import sections
from fedpriv.audit.page.words import GLOSSARY
from fedpriv.audit.results.audit import Audit
from fedpriv.errors import FedprivError
from fedpriv.untrusted.names import printable


def render_html(audit: Audit, pictures: Mapping[str, bytes]) -> str:
    """The page with embedded style, plots and pictures; it has no script and loads nothing.

    Args:
        pictures: PNG bytes by the names that the audit gives.

    Raises:
        FedprivError: the audit names a picture that is not among ``pictures``.
    """

    def picture(name: str) -> str:
        if name not in pictures:
            raise FedprivError(f"the audit names the picture {name}, which is not among those given")
        return "data:image/png;base64," + base64.b64encode(pictures[name]).decode()

    parts = {"title": title(audit), "sections": sections(audit), "picture": picture, "linked": _links_to_terms()}
    return _template("audit.html.j2").render(audit=audit, **parts)


def render_markdown(audit: Audit) -> str:
    """The page in Markdown, without pictures and plots."""
    page = _template("audit.md.j2").render(audit=audit, title=title(audit), sections=sections(audit))
    return re.sub(r"\n{3,}", "\n\n", page)


@cache
def _template(name: str) -> Template:
    """The template, compiled once a process, as that takes a second; markup in it was escaped before, and stays."""
    environment = Environment(
        loader=PackageLoader("fedpriv.audit.page"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_shown if name == "audit.html.j2" else _line,
    )
    environment.filters |= {
        "listed": formats.listed,
        "plain": formats.plain,
        "moment": _moment,
        "parts": _parts,
        "grid": _grid,
        "anchor": _anchor,
    }
    environment.filters |= {"kind": lambda block: type(block).__name__, "verbatim": _verbatim, "code": _code}
    return environment.get_template(name)


def _links_to_terms() -> Callable[[str], Markup]:
    """A function that makes the first mention of each term, in all texts that it is given, a link to the glossary."""
    anchors = {word.casefold(): _anchor(entry) for entry in GLOSSARY for word in entry.split(", ")}
    longest_first = sorted(anchors, key=len, reverse=True)
    mention = re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})s?\b", re.IGNORECASE)
    left = set(anchors)

    def linked(text: str) -> Markup:
        parts, at = list[Markup](), 0
        for match in mention.finditer(shown := printable(text)):
            if (word := match[1].casefold()) in left:
                left.remove(word)
                link = '{}<a class="term" href="#{}">{}</a>'
                parts.append(Markup(link).format(shown[at : match.start()], anchors[word], match[0]))
                at = match.end()
        return Markup("").join([*parts, escape(shown[at:])])

    return linked


def _anchor(entry: str) -> str:
    """The target of links to an entry of the glossary."""
    return "term-" + re.sub(r"\W+", "-", entry)


def _moment(iso: str) -> str:
    return datetime.fromisoformat(iso).strftime("%-d %B %Y, %H:%M %Z").strip()


def _parts(content: Content) -> tuple[Inline, ...]:
    return content if isinstance(content, tuple) else (formats.NOTHING if content is None else content,)


def _shown(value: Any) -> Any:
    """A text that is safe to show: names may come from someone else's data or run."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _line(content: Any) -> Markup:
    """Content escaped for a line of Markdown; markup stays."""
    if isinstance(content, Markup):
        return content
    line = "".join(map(_marked, _parts(content))).strip()
    return Markup(re.sub(r"^([#+-])", r"\\\1", line))


def _marked(part: Inline) -> str:
    if isinstance(part, Measured):
        return _escaped(f"{part.value} ({part.about})" if part.about else part.value)
    if not isinstance(part, Styled):
        return _escaped(str(part))
    text = _escaped(part.text)
    match part.look:
        case "code":
            return _code(part.text)
        case "strong":
            return f"**{text.strip()}**"
        case "small" | "alarm" | "pill":
            return f" ({text})"
        case "break":
            return " / "
    return text


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*|\[\]<>&~]|(?<!\w)_|_(?!\w))", r"\\\1", re.sub(r"\s+", " ", printable(text)))


def _code(text: str) -> Markup:
    """Code within a line, which its content cannot end."""
    line = printable(" ".join(text.split())) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return Markup(f"{fence} {line} {fence}" if len(fence) > 1 else f"`{line}`")


def _verbatim(text: str) -> Markup:
    """An indented block of code, which cannot be ended by its content."""
    return Markup("\n".join(f"    {line}" for line in printable(text).splitlines()))


def _grid(table: Table) -> Iterator[list[Markup]]:
    """The lines of a table in Markdown, each with every column; the intervals of rates are columns of their own."""
    dash, columns = Markup("---"), table.columns
    lines = [[(_line(name), _line("95 % interval")) for name, _ in columns], [(dash, dash)] * len(columns)]
    for row in table.rows:
        cells = (*row.cells, *[None] * (len(columns) - len(row.cells)))
        lines.append([(_line(cell), _line(_interval(cell))) for cell in cells])
    for line in lines:
        both = [cell for pair, (_, kind) in zip(line, columns, strict=True) for cell in pair[: 1 + (kind == "rate")]]
        yield [Markup(re.sub(r"(?<!\\)\|", r"\\|", cell)) for cell in both]  # no bar in code ends a cell


def _interval(cell: Content) -> str | None:
    return next((part.interval for part in _parts(cell) if isinstance(part, Measured) and part.interval), None)
