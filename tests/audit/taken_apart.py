"""A page taken apart, and an attack with another area."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from fedpriv.audit.results.membership import MembershipOutcome
from fedpriv.audit.results.outcome import Interval

INLINE = {"a", "b", "code", "span"}
VOID = {"meta", "img", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """A document taken apart, strictly: every tag closes in its local update."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._whole: list[str] = []  # with a space at the tags of blocks
        self.written: list[str] = []  # without those of plots and of the contents
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._whole.append(" " * (tag not in INLINE))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._whole.append(" " * (tag not in INLINE))

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)
            self._whole.append(data)
            if not {"head", "header", "figure"} & set(self.open):
                self.written.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self._whole).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def at(attack: MembershipOutcome, auc: float, together: Interval) -> MembershipOutcome:
    """The same with another area."""
    assert attack.points is not None
    return replace(attack, points=replace(attack.points, auc=replace(attack.points.auc, value=auc)), together=together)
