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
from fedpriv.audit import cost, formats
from fedpriv.audit.answer import WORDS
from fedpriv.audit.conditions import MEASURES
from fedpriv.audit.images.pictures import SHOWN
from fedpriv.audit.membership.classes import by_rule, of_all_rules
from fedpriv.audit.membership.verdict import reversed_attack
from fedpriv.audit.page import charts, words
from fedpriv.audit.text.verdict import best_reading
from fedpriv.errors import FedprivError
from fedpriv.outside.names import printable

Found = Mapping[str, Any]
_FORMATS = (
    "percent",
    "points",
    "counted",
    "named",
    "message_of",
    "interval",
    "span",
    "whole",
    "size",
    "power",
    "plain",
    "short",
    "bound",
    "told",
    "listed",
    "paired",
)


def render_html(audit: Found, pictures: Mapping[str, bytes]) -> str:
    """The page with embedded style, plots and pictures; it has no script and loads nothing.

    Args:
        audit: the findings, as plain JSON.
        pictures: PNG bytes by the names that the findings give.

    Raises:
        FedprivError: the findings name a picture that is not among ``pictures``.
    """

    def picture(name: str) -> str:
        if name not in pictures:
            raise FedprivError(f"the findings name the picture {name}, which is not among those given")
        return "data:image/png;base64," + base64.b64encode(pictures[name]).decode()

    return _html().render(audit=audit, charts=charts, picture=picture)


def render_markdown(audit: Found) -> str:
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
    made.globals["answers"] = WORDS
    made.globals |= {"words": words, "limit": f"{RECOVERED:g}", "recovered": words.RECOVERED.format(limit=RECOVERED)}
    made.globals |= {
        "interval_of": _interval_of,
        "labels_found": _labels_found,
        "largest_area": _largest_area,
        "is_best": _is_best,
    }
    made.globals |= {"keys_of": _keys_of, "values_of": _values_of, "because": _because, "best_reading": best_reading}
    made.globals |= {"resolved_rates": _resolved_rates, "known_by": _known_by, "shown": SHOWN}
    made.globals |= {"cost_sentences": cost.in_sentences, "holds": _holds, "of_images": _of_images, "of_texts": _of_texts}
    return made


def _labels_found(run: Found) -> str | None:
    """In how many messages, and of how many clients by simulated ones, the set of classes was found exactly; with intervals."""
    ways = []
    if found := by_rule(run["labels"]):
        exact, tried = sum(bool(one["exact"]) for one in found), max(one.get("rules", 1) for one in found)
        rate = of_all_rules(exact, len(found), tried)
        ways.append(f"in {rate.successes} of {rate.n} messages ({formats.span(rate.low, rate.high)})")
    if (shadow := run.get("label_shadow")) and shadow["exact"] is not None:
        exact, clients = shadow["exact"], shadow["clients"]
        ways.append(f"{round(exact * clients)} of {clients} clients, by shadow clients ({_interval_of(exact, clients)})")
    return "; ".join(ways) or None


def _best_for(rule: Found) -> str | None:
    """For what a rule for labels is the best of all that apply."""
    return " and ".join(what for what, name in (("sets", "best"), ("counts", "best_counts")) if rule[name]) or None


def _interval_of(share: float | None, n: int) -> str:
    """The interval of a share of ``n``."""
    if share is None:
        return formats.NOTHING
    rate = wilson(round(share * n), n)
    return formats.span(rate.low, rate.high)


def _is_best(run: Found, attack: Found, attempt: Found) -> bool:
    best = run["best"][attack["kind"]]
    return best is not None and (best["attacker"], best["target"]) == (attempt["attacker"], attack["target"])


def _because(run: Found, part: str) -> str:
    """The end of a sentence on a section without findings: the reason, if the findings have one."""
    reason = (run.get("not_tried") or {}).get(part)
    return f": {reason}." if reason else "."


def _holds(run: Found, modality: str) -> bool:
    """Whether the run's samples have that modality; in older audits all are images."""
    return modality in run.get("modalities", ["image"])


def _of_images(runs: Iterable[Found]) -> list[Found]:
    """Runs on images, or on images and texts."""
    return [run for run in runs if _holds(run, "image")]


def _of_texts(runs: Iterable[Found]) -> list[Found]:
    """Runs on texts, or on images and texts."""
    return [run for run in runs if _holds(run, "text")]


