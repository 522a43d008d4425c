"""The audit's findings as one self-contained HTML file, and the same in Markdown.

A section without findings says so. Names, config and sentences come from run folders that others may have written, so everything
is escaped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fedpriv.attacks.scoring.scores import RECOVERED, wilson
from fedpriv.audit import facts, formats, sentences
from fedpriv.audit.answer import WORDS
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.judge import classes, images, members, texts
from fedpriv.audit.page import charts, words
from fedpriv.audit.results import (
    Audit,
    AuditedRun,
    Epsilon,
    ImageOutcome,
    ImageTarget,
    LabelRule,
    MembershipOutcome,
    Part,
    RoundTraffic,
    TargetKind,
    TensorInfo,
    Value,
)
from fedpriv.errors import FedprivError
from fedpriv.outside.names import printable
from fedpriv.samples import Modality

_FORMATS = (
    "percent", "counted", "interval", "whole", "size", "power", "plain", "short", "bound", "told", "listed", "paired",
)  # fmt: skip
_MEASURES = {
    "images": "images recovered",
    "texts": "texts recovered word by word",
    "label sets": "sets of classes found exactly",
    "membership": "membership AUC (0.5: guessing)",
}


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

    return _html().render(audit=audit, charts=charts, picture=picture)


def render_markdown(audit: Audit) -> str:
    """The same findings without pictures and plots."""
    return _md().render(audit=audit)


@cache
def _html() -> Template:
    """Compiled once a process: it takes a second."""
    return _environment(autoescape=True, finalize=_dash).get_template("audit.html.j2")


@cache
def _md() -> Template:
    environment = _environment(autoescape=False, finalize=lambda value: _markdown(_dash(value)))
    environment.filters |= {"verbatim": _verbatim, "code": _code}
    return environment.get_template("audit.md.j2")


def _environment(**settings: Any) -> Environment:
    loader = PackageLoader("fedpriv.audit.page")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **settings)
    made.filters |= {name: getattr(formats, name) for name in _FORMATS}
    made.filters |= {"moment": _moment, "traffic": _traffic, "by_role": _by_role}
    made.filters |= {"at_least": _at_least, "contradicts": _contradicts, "best_for": _best_for}
    made.filters |= {"measured": _measured, "drawable": charts.drawable}
    made.globals |= {"answers": WORDS, "words": words, "limit": f"{RECOVERED:g}", "shown": SHOWN, "measures": _MEASURES}
    made.globals |= {"recovered": words.RECOVERED.format(limit=RECOVERED), "because": _because}
    made.globals |= {"cost_sentences": facts.cost_in_sentences}
    made.globals |= {"interval_of": _interval_of, "labels_found": _labels_found, "largest_area": members.largest_area}
    made.globals |= {"best_images": images.best_of, "best_of": _best_of, "limits_of": _limits_of, "values_of": _values_of}
    made.globals |= {"best_texts": texts.best_of, "best_reading": texts.best, "most_exact": texts.most_exact}
    made.globals |= {"ran": _ran, "not_run": members.not_run, "notes_of": _notes_of, "known_by": _known_by}
    made.globals |= {"resolved_rates": _resolved_rates, "known_members": sentences.known_members}
    made.globals |= {"epsilon_notes": sentences.epsilon_notes, "holds": _holds, "of_images": _of_images, "of_texts": _of_texts}
    return made


def _labels_found(run: AuditedRun) -> str | None:
    """In how many messages, and of how many clients by simulated ones, the set of classes was found exactly; with intervals."""
    ways = []
    if found := classes.by_rule(run.labels):
        rate = classes.rate_of_rules(sum(one.exact for one in found), len(found), max(one.rules for one in found))
        ways.append(f"in {rate.successes} of {rate.n} messages ({formats.interval(rate)})")
    if run.shadow_labels is not None:
        exact, clients = run.shadow_labels.report.exact, run.shadow_labels.report.clients
        ways.append(f"{round(exact * clients)} of {clients} clients, by shadow clients ({_interval_of(exact, clients)})")
    return "; ".join(ways) or None


def _best_for(rule: LabelRule) -> str | None:
    """For what a rule for labels is the best of all that apply."""
    return " and ".join(what for what, best in (("sets", rule.best), ("counts", rule.best_counts)) if best) or None


def _interval_of(share: float, n: int) -> str:
    """The interval of a share of ``n``."""
    return formats.interval(wilson(round(share * n), n))


def _best_of(run: AuditedRun, kind: TargetKind) -> ImageOutcome | None:
    best = images.best_of(run, kind)
    return None if best is None else best.outcome


def _because(run: AuditedRun, part: Part) -> str:
    """The end of a sentence on a section without findings: the reason, if the audit has one."""
    reason = run.not_run.get(part)
    return "." if reason is None else f": {reason}."


def _holds(run: AuditedRun, modality: Modality) -> bool:
    """Whether the run's samples have that modality."""
    return modality in run.modalities


def _of_images(runs: Iterable[AuditedRun]) -> list[AuditedRun]:
    """Runs on images, or on images and texts."""
    return [run for run in runs if "image" in run.modalities]


