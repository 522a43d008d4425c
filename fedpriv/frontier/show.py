"""A frontier as Markdown: the answer first, then every point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.audit import formats
from fedpriv.audit.conditions import conditions
from fedpriv.experiments.markdown import bullets, table
from fedpriv.frontier.decision import clipped
from fedpriv.frontier.still_open import still_open

Found = Mapping[str, Any]


def answer(found: Found) -> str:
    """The decision in a few sentences."""
    by_label = {one["label"]: one for one in reversed(found["trades"])}
    target = ", ".join(found["target"])
    if not found["target"]:
        best = [one["label"] for one in found["trades"] if one["pareto_optimal"]]
        return f"No target was given. Pareto-optimal: {formats.listed(best, 'none')}."
    tried = found["confirmed"] if found["chosen"] is None else found["confirmed"][:-1]
    failed = [_failed(found, by_label[one["label"]], one) for one in tried]
    if found["chosen"] is not None:
        one = by_label[found["chosen"]]
        what = f"accuracy {formats.percent(one['accuracy'])}, {formats.size(one['bytes'])} sent"
        what += "" if one["recovered"] is None else f", of the attacked samples {_recovered(one)} recovered"
        last = found["confirmed"][-1]
        again = _of(found, one["label"], last["seed"])
        holds = f"{named(one)} is the most accurate that meets {target} against every attack that was mounted: {what}."
        left_open = still_open([one] if again is None else [one, again], found["target"])
        return " ".join([holds, _confirmed(last, again), *left_open, *failed])
    if found["nearest"] is None:
        return " ".join([f"None meets {target}, and none has a model that is better than guessing.", *failed])
    one = by_label[found["nearest"]]
    missed = _missed(one) if one["unmet"] else "nothing but the fresh seed"
    near = f"{named(one)} comes nearest: it misses {missed}, at an accuracy of {formats.percent(one['accuracy'])}."
    return " ".join([f"None meets {target}.", *failed, near])


def _of(found: Found, label: str, seed: int) -> Found | None:
    """A point with a seed; ``None``: it could not be trained or audited."""
    return next((one for one in found["trades"] if one["label"] == label and one["seed"] == seed), None)


def _confirmed(last: Found, again: Found | None) -> str:
    """What became of the chosen point on a fresh seed."""
    return f"On seed {last['seed']} it also met the target" + ("." if again is None else f": {_measured(again)}.")


def _failed(found: Found, one: Found, tried: Found) -> str:
    """What became of a point that met the target in the grid alone."""
    again = _of(found, one["label"], tried["seed"])
    met = f"{named(one)} met it in the grid, not on seed {tried['seed']}, where it"
    if again is None:
        return f"{met} could not be trained and audited."
    why = f"misses {_missed(again)}" if again["unmet"] else "is no better than guessing"
    return f"{met} {why}: {_measured(again)}."


def _measured(one: Found) -> str:
    """``accuracy 93.7 %, recovered 4.2 % (1.4 to 11.5 %), AUC 0.59``; without what is not known."""
    auc = one["leakage"].get("membership_auc")
    said = [f"accuracy {formats.percent(one['accuracy'])}"]
    said += [] if one["recovered"] is None else [f"recovered {_recovered(one)}"]
    return ", ".join(said if auc is None else [*said, f"AUC {formats.plain(auc)}"])


def named(one: Found) -> str:
    """``fedavg with gaussian:variance=1e-4``."""
    return f"{one['method']} with {one['defence'] if one['defence'] != 'none' else 'no defence'}"


def rows(found: Found) -> list[tuple[str, ...]]:
    """A row for each point, the most accurate first; whether it meets the target only where there is one."""
    ordered = sorted(found["trades"], key=lambda one: (one["seed"], -(one["accuracy"] or 0.0)))
    return [
        (
            one["method"],
            one["defence"],
            str(one["seed"]),
            formats.percent(one["accuracy"]) + (f" ({formats.span(*clipped(one['interval']))})" if one["interval"] else ""),
            _recovered(one) + _wider(one),
            _membership(one),
            formats.bound(one["leakage"]["epsilon"]),
            formats.size(one["bytes"]),
            one["words"] + ("; at chance" if one["at_chance"] else ""),
            "yes" if one["pareto_optimal"] else "",
            *([_meets(found, one)] if found["target"] else []),
        )
        for one in ordered
    ]


COLUMNS = (
    "method | defence | seed | accuracy (95 %) | recovered (95 %) | membership AUC | epsilon | sent | answer | Pareto-optimal"
)
_OPEN = "“Open” and “up to”: the largest upper end of the intervals (95 %) of all attacks that count, on however few samples."
_NOT_OPEN = (
    "Not known, as the frontier is of an earlier version: the intervals of other attacks, which may reach higher, and those of "
    "membership."
)


def _meets(found: Found, one: Found) -> str:
    """Whether a point meets the target, also on the fresh seed, if it was tried there; or why it is not known."""
    if not one["holds"]:
        return _not_known(one)
    fresh = [tried["seed"] for tried in found["confirmed"] if tried["label"] == one["label"] and not tried["holds"]]
    return f"in the grid, not on seed {formats.listed(fresh)}" if fresh else "yes"


def meets_in_a_word(found: Found, one: Found) -> str:
    """Whether a point meets the target, for the picture, which has the fresh seeds as rows of their own."""
    if one["holds"]:
        return "chosen" if (one["label"], one["seed"]) == (found["chosen"], found["seed"]) else "yes"
    if one["at_chance"]:
        return "at chance"
    return "not known" if _not_known(one) else "no"


def _missed(one: Found) -> str:
    """The conditions that a point misses."""
    why = _not_known(one)
    return formats.listed(one["unmet"]) + (f" ({why})" if why else "")


def _not_known(one: Found) -> str:
    """``not known: recovered may be more``, if a point misses bounds that what was found keeps; else nothing."""
    missed = [condition for text in one["unmet"] for condition in conditions(text)]
    values = [(condition, one["leakage"].get(condition.measure)) for condition in missed]
    kept = bool(missed) and all(value is not None and condition.allows(value) for condition, value in values)
    return f"not known: {formats.listed([condition.measure for condition in missed])} may be more" if kept else ""


def markdown(found: Found) -> str:
    """The whole page."""
    parts = [
        "# Frontier of accuracy, leakage and bytes",
        answer(found),
        "![The frontier](frontier.png)",
        table(COLUMNS + (" | meets the target" if found["target"] else ""), rows(found)),
    ]
    if own := found.get("own"):  # frontiers of earlier versions do not have it
        parts.append(f"Every point has the defences of the config, too: {', '.join(own)}; “none” is the config as it is.")
    parts.append(
        "Accuracy: mean over the clients; its interval is over the clients of one run, not over seeds. Recovered: the largest "
        "share of samples that an attack recovered, from a message or from a client with a single sample, with its interval. "
        f"{_OPEN if all('recovered_open' in one for one in found['trades']) else _NOT_OPEN} Sent: both directions, whole run. "
        "Pareto-optimal: no other point of the seed is at least as good in accuracy, recovered and bytes, and better in one."
    )
    if found["strengths"]:
        parts.append("## Strengths that were searched, by replay of kept downloads without training")
        parts.append(table("method | defence | weakest that holds | tried", [_strength(one) for one in found["strengths"]]))
    if found["not_run"]:
        parts += ["## Not run", bullets(f"{name}: {why}" for name, why in found["not_run"].items())]
    parts.append(f"`{found['command']}`, {found['seconds']:.0f} s. All audits: [report/audit.html](report/audit.html)")
    return "\n\n".join(parts) + "\n"


def _recovered(one: Found) -> str:
    if one["recovered"] is None:
        return "not known"
    low_high = one["recovered_interval"]
    return formats.percent(one["recovered"]) + (f" ({formats.span(*low_high)})" if low_high else "")


def _wider(one: Found) -> str:
    """How much another attack leaves open, where that is more."""
    widest, own = one.get("recovered_open"), one["recovered_interval"]
    return "" if widest is None or (own and widest <= own[1]) else f"; up to {formats.percent(widest)} open"


def _membership(one: Found) -> str:
    auc, widest = one["leakage"]["membership_auc"], one.get("membership_open")
    return formats.plain(auc) + ("" if widest is None else f" (up to {formats.plain(widest)})")


def _strength(one: Found) -> tuple[str, ...]:
    tried = "; ".join(
        f"{strength:.3g}: " + ", ".join(f"{name} {formats.short(value)}" for name, value in values.items())
        for strength, values in one["tried"]
    )
    return (one["method"], one["defence"], f"{one['held'][0]:.3g}" if one["held"] else "none", tried)
