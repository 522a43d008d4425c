"""A table of groups of runs as CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from rich.filesize import decimal

from fedpriv.api.comparison.gains import signed
from fedpriv.api.comparison.groups import Group, as_row
from fedpriv.untrusted.names import printable

NOTE = (
    "Mean ± standard deviation over runs; the score of a run is over its clients, and over the rounds that its column names. "
    "Differences: mean, and 95 % interval (Student's t) of the paired differences of runs with the same seed and "
    "clients; of a single run, over its clients. There is none where a run of either has no partner."
)
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
}


def head(groups: Sequence[Group]) -> tuple[str, ...]:
    """The columns of :func:`cells`."""
    score = groups[0].score
    less, unit = "" if score.higher_is_better else ", less is better", " in %" if score.in_percent else ""
    value = f"{score.title}{unit}{less} ({mean_over(groups)})"
    difference = f"difference from {groups[0].against or 'the best'} (95 %)"
    return "runs", "n", value, difference, "worst tenth", "up", "down"


def mean_over(groups: Sequence[Group]) -> str:
    """The rounds that a run's score is of: ``mean of the last 10 rounds``, or ``best round``."""
    if any(group.at_best for group in groups):
        return "best round"
    lengths = sorted({group.averaged_rounds for group in groups if group.averaged_rounds is not None}) or [1]
    if lengths == [1]:
        return "last round"
    return f"mean of the last {f'{lengths[0]} to ' if len(lengths) > 1 else ''}{lengths[-1]} rounds"


def over_all_rounds(groups: Sequence[Group]) -> str | None:
    """A sentence that the scores of short runs are means from round 1 on; ``None``: no run is so short."""
    labels = ", ".join(group.label for group in groups if group.is_over_all_rounds)
    if not labels:
        return None
    return (
        f"The scores of {labels} are means from round 1 on, not those that the runs end at: they have no more rounds than "
        "eval.last. With --set eval.last=1 a run is scored in its last round alone."
    )


def _caption(groups: Sequence[Group]) -> str:
    return " ".join(filter(None, (NOTE, over_all_rounds(groups))))


def cells(group: Group) -> tuple[str, ...]:
    """A line of the table, for people; shares in percent, without the sign."""

    def shown(value: float | None) -> str:
        return "–" if value is None else group.score.shown(value).removesuffix("%")

    paired, spread = group.difference, "" if group.value.std is None else f" ± {shown(group.value.std)}"
    if paired is None:
        difference = "–" if group.pairs is None else f"– ({group.pairs} of {group.counted} paired)"
    else:
        difference = signed(group.score, paired.mean)
        if paired.low is not None and paired.high is not None:
            interval = f"{signed(group.score, paired.low)} to {signed(group.score, paired.high)}"
            difference += f" ({interval}, over {paired.count} {paired.over})"
    sizes = ("–" if size is None else decimal(round(size)) for size in (group.bytes_up, group.bytes_down))
    return group.label, str(group.counted), shown(group.value.mean) + spread, difference, shown(group.worst_tenth), *sizes


def as_csv(groups: Sequence[Group]) -> str:
    """All numbers to the last digit, a row a group; shares from 0 to 1."""
    text, rows = io.StringIO(), [as_row(group) for group in groups]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(groups: Sequence[Group]) -> str:
    """The table, and what its numbers are."""
    columns = head(groups)
    lines = (columns, ["---", *["---:"] * (len(columns) - 1)], *map(cells, groups))
    table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"{table}\n\n{_caption(groups)}\n"


def as_latex(groups: Sequence[Group]) -> str:
    """A ``tabular`` of the package booktabs; what its numbers are is a comment."""
    lines = [" & ".join(map(_escaped, line)) + r" \\" for line in (head(groups), *map(cells, groups))]
    top = [
        f"% {printable(_caption(groups))}",
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(head(groups)) - 1)}}}",
        r"\toprule",
    ]
    return "\n".join([*top, lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", ""])


def _escaped(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.-])-(?=\d)", "$-$", escaped)  # a minus, no hyphen