def _of_texts(runs: Iterable[AuditedRun]) -> list[AuditedRun]:
    """Runs on texts, or on images and texts."""
    return [run for run in runs if "text" in run.modalities]


def _at_least(epsilon: Epsilon) -> tuple[float, str] | None:
    """The larger of the lower bounds of epsilon by attacks and by canaries, and by which; ``None``: there is none."""
    by_canaries = None if epsilon.canaries is None else epsilon.canaries.best.epsilon
    bounds = ((epsilon.lower, "membership attacks"), (by_canaries, "canaries"))
    return max(((lower, by) for lower, by in bounds if lower is not None), key=lambda one: one[0], default=None)


def _contradicts(epsilon: Epsilon) -> bool:
    """Whether an empirical lower bound exceeds the accountant's epsilon."""
    least = _at_least(epsilon)
    return least is not None and least[0] > epsilon.upper


def _measured(found: Value | None, measure: str) -> str:
    """A value with the number that it is of; an area under a curve is no share."""
    if found is None:
        return "not mounted"
    if measure == "membership":
        low, value, high = map(formats.plain, (found.low, found.value, found.high))
        return f"{value} ({low} to {high})"
    return f"{formats.percent(found.value)} of {found.n} ({formats.interval(found)})"


def _traffic(rounds: Sequence[RoundTraffic]) -> list[dict[str, Any]]:
    """Consecutive rounds with equal traffic as one line."""
    lines = []
    for (up, down), group in groupby(rounds, lambda one: (one.bytes_up, one.bytes_down)):
        numbers = [one.round for one in group]
        which = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}, each"
        lines.append({"rounds": which, "bytes_up": up, "bytes_down": down})
    return lines


def _by_role(tensors: Sequence[TensorInfo]) -> list[dict[str, Any]]:
    """For each role: number of tensors, and bytes uploaded, downloaded and kept."""
    rows = []
    for role in dict.fromkeys(tensor.role for tensor in tensors):
        those = [tensor for tensor in tensors if tensor.role == role]
        row = {way: sum(tensor.bytes for tensor in those if getattr(tensor, way)) for way in ("up", "down", "broadcast")}
        stays = sum(tensor.bytes for tensor in those if not tensor.was_sent)
        rows.append({"role": role, "tensors": len(those), **row, "stays": stays})
    return rows


def _limits_of(target: ImageTarget) -> list[str]:
    """The thresholds of the mean squared error, the loosest first."""
    return sorted({limit for _, figures in images.ran(target) for limit in figures.success}, key=float, reverse=True)


def _values_of(target: ImageTarget, name: str) -> list[Any]:
    """A figure of the attacks that have it."""
    return [value for _, figures in images.ran(target) if (value := getattr(figures, name)) is not None]


def _ran(attacks: Sequence[MembershipOutcome]) -> list[MembershipOutcome]:
    return [one.outcome for one in members.ran(attacks)]


def _resolved_rates(attacks: Sequence[MembershipOutcome]) -> list[float]:
    """The false-positive rates that the non-members of some attack are enough for; their notes name the others."""
    found = {rate for one in members.ran(attacks) for rate, point in one.points.at.items() if point is not None}
    return sorted(found, reverse=True)


def _notes_of(attacks: Sequence[MembershipOutcome]) -> list[str]:
    return list(dict.fromkeys("; ".join(one.points.notes) for one in members.ran(attacks) if one.points.notes))


def _known_by(attacks: Sequence[MembershipOutcome]) -> list[tuple[str, str]]:
    """(attackers, what they are assumed to know), a sentence once; of what all know, the attackers are not named.

    Attackers are named by their rounds if all of these know it.
    """
    told = list[tuple[str, str]]()
    for sentence in dict.fromkeys(one for attack in attacks for one in attack.knows):
        knowing = [one for one in attacks if sentence in one.knows]
        rounds = list(dict.fromkeys(one.round for one in knowing))
        if len(knowing) == len(attacks):
            who = ""
        elif len(knowing) == sum(one.round in rounds for one in attacks):
            who = f"In round{'s' * (len(rounds) > 1)} {formats.listed(rounds)}"
        else:
            who = formats.listed(list(dict.fromkeys(one.name for one in knowing)))
        told.append((who, sentence))
    return told


def _moment(iso: str) -> str:
    return datetime.fromisoformat(iso).strftime("%-d %B %Y, %H:%M %Z").strip()


def _dash(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)  # names may be of someone else's data or run
    return formats.NOTHING if value is None else value


def _markdown(value: Any) -> str:
    """Text escaped for a line or a cell of Markdown; markup stays."""
    if isinstance(value, Markup):
        return value
    text = re.sub(r"([\\`*|\[\]<>&~]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(value).split()))
    return re.sub(r"^([#+-])", r"\\\1", text)


def _code(text: str) -> Markup:
    """Code within a line, which its content cannot end."""
    line = printable(" ".join(text.split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return Markup(f"{fence} {line} {fence}" if len(fence) > 1 else f"`{line}`")


def _verbatim(text: str) -> Markup:
    """An indented block of code, which cannot be ended by its content."""
    return Markup("\n".join(f"    {line}" for line in printable(text).splitlines()))
