"""A frontier as Markdown: the answer first, then every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.audit import formats
from fedpriv.audit.conditions import conditions
from fedpriv.experiments.markdown import bullets, table

Found = Mapping[str, Any]


def answer(found: Found) -> str:
    """The decision in a sentence or two."""
    by_label = {one["label"]: one for one in reversed(found["trades"])}
    target = ", ".join(found["target"])
    if not found["target"]:
        best = [one["label"] for one in found["trades"] if one["pareto_optimal"]]
        return f"No target was given. Pareto-optimal: {formats.listed(best, 'none')}."
    if found["chosen"] is not None:
        one = by_label[found["chosen"]]
        what = f"accuracy {formats.percent(one['accuracy'])}, {formats.size(one['bytes'])} sent"
        what += "" if one["recovered"] is None else f", of the attacked samples {_recovered(one)} recovered"
        last = found["confirmed"][-1]
        again = f"{last['seed']}" + (f", with {formats.percent(last['accuracy'])}" if last.get("accuracy") is not None else "")
        holds = f"{named(one)} is the most accurate that meets {target} against every attack that was mounted"
        return f"{holds}: {what}. Confirmed on seed {again}.{_open(one, found['target'])}"
    failed = [one["label"] for one in found["confirmed"]]
    why = f" {formats.listed(failed)} met it in the grid, but not on a fresh seed." if failed else ""
    if found["nearest"] is None:
        return f"None meets {target}, and none has a model that is better than guessing.{why}"
    one = by_label[found["nearest"]]
    missed = formats.listed(one["unmet"]) if one["unmet"] else "nothing but the fresh seed"
    near = f"{named(one)} comes nearest: it misses {missed}, at an accuracy of {formats.percent(one['accuracy'])}"
    return f"None meets {target}.{why} {near}."


def _open(one: Found, target: Sequence[str]) -> str:
    """That too few samples were attacked to show a share below the target's; empty: enough were."""
    bounds = [wanted for wanted in conditions(",".join(target), "--target") if wanted.measure == "recovered"]
    high = one["recovered_interval"][1] if one["recovered_interval"] else 0.0
    if all(wanted.allows(high) for wanted in bounds):
        return ""
    return f" By the samples that were attacked, up to {formats.percent(high)} may be recovered (95 %); --singles attacks more."


def named(one: Found) -> str:
    """``fedavg with gaussian:variance=1e-4``."""
    return f"{one['method']} with {one['defence'] if one['defence'] != 'none' else 'no defence'}"


def rows(trades: Sequence[Found]) -> list[tuple[str, ...]]:
    """A row for each point, the most accurate first."""
    ordered = sorted(trades, key=lambda one: (one["seed"], -(one["accuracy"] or 0.0)))
    return [
        (
            one["method"],
            one["defence"],
            str(one["seed"]),
            formats.percent(one["accuracy"]) + (f" ({formats.span(*one['interval'])})" if one["interval"] else ""),
            _recovered(one),
            formats.plain(one["leakage"]["membership_auc"]),
            formats.bound(one["leakage"]["epsilon"]),
            formats.size(one["bytes"]),
            one["words"] + ("; at chance" if one["at_chance"] else ""),
            "yes" if one["pareto_optimal"] else "",
            "yes" if one["holds"] else "",
        )
        for one in ordered
    ]


COLUMNS = (
    "method | defence | seed | accuracy (95 %) | recovered (95 %) | membership AUC | epsilon | sent | answer | "
    "Pareto-optimal | meets the target"
)


def markdown(found: Found) -> str:
    """The whole page."""
    parts = [
        "# Frontier of accuracy, leakage and bytes",
        answer(found),
        "![The frontier](frontier.png)",
        table(COLUMNS, rows(found["trades"])),
    ]
    if own := found.get("own"):  # frontiers of earlier versions do not have it
        parts.append(f"Every point has the defences of the config, too: {', '.join(own)}; “none” is the config as it is.")
    parts.append(
        "Accuracy: mean over the clients; its interval is over the clients of one run, not over seeds. Recovered: the largest "
        "share of samples that an attack recovered, from a message or from a client with a single sample. Sent: both directions, "
        "whole run. Pareto-optimal: no other point of the seed is at least as good in accuracy, recovered and bytes, and better "
        "in one."
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


def _strength(one: Found) -> tuple[str, ...]:
    tried = "; ".join(
        f"{strength:.3g}: " + ", ".join(f"{name} {formats.short(value)}" for name, value in values.items())
        for strength, values in one["tried"]
    )
    return (one["method"], one["defence"], f"{one['held'][0]:.3g}" if one["held"] else "none", tried)