def _largest_area(run: Found) -> dict[str, Any] | None:
    """The membership AUC as conditions have it, with the interval that holds for all attacks at once; ``None``: not measured.

    ``reversed``: it is one less the area of an attack that gives members the lower scores.
    """
    area = MEASURES["membership_auc"](run)
    if area is None:
        return None
    for one in run["membership"]:
        if one["auc"] == area:
            return {**one["together"], "auc": area, "reversed": False}
    turned = reversed_attack(run["membership"])
    assert turned is not None
    low, high = 1 - turned["together"]["high"], 1 - turned["together"]["low"]
    return {**turned["together"], "auc": area, "low": low, "high": high, "reversed": True}


def _at_least(epsilon: Found) -> dict[str, Any] | None:
    """The larger of the lower bounds of epsilon by attacks and by canaries, and by which; ``None``: there is none."""
    bounds = {"membership attacks": epsilon["lower"], "canaries": (epsilon.get("canaries") or {}).get("lower")}
    known = [{"by": by, "lower": lower} for by, lower in bounds.items() if lower is not None]
    return max(known, key=lambda one: one["lower"], default=None)


def _contradicts(epsilon: Found) -> bool:
    """Whether an empirical lower bound exceeds the accountant's epsilon."""
    least = _at_least(epsilon)
    return least is not None and epsilon["upper"] is not None and bool(least["lower"] > epsilon["upper"])


def _measured(found: Found | None, measure: str) -> str:
    """A value with the number that it is of; an area under a curve is no share."""
    if found is None:
        return "not mounted"
    if measure.startswith("membership"):
        low, value, high = (formats.plain(found[name]) for name in ("low", "value", "high"))
        return f"{value} ({low} to {high})"
    return f"{formats.percent(found['value'])} of {found['n']} ({formats.span(found['low'], found['high'])})"


def _traffic(rounds: Sequence[Found]) -> list[dict[str, Any]]:
    """Consecutive rounds with equal traffic as one line."""
    lines = []
    for (up, down), group in groupby(rounds, lambda r: (r["bytes_up"], r["bytes_down"])):
        numbers = [one["round"] for one in group]
        which = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}, each"
        lines.append({"rounds": which, "bytes_up": up, "bytes_down": down})
    return lines


def _by_role(tensors: Sequence[Found]) -> list[dict[str, Any]]:
    """For each role: number of tensors, and bytes uploaded, downloaded and kept."""
    rows = []
    for role in dict.fromkeys(tensor["role"] for tensor in tensors):
        those = [tensor for tensor in tensors if tensor["role"] == role]
        row = {way: sum(tensor["bytes"] for tensor in those if tensor[way]) for way in ("up", "down", "broadcast")}
        stays = sum(tensor["bytes"] for tensor in those if not (tensor["up"] or tensor["down"] or tensor["broadcast"]))
        rows.append({"role": role, "tensors": len(those), **row, "stays": stays})
    return rows


def _keys_of(items: Iterable[Found], name: str) -> list[str]:
    """All keys of the mappings ``item[name]``, the largest number first."""
    return sorted({key for item in items for key in item.get(name) or {}}, key=float, reverse=True)


def _values_of(items: Iterable[Found], name: str) -> list[Any]:
    """What items have under the name; an attempt that was not mounted has no figures."""
    return [value for item in items if (value := item.get(name)) is not None]


def _resolved_rates(attacks: Sequence[Found]) -> list[str]:
    """The false-positive rates that the non-members of some attack are enough for; their notes name the others."""
    return [rate for rate in _keys_of(attacks, "tpr") if any(one["tpr"].get(rate) for one in attacks)]


def _known_by(attacks: Sequence[Found]) -> list[tuple[str, str]]:
    """(attackers, what they are assumed to know), a sentence once; of what all know, the attackers are not named.

    Attackers are named by their rounds if all of these know it.
    """
    told = list[tuple[str, str]]()
    for sentence in dict.fromkeys(one for attack in attacks for one in attack.get("knows", [])):
        knowing = [one for one in attacks if sentence in one.get("knows", [])]
        rounds = list(dict.fromkeys(one["round"] for one in knowing))
        if len(knowing) == len(attacks):
            who = ""
        elif len(knowing) == sum(one["round"] in rounds for one in attacks):
            who = f"In round{'s' * (len(rounds) > 1)} {formats.listed(rounds)}"
        else:
            who = formats.listed(list(dict.fromkeys(one["attack"] for one in knowing)))
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
