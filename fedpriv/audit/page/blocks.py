"""The blocks of a page, the same in HTML and in Markdown: sections of paragraphs, lists, tables, pictures and plots.

Texts may come from others: the templates escape them. ``look`` is a class of the style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedpriv.attacks.scoring.scores import Rate
from fedpriv.audit import formats
from fedpriv.audit.page.charts import Chart


@dataclass(frozen=True)
class Styled:
    """A text in a style; a ``link`` leads to the section with that ``anchor``, a ``break`` between lines has no text."""

    text: str
    look: Literal["code", "strong", "small", "alarm", "pill", "large", "nothing", "link", "break"]
    anchor: str = ""


@dataclass(frozen=True)
class Measured:
    """A figure; ``share``: in percent; ``interval``: of 95 % confidence; ``about``: by which attack, and the like."""

    value: str
    share: str = ""
    interval: str = ""
    about: str = ""


Inline = str | int | Styled | Measured
Content = Inline | tuple[Inline, ...] | None
"""The content of a line or a cell; ``None``: a dash, as it was not measured."""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    content: Content
    look: str = ""


@dataclass(frozen=True)
class Bullets:
    """A list after the line ``lead``; without rows, ``empty`` takes its place."""

    rows: Sequence[Content]
    empty: str = ""
    lead: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table; the last cell spans the remaining columns."""

    cells: tuple[Content, ...]
    look: str = ""


@dataclass(frozen=True)
class Table:
    """A table after the paragraph ``lead``; without rows, ``empty`` takes its place.

    Attributes:
        caption: for screen readers.
        names: column names with a prefix for the kind (``#`` numbers, ``~`` prose, ``%`` rates); an unprefixed first column is
            the row head.
    """

    caption: str
    names: Sequence[str]
    rows: Sequence[Row]
    empty: str = ""
    lead: str = ""
    look: str = ""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(name, kind) of each; in Markdown, the intervals of a ``rate`` are a column of their own."""
        kinds = {"#": "number", "~": "prose", "%": "rate"}
        plain = ((name, "plain" if number else "head") for number, name in enumerate(self.names))
        return [(name[1:], kinds[name[0]]) if name[0] in kinds else (name, kind) for name, kind in plain]


@dataclass(frozen=True)
class Picture:
    """A picture by its name, in HTML alone; ``caption`` and ``alt``: for screen readers."""

    name: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Figure:
    """A plot, in HTML alone."""

    chart: Chart
    caption: str
    look: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and their descriptions."""

    entries: Iterable[tuple[str, Content]]
    look: str = "facts"


@dataclass(frozen=True)
class Verbatim:
    """Preformatted lines."""

    text: str


@dataclass(frozen=True)
class Details:
    """Blocks to unfold."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading, or in a box without one.

    Attributes:
        anchor: the target of links; ``link``: their text in the contents.
        drawn: it has pictures or plots only, so that Markdown leaves it out.
    """

    title: Content
    blocks: Sequence[Block]
    look: str = ""
    anchor: str = ""
    link: str = ""
    drawn: bool = False


Block = Paragraph | Bullets | Table | Picture | Figure | Facts | Verbatim | Details | Section


def nothing(sentence: str) -> Paragraph:
    """A sentence in place of missing content."""
    return Paragraph(Styled(sentence, "nothing"))


def measured(rate: Rate | None, about: str = "") -> Measured | None:
    """``13 of 72 (18.1 %)`` with its interval."""
    if rate is None:
        return None
    return Measured(formats.counted(rate), formats.percent(rate.share), formats.interval(rate), about)
