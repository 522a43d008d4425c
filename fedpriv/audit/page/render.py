"""The audit's findings as a page for people: one HTML file that needs nothing beside it, and the same in Markdown.

Both say what the findings say and nothing else; a part without findings says that it has none. Names, config and sentences come
from run folders that others may have written, so everything is escaped on its way into a page.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attacks.scoring.scores import RECOVERED, wilson
from fedpriv.audit import cost, formats
from fedpriv.audit.page import charts, words
from fedpriv.audit.text.verdict import best_reading
from fedpriv.errors import FedprivError

Found = Mapping[str, Any]
_FORMATS = (
    "percent",
    "points",
    "counted",
    "interval",
    "span",
    "whole",
    "size",
    "power",
    "plain",
    "short",
    "listed",
    "paired",
)


def render_html(audit: Found, pictures: Mapping[str, bytes]) -> str:
    """The page, with style, plots and pictures inside; no script, and nothing is fetched.

    Args:
        audit: the findings, as plain JSON.
        pictures: PNG bytes by the names that the findings give.

    Raises:
        FedprivError: the findings name a picture that is not there.
    """

    def picture(name: str) -> str:
        if name not in pictures:
            raise FedprivError(f"the findings name the picture {name}, which is not among those given")
        return "data:image/png;base64," + base64.b64encode(pictures[name]).decode()

    environment = _environment(autoescape=True, finalize=_dash)
    environment.filters["picture"] = picture
    return environment.get_template("audit.html.j2").render(audit=audit, charts=charts)


def render_markdown(audit: Found) -> str:
    """The same findings without pictures and plots."""
    environment = _environment(autoescape=False, finalize=lambda value: _markdown(_dash(value)))
    environment.filters["verbatim"] = _verbatim
    return environment.get_template("audit.md.j2").render(audit=audit)


def _environment(**settings: Any) -> Environment:
    loader = PackageLoader("fedpriv.audit.page")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **settings)
    made.filters |= {name: getattr(formats, name) for name in _FORMATS}
    made.filters |= {"moment": _moment, "traffic": _traffic, "by_role": _by_role, "contradicts": _contradicts}
    made.globals |= {"words": words, "limit": f"{RECOVERED:g}", "recovered": words.RECOVERED.format(limit=RECOVERED)}
    made.globals |= {
        "interval_of": _interval_of,
        "labels_found": _labels_found,
        "best_membership": _best_membership,
        "is_best": _is_best,
    }
    made.globals |= {"keys_of": _keys_of, "because": _because, "best_reading": best_reading}
    made.globals |= {"cost_told": cost.told, "holds": _holds, "of_images": _of_images, "of_texts": _of_texts}
    return made


def _labels_found(run: Found) -> str | None:
    """In how many messages exactly the client's classes were found, with the interval."""
    if not (found := run["labels"]):
        return None
    rate = wilson(sum(bool(one["exact"]) for one in found), len(found))
    return f"in {rate.successes} of {rate.n} messages ({formats.span(rate.low, rate.high)})"


def _interval_of(share: float | None, n: int) -> str:
    """The interval of a share of so many."""
    if share is None:
        return formats.NOTHING
    rate = wilson(round(share * n), n)
    return formats.span(rate.low, rate.high)


def _best_membership(run: Found) -> Found | None:
    return max((m for m in run["membership"] if m["auc"] is not None), key=lambda m: m["auc"], default=None)


def _is_best(run: Found, attack: Found, attempt: Found) -> bool:
    best = run["best"][attack["kind"]]
    return best is not None and (best["attacker"], best["target"]) == (attempt["attacker"], attack["target"])


def _because(run: Found, part: str) -> str:
    """The end of a sentence on a part without findings: why, where the findings say it."""
    reason = (run.get("not_tried") or {}).get(part)
    return f": {reason}." if reason else "."


def _holds(run: Found, modality: str) -> bool:
    """Whether the run's samples are of that kind; those of older audits are images."""
    return modality in run.get("modalities", ["image"])


def _of_images(runs: Iterable[Found]) -> list[Found]:
    """Runs on images, or on images and texts."""
    return [run for run in runs if _holds(run, "image")]


def _of_texts(runs: Iterable[Found]) -> list[Found]:
    """Runs on texts, or on images and texts."""
    return [run for run in runs if _holds(run, "text")]


def _contradicts(epsilon: Found) -> bool:
    """Whether attacks refute what the accountant promises."""
    lower, upper = epsilon["lower"], epsilon["upper"]
    return lower is not None and upper is not None and lower > upper


def _traffic(rounds: Sequence[Found]) -> list[dict[str, Any]]:
    """Neighbouring rounds of equal traffic as one line."""
    lines = []
    for (up, down), group in groupby(rounds, lambda r: (r["bytes_up"], r["bytes_down"])):
        numbers = [one["round"] for one in group]
        told = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}, each"
        lines.append({"rounds": told, "bytes_up": up, "bytes_down": down})
    return lines


def _by_role(tensors: Sequence[Found]) -> list[dict[str, Any]]:
    """Of each role: tensors, and the bytes that go up, come down, and stay."""
    rows = []
    for role in dict.fromkeys(tensor["role"] for tensor in tensors):
        those = [tensor for tensor in tensors if tensor["role"] == role]
        row = {way: sum(tensor["bytes"] for tensor in those if tensor[way]) for way in ("up", "down", "broadcast")}
        stays = sum(tensor["bytes"] for tensor in those if not (tensor["up"] or tensor["down"] or tensor["broadcast"]))
        rows.append({"role": role, "tensors": len(those), **row, "stays": stays})
    return rows


def _keys_of(items: Iterable[Found], name: str) -> list[str]:
    """Keys that the mappings ``item[name]`` have, the largest number first."""
    return sorted({key for item in items for key in item.get(name) or {}}, key=float, reverse=True)


def _moment(iso: str) -> str:
    return datetime.fromisoformat(iso).strftime("%-d %B %Y, %H:%M %Z").strip()


def _dash(value: Any) -> Any:
    return formats.NOTHING if value is None else value


def _markdown(value: Any) -> str:
    """Text that means itself in a line or a cell; what is marked up already stays."""
    if isinstance(value, Markup):
        return value
    text = re.sub(r"([\\`*|\[\]<>&~]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(value).split()))
    return re.sub(r"^([#+-])", r"\\\1", text)


def _verbatim(text: str) -> Markup:
    """An indented block of code, which no content can end."""
    return Markup("\n".join(f"    {line}" for line in text.splitlines()))
